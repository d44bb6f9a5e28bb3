"""What replacing an engine took, part by part."""

from __future__ import annotations

import logging

import msgspec

from magnitude.supervise.loss import EngineLoss, LossCause

log = logging.getLogger("magnitude.supervise")


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """From the moment an engine is known to be lost until the next one works for those that waited.

    `lost_s` is that moment by the monotonic clock (CLOCK_MONOTONIC: of this machine and boot). `start_s`: until a
    process had said hello; `load_s`: until the models that were needed were loaded; `first_step_s`: until the first
    result for a request. None: not there yet, or, for the first step, nobody waited. `engines`: how many were started
    for it; `spare`: the one that serves had been started ahead.
    """

    cause: LossCause
    lost_s: float
    open_requests: int
    engines: int = 0
    spare: bool = False
    start_s: float | None = None
    load_s: float | None = None
    first_step_s: float | None = None

    @property
    def total_s(self) -> float:
        return sum(part for part in (self.start_s, self.load_s, self.first_step_s) if part is not None)


class RecoveryClock:
    """Notes when each part is over. `last` is the recovery under way, or the last one. `now_s` is monotonic."""

    def __init__(self) -> None:
        self.last: Recovery | None = None
        self._up = True
        self._at_s = 0.0  # when the last part was over

    def lost(self, loss: EngineLoss, open_requests: int, now_s: float) -> None:
        if self._up or self.last is None:
            self.last = Recovery(cause=loss.cause, lost_s=now_s, open_requests=open_requests)
        self._up = False

    def started(self, now_s: float, *, spare: bool) -> None:
        """An engine has said hello. With one that was lost while it started, all of its time was the start's."""
        if self._up or self.last is None:
            return
        self.last = msgspec.structs.replace(
            self.last, engines=self.last.engines + 1, spare=spare, start_s=now_s - self.last.lost_s, load_s=None
        )
        self._at_s = now_s

    def loaded(self, now_s: float) -> None:
        """It serves."""
        if self._up or self.last is None:
            return
        self._up = True
        self.last = msgspec.structs.replace(self.last, load_s=now_s - self._at_s)
        self._at_s = now_s
        if not self.last.open_requests:
            self._tell(self.last)

    def answered(self, now_s: float) -> None:
        """A request has a result."""
        last = self.last
        if last is None or not self._up or not last.open_requests or last.first_step_s is not None:
            return
        self.last = msgspec.structs.replace(last, first_step_s=now_s - self._at_s)
        self._tell(self.last)

    @staticmethod
    def _tell(recovery: Recovery) -> None:
        fields = {
            name: round(value, 3)
            for name in ("start_s", "load_s", "first_step_s")
            if (value := getattr(recovery, name)) is not None
        }
        log.info(
            "engine replaced",
            extra={"fields": fields | {"spare": recovery.spare, "open_requests": recovery.open_requests}},
        )
