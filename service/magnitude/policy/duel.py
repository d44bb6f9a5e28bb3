"""Two choices measured side by side: which one is faster, and when that is known well enough.

Both run under the same conditions (in turn while the engine is idle, or within the same half second of load), so that
what is compared is the ratio of their times. Whatever else the board does changes both alike.
"""

from __future__ import annotations

import math
from typing import Literal

from magnitude.policy.learned import Choice

# A P95 of 50 samples is the third largest of them. Of two equal choices whose times scatter by 17 % it is above 1.10
# times the other's in one of ten comparisons, and above 1.18 in one of a hundred (4,000 simulated).
MOST_P95 = 1.2

Verdict = Literal["open", "won", "lost", "even"]

# So many standard errors must lie between what was measured and the margin. Looks after each of the samples 50
# to 100 of two equal choices pass 3 of them, on either side, in one of sixty comparisons (3,000 simulated); and then
# the margin is still to be passed.
SURE = 3.0
# A hundredth of the time cannot be told from none where times scatter by a few per cent.
SAME_SPEED = 0.01
# What loses this clearly is given up early. With so few samples one of thirty equal choices is given up as well
# (3,000 simulated), and tried again when its time has come.
LEAST_SAMPLES = 8
# What surely takes so many times as long is hopeless, with other rows or tokens too, and is given up after so few
# samples: of prompts each one is a request that waited longer for its first token. Not one of 20,000 simulated
# comparisons of equal choices whose times scatter by 17 % ended so.
HOPELESS, HOPELESS_SAMPLES = 1.5, 4
# What wins by at least so much need not be measured to the percent: it is used after so many samples, which is the
# least window that the configuration allows. On a board where a pair takes half a minute that is minutes, not an
# hour.
CLEAR_GAIN, CLEAR_SAMPLES = 0.2, 20
# Further apart one of the two met a stall of the machine: no number of threads of a board costs that much more than
# another one.
OUTLIER = math.log(8.0)


class Duel:
    """`challenger` against `incumbent`. `least_gain` is the share of the time that it must save to win; with fewer
    threads the same speed will do."""

    def __init__(self, incumbent: Choice, challenger: Choice, *, window: int, least_gain: float) -> None:
        self.incumbent = incumbent
        self.challenger = challenger
        self.samples = 0
        self._window = window
        # What is as fast on fewer threads is better: it leaves cores and energy to others.
        self._margin = -SAME_SPEED if _fewer_threads(challenger, incumbent) else -math.log(1.0 - least_gain)
        self._mean = 0.0
        self._squares = 0.0
        self._times: tuple[list[float], list[float]] = ([], [])

    def add(self, incumbent_s: float, challenger_s: float) -> None:
        """A pair of times for the same work. What cannot be a time is left out."""
        if not (incumbent_s > 0 and challenger_s > 0 and math.isfinite(incumbent_s + challenger_s)):
            return
        ratio = min(OUTLIER, max(-OUTLIER, math.log(challenger_s / incumbent_s)))
        self.samples += 1
        for times, seconds in zip(self._times, (incumbent_s, challenger_s), strict=True):
            times.append(seconds)
        step = ratio - self._mean
        self._mean += step / self.samples
        self._squares += step * (ratio - self._mean)

    @property
    def ratio(self) -> float:
        """Time of the challenger by that of the incumbent, the geometric mean."""
        return math.exp(self._mean)

    @property
    def gain(self) -> float:
        """Share of the time that the challenger saves; negative when it takes longer."""
        return 1.0 - self.ratio

    @property
    def error(self) -> float:
        """Standard error of the logarithm of `ratio`."""
        if self.samples < 2:
            return math.inf
        return math.sqrt(self._squares / (self.samples - 1) / self.samples)

    @property
    def p95_ratio(self) -> float:
        """95th percentile of the challenger's times by the incumbent's; 1 while there are none."""
        if not self.samples:
            return 1.0
        at = math.ceil(0.95 * self.samples) - 1
        incumbent_s, challenger_s = (sorted(times)[at] for times in self._times)
        return challenger_s / incumbent_s

    def verdict(self) -> Verdict:
        """Won only after a full window (or where the gain is clear), and not at the price of a longer P95. Lost: it
        is slower, surely. Even: not better by the margin, and a full window has shown that (or twice a window could
        not)."""
        reach = SURE * self.error
        if self.samples >= HOPELESS_SAMPLES and self._mean - reach > math.log(HOPELESS):
            return "lost"
        if self.samples < LEAST_SAMPLES:
            return "open"
        if self._mean - reach > 0.0:
            return "lost"
        clear = self.samples >= CLEAR_SAMPLES and self._mean + reach < math.log(1.0 - CLEAR_GAIN)
        if self.samples < self._window and not clear:
            return "open"
        if self._mean + reach < -self._margin:
            return "won" if self.p95_ratio <= MOST_P95 else "lost"
        if self._mean - reach > -self._margin or self.samples >= 2 * self._window:
            return "even"
        return "open"


def _fewer_threads(one: Choice, other: Choice) -> bool:
    if one.session is None or other.session is None:
        return False
    same = (one.session.graph_file, one.chunk) == (other.session.graph_file, other.chunk)
    return same and one.session.threads < other.session.threads
