"""Which clocks, and which share of the time, the chip can hold. Pure choices over a ladder of levels."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from magnitude.governor.heat_model import HeatModel, Outlook
from magnitude.governor.thermal_prior import HeatPrior
from magnitude.governor.thermal_terms import LoadSight, Phase

# How far ahead is looked. Two minutes at what runs on average let the slow stages of a bare board (minutes) be used
# up only as fast as they refill; ten seconds at what runs now catch a burst.
MEAN_HORIZON_S = 120.0
NOW_HORIZON_S = 10.0
# The memory of what runs on average: several turns of an agent.
LOAD_TAU_S = 60.0
# Answers may be this much slower than at the fastest clock that heat allows, if that saves power: where memory is
# the limit, three percent of the speed cost a quarter of the power. Where they run on fewer threads than prompts,
# they have gained more than that already (a Raspberry Pi 5: 10 %, potato-os/core, benchmarks/mnn_spike_results.md);
# elsewhere nothing may be lost to speak of.
DECODE_TOLERANCE = 0.03
SAME_THREADS_TOLERANCE = 0.005
# Shares of the time in which the engine may compute, where clocks alone do not suffice or cannot be set. Nothing
# below a tenth: answers must still come.
DUTIES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


class Point(msgspec.Struct, frozen=True):
    """Levels (indices into the prior's ladder) for prompts and for answers, and the duty of both."""

    prefill: int
    decode: int
    duty: float = 1.0


class Mix(msgspec.Struct, frozen=True):
    """How much of the time prompts and answers took on average, at the levels and the duty that were in force: in
    time at the highest level. `saturated`: more was waiting."""

    prefill: float = 0.0
    decode: float = 0.0
    saturated: bool = False


class LoadMemory:
    """The mean load of the last minute or so, in work rather than in time: slower clocks do not make it look
    larger."""

    def __init__(self, prior: HeatPrior) -> None:
        self._prior = prior
        self._prefill = 0.0
        self._decode = 0.0
        self._busy = 0.0

    def add(self, load: LoadSight, point: Point, dt_s: float) -> None:
        levels = self._prior.levels
        step = min(1.0, dt_s / LOAD_TAU_S)
        prefill, decode = shares(load)
        self._prefill += (prefill * levels[point.prefill].prefill_rate * point.duty - self._prefill) * step
        self._decode += (decode * levels[point.decode].decode_rate * point.duty - self._decode) * step
        self._busy += (prefill + decode - self._busy) * step

    def mix(self, load: LoadSight) -> Mix:
        # A queue, or hardly any idle time, means that what is saved in one place is spent in the next.
        return Mix(self._prefill, self._decode, load.waiting > 0 or self._busy > 0.95)


def shares(load: LoadSight) -> tuple[float, float]:
    """Prefill's and decode's share of the time; where both run in turn, half each."""
    return load.prefill_share + load.mixed_share / 2, load.decode_share + load.mixed_share / 2


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """Outlooks from one moment: at what runs on average, and (unless idle) at what runs now."""

    mean: Outlook
    now: Outlook | None
    phase: Phase


class Ladder:
    """Chooses points by what the heat model forecasts."""

    def __init__(self, prior: HeatPrior, model: HeatModel) -> None:
        self._levels = prior.levels
        fewer = prior.decode_threads < prior.prefill_threads
        self._tolerance = DECODE_TOLERANCE if fewer else SAME_THREADS_TOLERANCE
        self._model = model
        self.top = len(prior.levels) - 1

    def mean(self, point: Point, mix: Mix) -> tuple[float, float, float]:
        """Shares of the time that the same work takes at `point` (prefill, decode), and the whole, which may be above
        1: then it cannot all be done."""
        prefill = mix.prefill / self._levels[point.prefill].prefill_rate / point.duty
        decode = mix.decode / self._levels[point.decode].decode_rate / point.duty
        whole = prefill + decode
        most = max(whole, 1e-9) if mix.saturated or whole > 1 else 1.0
        return prefill / most, decode / most, whole

    def power(self, point: Point, prefill: float, decode: float) -> tuple[float, float]:
        """Mean power of prefill and decode while they take these shares of the time."""
        levels = self._levels
        return (
            levels[point.prefill].prefill_w * prefill * point.duty,
            levels[point.decode].decode_w * decode * point.duty,
        )

    def full(self, point: Point) -> tuple[float, float]:
        """Power while that phase runs without a break that takes more."""
        return max(self.power(point, 1.0, 0.0), self.power(point, 0.0, 1.0), key=sum)

    def ahead(self, load: LoadSight, temp_c: float) -> Ahead:
        return Ahead(
            mean=self._model.outlook(MEAN_HORIZON_S, temp_c),
            now=None if load.phase == "idle" else self._model.outlook(NOW_HORIZON_S, temp_c),
            phase=load.phase,
        )

    def forecast_c(self, point: Point, mix: Mix, ahead: Ahead) -> tuple[float, float]:
        """The highest temperature that the point leads to within the horizons, and its uncertainty."""
        prefill, decode, _ = self.mean(point, mix)
        mean = self.power(point, prefill, decode)
        peaks = self.power(point, 1.0, 0.0), self.power(point, 0.0, 1.0)
        worst = max(ahead.mean.at(mean, peak) for peak in peaks)
        if ahead.now is not None:
            now = peaks[ahead.phase == "decode"]
            worst = max(worst, ahead.now.at(now, now))
        return worst

    def best(self, mix: Mix, ahead: Ahead, limit_c: float, *, clocks: bool, apart: bool) -> Point:
        """The fastest point that stays below `limit_c`. `clocks` False: clocks cannot be set, only the duty; `apart`:
        prompts and answers may have different clocks, because they change seldom enough."""
        for point in self._fastest_first(mix, clocks=clocks, apart=apart):
            forecast_c, sd_c = self.forecast_c(point, mix, ahead)
            if forecast_c + sd_c <= limit_c:
                return self._thrifty(point, mix, clocks=clocks, apart=apart)
        low = 0 if clocks else self.top
        return Point(low, low, DUTIES[-1])

    def _fastest_first(self, mix: Mix, *, clocks: bool, apart: bool) -> Iterator[Point]:
        if clocks:
            numbers = range(self.top + 1)
            points = [Point(p, d) for p in numbers for d in (numbers if apart else (p,))]
            # Without any work yet, both count alike.
            weighed = mix if mix.prefill + mix.decode > 1e-6 else Mix(0.5, 0.5)
            yield from sorted(points, key=lambda point: self.mean(point, weighed)[2])
        for duty in DUTIES:
            if duty < 1 or not clocks:
                low = 0 if clocks else self.top
                yield Point(low, low, duty)

    def _thrifty(self, point: Point, mix: Mix, *, clocks: bool, apart: bool) -> Point:
        """The same with the least clock for answers that costs them nothing to speak of. Where both share one clock,
        only when heat has taken the highest already: until then a prompt has it all."""
        if not clocks or not (apart or point.prefill < self.top):
            return point
        if apart:
            least = self._levels[point.decode].decode_rate * (1 - self._tolerance)
            number = next(n for n, level in enumerate(self._levels) if level.decode_rate >= least)
            return Point(point.prefill, min(number, point.decode), point.duty)
        fastest = self.mean(point, mix)[2]
        for number in range(point.prefill):
            if self.mean(Point(number, number), mix)[2] <= fastest * (1 + SAME_THREADS_TOLERANCE):
                return Point(number, number, point.duty)
        return point

    def holds(self, point: Point, temp_c: float, limit_c: float) -> bool:
        """Whether the point could run for ever, with everything against it: for a chip whose sensor is silent."""
        settles_c = self._model.settles_c(
            self.full(point), temp_c, ambient_margin_c=BLIND_AMBIENT_C, gain_margin=BLIND_GAIN
        )
        return settles_c <= limit_c

    def speed(self, point: Point, mix: Mix) -> float:
        """How fast the present mix of work runs, relative to full clocks."""
        weighed = mix if mix.prefill + mix.decode > 1e-6 else Mix(0.5, 0.5)
        return (weighed.prefill + weighed.decode) / max(self.mean(point, weighed)[2], 1e-9)


# Against a silent sensor: a room that warms by as much as a day in the sun, and a quarter more heat than was learned.
BLIND_AMBIENT_C = 10.0
BLIND_GAIN = 0.25
