"""Compute slots held for clients that announced requests."""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec

from magnitude.schedule.inference import Priority

T = TypeVar("T")

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
        self._refusals: dict[str, str] = {}  # why the newest announcement of a client holds nothing

    def announce(
        self, client: str, requests: int, priority: Priority, *, slots: int, hold_s: float, now_s: float
    ) -> None:
        """Hold slots for `requests` more of the client, in place of what it announced before. Requests beyond those
        that may be held are no error, they queue like any other."""
        self._held.pop(client, None)
        self._refusals.pop(client, None)
        if requests <= 0:
            return
        granted = min(requests, slots - 1 - sum(held.requests for held in self._held.values()))
        first_s = self._announced_s.get(client, now_s)
        if now_s >= first_s + 2 * LONGEST_HOLD_S:
            first_s = now_s
        until_s = min(now_s + hold_s, first_s + LONGEST_HOLD_S)
        reason = "" if granted == requests else "one compute slot is left to everybody"
        if granted <= 0:
            _remember(self._refusals, client, reason)
        elif not until_s > now_s:  # nor is it where the hold is not a number
            reason = "what was announced before did not come" if hold_s > 0 else "the time is over"
            _remember(self._refusals, client, reason)
        else:
            self._held[client] = Hold(
                client=client, requests=granted, priority=priority, until_s=until_s, reason=reason
            )
            _remember(self._announced_s, client, first_s)

    def of(self, client: str, now_s: float) -> Hold:
        """What is held for the client; `requests` is 0 when it is nothing."""
        held = self._held.get(client)
        if held is not None and held.until_s > now_s:
            return held
        reason = self._refusals.get(client, "")
        return Hold(client=client, requests=0, priority="normal", until_s=now_s, reason=reason)

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


def _remember(by_client: dict[str, T], client: str, value: T) -> None:
    by_client[client] = value
    if len(by_client) > REMEMBERED_CLIENTS:
        del by_client[next(iter(by_client))]
