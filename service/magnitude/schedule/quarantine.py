"""Which request ends the engine. A pure state machine.

When an engine is lost in a way that a request can be the reason for, all that it held are suspects. With the next
engine they go on one after the other: each is tried beside none but those that have come further meanwhile. When the
engine is lost again and only one has not come any further since the time before, that one is the reason. It is
refused, and so is the same request when it is sent again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from magnitude.supervise.loss import EngineLoss

Progress = tuple[int, ...]

# Refused requests that are remembered, and for how long: clients that repeat a failed request do so within minutes,
# and a model or a version that was at fault is not the same tomorrow.
REMEMBERED = 64
REMEMBER_S = 3600.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`suspects` are to go on alone, `refused` not at all."""

    suspects: frozenset[int] = frozenset()
    refused: int | None = None


class Quarantine:
    """`now_s` is monotonic."""

    def __init__(self) -> None:
        self._blamed: dict[int, Progress] = {}  # by request: how far it was when an engine was lost with it
        self._fingerprints: dict[bytes, float] = {}

    def lost(self, loss: EngineLoss, running: Mapping[int, Progress]) -> Verdict:
        """An engine was lost that held the `running` requests, each so far advanced."""
        if not loss.blames_request or not running:
            return Verdict()
        stuck = [
            request_id
            for request_id, progress in running.items()
            if (before := self._blamed.get(request_id)) is not None and progress <= before
        ]
        if len(stuck) == 1:
            return Verdict(refused=stuck[0], suspects=self._suspect(running, stuck[0]))
        return Verdict(suspects=self._suspect(running))

    def _suspect(self, running: Mapping[int, Progress], refused: int | None = None) -> frozenset[int]:
        # The others are tried again as well: whether one of them had a part in it is not known.
        self._blamed |= running
        return frozenset(running) - {refused}

    def strikes(self, request_id: int) -> int:
        """Whether it was among the suspects of an earlier loss (1) or not (0)."""
        return int(request_id in self._blamed)

    def over(self, request_id: int) -> None:
        """The request has ended."""
        self._blamed.pop(request_id, None)

    def remember(self, fingerprint: bytes, now_s: float) -> None:
        """The request with this `fingerprint` was refused."""
        self._fingerprints.pop(fingerprint, None)
        self._fingerprints[fingerprint] = now_s
        while len(self._fingerprints) > REMEMBERED:
            del self._fingerprints[next(iter(self._fingerprints))]

    def knows(self, fingerprint: bytes, now_s: float) -> bool:
        """Whether such a request was refused lately."""
        at_s = self._fingerprints.get(fingerprint)
        return at_s is not None and now_s - at_s < REMEMBER_S

    @property
    def active(self) -> bool:
        """Whether there is anything to look a fingerprint up in; making one costs a hash over the prompt."""
        return bool(self._fingerprints)
