"""Compute slots held for clients that announced requests."""

from __future__ import annotations

import math

import msgspec

from magnitude.schedule.inference import Priority

CLASS: dict[Priority, int] = {"interactive": 0, "normal": 1, "background": 2}

# A held slot may stand idle while others wait, so a client that announces and does not come holds slots for at most
# this long, however often it announces, and then for as long not at all.
LONGEST_HOLD_S = 60.0

# Clients with unfulfilled announcements that are remembered. A client is an API key, of which a board has a handful.
REMEMBERED_CLIENTS = 1024


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` of the client are still to come; their slots are held until `until_s` (monotonic). `reason`: why
    it is less than what was asked for, "" when it is not."""

    client: str
    requests: int
    priority: Priority
    until_s: float
    reason: str = ""


class Reservations:
    """The reservations of one model. All together hold at most all slots but one."""

    def __init__(self) -> None:
        self._held: dict[str, Hold] = {}
        # The first announcement of each client since its last request.
        self._announced_s: dict[str, float] = {}

    def announce(
        self, client: str, requests: int, priority: Priority, *, slots: int, hold_s: float, now_s: float
    ) -> Hold:
        """Hold slots for `requests` more of the client, in place of what it announced before. Returns what is held;
        requests beyond that are no error, they queue like any other."""
        self._held.pop(client, None)
        granted = max(0, min(requests, slots - 1 - sum(held.requests for held in self._held.values())))
        first_s = self._announced_s.get(client, now_s)
        if now_s >= first_s + 2 * LONGEST_HOLD_S:
            first_s = now_s
        until_s = min(now_s + hold_s, first_s + LONGEST_HOLD_S)
        reason = "" if granted >= requests else "one compute slot is left to everybody"
        if not until_s > now_s:  # nor is it where the hold is not a number
            granted = 0
            reason = "what was announced before did not come" if hold_s > 0 else "the time is over"
        if not granted:
            return Hold(
                client=client, requests=0, priority=priority, until_s=now_s, reason=reason if requests > 0 else ""
            )
        hold = Hold(client=client, requests=granted, priority=priority, until_s=until_s, reason=reason)
        self._held[client] = hold
        self._announced_s[client] = first_s
        if len(self._announced_s) > REMEMBERED_CLIENTS:
            del self._announced_s[next(iter(self._announced_s))]
        return hold

    def started(self, client: str) -> None:
        """A request of the client started: it used one of its slots."""
        self._announced_s.pop(client, None)
        held = self._held.get(client)
        if held is None:
            return
        if held.requests > 1:
            self._held[client] = msgspec.structs.replace(held, requests=held.requests - 1)
        else:
            del self._held[client]

    def expire(self, now_s: float) -> None:
        self._held = {client: held for client, held in self._held.items() if held.until_s > now_s}

    def held_against(self, client: str, rank: int, slots: int) -> int:
        """Slots that a request of `client` in class `rank` must leave free: those held for others in its own class
        or a higher one. At most all but one, also after the slots became fewer."""
        held = sum(
            other.requests
            for other in self._held.values()
            if other.client != client and CLASS[other.priority] <= rank
        )
        return min(held, max(0, slots - 1))

    def next_expiry_s(self) -> float:
        return min((held.until_s for held in self._held.values()), default=math.inf)

    def all(self) -> tuple[Hold, ...]:
        return tuple(self._held.values())
