"""What the processor's counters say of the engine's work, put together for the strategy loops and for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from magnitude.board.counters import CounterRates
from magnitude.engine.protocol import Heartbeat, Hello
from magnitude.feedback.counted import CounterWatch, Roofline, roofline
from magnitude.feedback.run_series import RunSeries

# A use of memory that differs by less says nothing; what is told of it would only wake the loops.
USE_DIGITS = 2


class CountersState(msgspec.Struct, frozen=True, kw_only=True):
    """`status`: whether anything is counted; `not_counted` says by figure why not. `rates` are of the last stretch of
    work (None: there was none yet). `roofline` has each model that generates, with where its figure comes from, and
    `bandwidth_use` is that of the one that decodes most: what the strategy loops go by."""

    status: Literal["counted", "partly counted", "not available"] = "not available"
    not_counted: dict[str, str] = {}
    rates: CounterRates | None = None
    roofline: dict[str, Roofline] = {}
    bandwidth_use: float | None = None


class CounterSight:
    """Fed by the service with the engine's heartbeats. `runs` are those of all models, `weights` the bytes of each
    model that generates, `read_bytes_s` what the board's memory gives at most (None: not known), `hello` what the
    engine said of itself."""

    def __init__(
        self,
        runs: RunSeries,
        *,
        hello: Callable[[], Hello | None],
        weights: Callable[[], Iterable[tuple[str, int]]],
        read_bytes_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = runs
        self._hello = hello
        self._weights = weights
        self._read_bytes_s = read_bytes_s
        self._clock = clock
        self._watch = CounterWatch()
        self._any = False

    def beat(self, heartbeat: Heartbeat) -> None:
        times, counted = self._runs.times, heartbeat.counted
        # Readings of which every figure is missing are none.
        self._any = counted is not None and any(value is not None for value in msgspec.structs.astuple(counted))
        self._watch.beat(counted if self._any else None, times.prefill_s + times.decode_s, self._clock())

    def engine_gone(self) -> None:
        self._watch.engine_gone()

    def bandwidth_use(self) -> float | None:
        """Of the model that decodes most; None: not known."""
        steps, weights = self._runs.single_steps(), dict(self._weights())
        known = [model for model in steps if model in weights]
        if not known:
            return None
        most = max(known, key=lambda model: steps[model].runs * steps[model].mean_s)
        use = self._roofline(weights[most], steps[most].mean_s).bandwidth_use
        return round(use, USE_DIGITS) if use is not None else None

    def state(self) -> CountersState:
        steps, hello = self._runs.single_steps(), self._hello()
        missing: Mapping[str, str] = hello.not_counted if hello is not None else {}
        return CountersState(
            status="not available" if not self._any else "partly counted" if missing else "counted",
            not_counted=dict(missing),
            rates=self._watch.rates,
            roofline={
                model: self._roofline(weight_bytes, steps[model].mean_s if model in steps else None)
                for model, weight_bytes in self._weights()
            },
            bandwidth_use=self.bandwidth_use(),
        )

    def _roofline(self, weight_bytes: int, step_s: float | None) -> Roofline:
        return roofline(self._watch.rates, read_bytes_s=self._read_bytes_s, weight_bytes=weight_bytes, step_s=step_s)
