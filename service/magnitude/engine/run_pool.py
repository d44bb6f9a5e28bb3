"""How much memory the runs of this process need, told from what earlier runs left behind.

ONNX Runtime takes a run's activations from the heap and frees them, and the heap keeps the freed pages for the next
run. That is right as long as the next run needs as much, and wrong after one large run among small ones. So the
need is predicted: each size of run is known by the least that was ever held behind it, and the prediction is the
highest of the needs met lately, fading. What is held beyond it goes back to the kernel.
"""

from __future__ import annotations

from collections.abc import Callable

from magnitude.engine.process import trim_heap
from magnitude.engine.protocol import PoolUse
from magnitude.engine.stats import read_memory

# The predicted need halves after so many runs without a large one: a burst of large requests keeps its memory, a
# single one gives it back within about 16 small ones.
HALF_LIFE_RUNS = 8
# Held memory may be so much more than predicted before it is given back; fetching it again costs page faults, and
# giving back less than 4 MB is not worth the milliseconds.
SLACK = 2.0
LEAST_SURPLUS_BYTES = 4 * 1024 * 1024


class PoolForecast:
    """The prediction alone; pure."""

    def __init__(self) -> None:
        self._needs: dict[int, int] = {}
        self._needed = 0.0
        self._held = 0
        self._peak = 0
        self._sum = 0
        self._runs = 0
        self._trims = 0

    @property
    def use(self) -> PoolUse:
        return PoolUse(
            held_bytes=self._held,
            needed_bytes=int(self._needed),
            peak_bytes=self._peak,
            mean_bytes=self._sum // self._runs if self._runs else 0,
            runs=self._runs,
            trims=self._trims,
        )

    def ran(self, tokens: int, held_bytes: int) -> bool:
        """A run of `tokens` padded tokens is over, and `held_bytes` of heap are held. True: more than is needed."""
        size = max(1, tokens).bit_length()  # runs of like size: at most twice as large
        need = self._needs[size] = min(self._needs.get(size, held_bytes), held_bytes)
        self._needed = max(float(need), self._needed * 0.5 ** (1 / HALF_LIFE_RUNS))
        self._held = held_bytes
        self._peak = max(self._peak, held_bytes)
        self._sum += held_bytes
        self._runs += 1
        return held_bytes > SLACK * self._needed + LEAST_SURPLUS_BYTES

    def trimmed(self) -> None:
        self._held = 0
        self._trims += 1


class RunPool:
    """Watches the heap of this process behind each run and gives back what is held too much.

    What is left after giving back counts as no part of the pool: weights, packed weights, the interpreter.
    """

    def __init__(
        self,
        anon_bytes: Callable[[], int] = lambda: read_memory().anon_bytes,
        trim: Callable[[], None] = trim_heap,
    ) -> None:
        self._anon_bytes = anon_bytes
        self._trim = trim
        self._floor = anon_bytes()
        self._forecast = PoolForecast()

    @property
    def use(self) -> PoolUse:
        return self._forecast.use

    def ran(self, tokens: int) -> None:
        anon = self._anon_bytes()
        self._floor = min(self._floor, anon)
        if self._forecast.ran(tokens, anon - self._floor):
            self._trim()
            self._floor = self._anon_bytes()
            self._forecast.trimmed()
