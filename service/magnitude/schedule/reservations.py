"""Compute slots held for clients that announced requests."""

from __future__ import annotations

import math

import msgspec

from magnitude.schedule.inference import Priority

CLASS: dict[Priority, int] = {"interactive": 0, "normal": 1, "background": 2}

# A held slot may stand idle while others wait, so a client that announces and never comes costs at most this much.
LONGEST_HOLD_S = 60.0

# Clients that are known to have let a hold lapse. A client is an API key, of which a board has a handful.
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
        # Who let a hold lapse without a single request must first come with one: nobody can keep slots idle for ever
        # by announcing again and again.
        self._lapsed: dict[str, None] = {}

    def announce(
        self, client: str, requests: int, priority: Priority, *, slots: int, hold_s: float, now_s: float
    ) -> None:
        """Hold slots for `requests` more of the client, in place of what it announced before. What exceeds the
        slots that may be held is not reserved, and no error: those requests queue like any other."""
        self._held.pop(client, None)
        if client in self._lapsed or not math.isfinite(hold_s) or hold_s <= 0:
            return
        room = slots - 1 - sum(held.requests for held in self._held.values())
        requests = min(requests, room)
        if requests > 0:
            self._held[client] = Reservation(
                client=client, requests=requests, priority=priority, until_s=now_s + min(hold_s, LONGEST_HOLD_S)
            )

    def started(self, client: str) -> None:
        """A request of the client started: it used one of its slots."""
        self._lapsed.pop(client, None)
        held = self._held.get(client)
        if held is None:
            return
        if held.requests > 1:
            self._held[client] = msgspec.structs.replace(held, requests=held.requests - 1)
        else:
            del self._held[client]

    def expire(self, now_s: float) -> None:
        for held in [held for held in self._held.values() if held.until_s <= now_s]:
            del self._held[held.client]
            self._lapsed[held.client] = None
            if len(self._lapsed) > REMEMBERED_CLIENTS:
                del self._lapsed[next(iter(self._lapsed))]

    def clear(self) -> None:
        self._held.clear()

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
