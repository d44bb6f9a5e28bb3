"""How often to look. Pure."""

from __future__ import annotations

from magnitude.errors import ConfigError

# A chip's own time constant is seconds; ten looks a second see every move that can be acted on.
FAST_S = 0.1
# While nothing moves. Without load a fanless board takes minutes to change by a degree.
STILL_S = 1.0
CALM_S = 2.0
# So long without a move: still, and calm.
STILL_AFTER_S = 10.0
CALM_AFTER_S = 60.0
# A Raspberry Pi's sensor counts in steps of 0.55 °C and flickers between two of them.
MOVE_C = 1.0


def check_period(period_s: float) -> float:
    """The period, if it can be had. Raises `ConfigError`."""
    if not period_s >= FAST_S:
        raise ConfigError(
            f"the board cannot be sampled every {period_s * 1000:g} ms",
            hint="100 ms is the fastest: sensors convert no quicker, and reading them would itself take CPU time and "
            "warm the chip",
        )
    return period_s


class SamplingRate:
    """Tell it what was seen; ask for the period. `fast_s` while temperatures move, or nothing is known."""

    def __init__(self, fast_s: float = FAST_S) -> None:
        self._fast_s = check_period(fast_s)
        self._reference_c: float | None = None
        self._moved_s: float | None = None

    def saw(self, temp_c: float | None, now_s: float) -> None:
        reference = self._reference_c
        if temp_c is None and reference is None and self._moved_s is not None:
            return
        if temp_c is None or reference is None or abs(temp_c - reference) >= MOVE_C:
            self._reference_c, self._moved_s = temp_c, now_s

    def hurry(self, now_s: float) -> None:
        """Something is about to move."""
        self._moved_s = now_s

    def period_s(self, now_s: float) -> float:
        flat_s = now_s - self._moved_s if self._moved_s is not None else 0.0
        if flat_s < STILL_AFTER_S:
            return self._fast_s
        return max(self._fast_s, STILL_S if flat_s < CALM_AFTER_S else CALM_S)
