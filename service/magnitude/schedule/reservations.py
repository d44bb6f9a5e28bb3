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


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` of the client are still to come; their slots are held until `until_s` (monotonic)."""

    client: str
    requests: int
    priority: Priority
    until_s: float


class Reservations:
    """The reservations of one model. All together hold at most all slots but one."""

    def __init__(self) -> None:
        self._held: dict[str, Reservation] = {}
        # The first announcement of each client since its last request.
        self._announced_s: dict[str, float] = {}

    def announce(
        self, client: str, requests: int, priority: Priority, *, slots: int, hold_s: float, now_s: float
    ) -> None:
        """Hold slots for `requests` more of the client, in place of what it announced before. What exceeds the
        slots that may be held is not reserved, and no error: those requests queue like any other."""
        self._held.pop(client, None)
        room = slots - 1 - sum(held.requests for held in self._held.values())
        requests = min(requests, room)
        first_s = self._announced_s.get(client, now_s)
        if now_s >= first_s + 2 * LONGEST_HOLD_S:
            first_s = now_s
        # Never true of a hold that is not a number.
        if requests > 0 and (until_s := min(now_s + hold_s, first_s + LONGEST_HOLD_S)) > now_s:
            self._held[client] = Reservation(client=client, requests=requests, priority=priority, until_s=until_s)
            self._announced_s[client] = first_s
            if len(self._announced_s) > REMEMBERED_CLIENTS:
                del self._announced_s[next(iter(self._announced_s))]

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

    def all(self) -> tuple[Reservation, ...]:
        return tuple(self._held.values())
