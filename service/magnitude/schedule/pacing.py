"""The share of the time for which the engine may compute: what several sides ask for, put together and sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from magnitude.engine.message import Message
from magnitude.engine.protocol import Pace

# A change by less is not worth a message: no client can tell it, and a clock that hunts would send ten a second.
LEAST_CHANGE = 0.01
# Even when several sides want next to nothing: with less, nobody could tell a paced engine from a dead one.
LEAST_SHARE = 0.005


class Link(Protocol):
    """An engine's connection."""

    def send(self, message: Message) -> None: ...


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Of the time, above 0 and at most 1: for runs of prompts, encoders and tensors, and for runs of answers."""

    prefill: float = 1.0
    decode: float = 1.0


FULL = Shares()


class Pacing:
    """Sides are known by a name and hold until they set something else. Together they leave the product of their
    shares. `next_id` gives messages their numbers. Not thread-safe: for the service's event loop."""

    def __init__(self, next_id: Callable[[], int]) -> None:
        self._next_id = next_id
        self._by_source: dict[str, Shares] = {}
        self._sent = FULL  # a new engine computes all the time
        self._link: Link | None = None

    @property
    def by_source(self) -> Mapping[str, Shares]:
        """What each side asks for; sides that ask for nothing are left out."""
        return self._by_source

    @property
    def shares(self) -> Shares:
        """What holds now."""
        return self.without("")

    def without(self, source: str) -> Shares:
        """What all others than `source` leave."""
        prefill = decode = 1.0
        for name, shares in self._by_source.items():
            if name == source:
                continue
            prefill *= shares.prefill
            decode *= shares.decode
        return Shares(prefill=max(LEAST_SHARE, prefill), decode=max(LEAST_SHARE, decode))

    def set(self, source: str, prefill: float, decode: float) -> None:
        """`source` wants these shares from now on; 1 asks for nothing. Raises `ValueError` for what is no share."""
        if not (0 < prefill <= 1 and 0 < decode <= 1):
            raise ValueError(f"shares of the time are above 0 and at most 1, not {prefill} and {decode}")
        if prefill == decode == 1:
            self._by_source.pop(source, None)
        else:
            self._by_source[source] = Shares(prefill=prefill, decode=decode)
        self._send()

    def engine_up(self, link: Link) -> None:
        """Another engine serves, which is to be told."""
        self._link, self._sent = link, FULL
        self._send()

    def engine_down(self) -> None:
        self._link = None

    def _send(self) -> None:
        shares = self.shares
        if self._link is None or not _differ(shares, self._sent):
            return
        self._sent = shares
        self._link.send(Pace(request_id=self._next_id(), prefill=shares.prefill, decode=shares.decode))


def _differ(one: Shares, other: Shares) -> bool:
    if one == other:
        return False
    pairs = ((one.prefill, other.prefill), (one.decode, other.decode))
    # All of the time is always said: a pace that was nearly that would never be taken back.
    return one == FULL or any(abs(a - b) > LEAST_CHANGE * b for a, b in pairs)
