"""Which clocks, and which share of the time, the chip can hold. Pure choices over a ladder of levels."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from magnitude.governor.heat_model import PEAK_TAU_S, HeatModel, Outlook
from magnitude.governor.thermal_prior import HeatPrior
from magnitude.governor.thermal_terms import LoadSight, Phase

# How far ahead is looked. Two minutes at what runs on average let the slow stages of a bare board (minutes) be used
# up only as fast as they refill; ten seconds at what runs now catch a burst.
MEAN_HORIZON_S = 120.0
NOW_HORIZON_S = 10.0
# The memory of what runs on average: several turns of an agent. With three minutes the simulated speed was
# the same within half a percent.
LOAD_TAU_S = 60.0
# Answers may be this much slower than the fastest that heat allows, if that saves power: where memory is the limit,
# three percent of the speed are a seventh of their power on a Raspberry Pi 5 and half of it on an RK3588, by the
# profiles. But never slower than they would be with as many threads as prompts, but for the smaller tolerance: what
# is given away is what the choice of threads has gained before.
DECODE_TOLERANCE = 0.03
PLAIN_TOLERANCE = 0.005
# Shares of the time in which the engine may compute, where clocks alone do not suffice or cannot be set. Nothing
# below a tenth: answers must still come.
DUTIES = tuple(round(1.0 - 0.05 * step, 2) for step in range(19))


# Against a silent sensor: a room that warms by as much as a day in the sun, and a quarter more heat than was learned.
BLIND_AMBIENT_C = 10.0
BLIND_GAIN = 0.25


class Point(msgspec.Struct, frozen=True):
    """Levels (indices into the prior's ladder) for prompts and for answers, which of the numbers of threads answers
    have (an index into the level's), and the duty of both."""

    prefill: int
    decode: int
    threads: int = -1
    duty: float = 1.0


# Weight of a stretch that is longer than those before it, against a shorter one: so the length that is kept is passed
# by about one in ten.
LONGER_SHARE = 0.8


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
        self._phase: Phase = "idle"
        self._lasted_s = 0.0
        self._lengths_s: dict[Phase, float] = {}

    def add(self, load: LoadSight, point: Point, dt_s: float) -> None:
        self._lasted_s += dt_s
        if load.phase != self._phase:
            before_s = self._lengths_s.get(self._phase, self._lasted_s)
            # The longer ones count more: it is their end that is hottest.
            share = LONGER_SHARE if self._lasted_s > before_s else 1 - LONGER_SHARE
            self._lengths_s[self._phase] = before_s + share * (self._lasted_s - before_s)
            self._phase, self._lasted_s = load.phase, 0.0
        levels = self._prior.levels
        step = min(1.0, dt_s / LOAD_TAU_S)
        prefill, decode = shares(load)
        self._prefill += (prefill * levels[point.prefill].prefill_rate * point.duty - self._prefill) * step
        self._decode += (decode * levels[point.decode].decode[point.threads].rate * point.duty - self._decode) * step
        self._busy += (prefill + decode - self._busy) * step

    def length_s(self, phase: Phase) -> float | None:
        """How long a long stretch of a phase lasts; None: there was none yet."""
        known_s = self._lengths_s.get(phase)
        if phase == self._phase:
            return max(known_s or 0.0, self._lasted_s) if known_s is not None else None
        return known_s

    def mix(self, load: LoadSight) -> Mix:
        # A queue, or hardly any idle time, means that what is saved in one place is spent in the next.
        return Mix(self._prefill, self._decode, load.waiting > 0 or self._busy > 0.95)


def shares(load: LoadSight) -> tuple[float, float]:
    """Prefill's and decode's share of the time; where both run in turn, half each."""
    return load.prefill_share + load.mixed_share / 2, load.decode_share + load.mixed_share / 2


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """Outlooks from one moment: at what runs on average, and (unless idle) at what runs now. `peaks`: how far the
    fast stages follow prompts and answers, from their mean (0) to their full power (1)."""

    mean: Outlook
    now: Outlook | None
    phase: Phase
    peaks: tuple[float, float]


class Ladder:
    """Chooses points by what the heat model forecasts."""

    def __init__(self, prior: HeatPrior, model: HeatModel) -> None:
        self._levels = prior.levels
        self._choices = range(len(prior.levels[0].decode))
        self._model = model
        self._fast_tau_s = max((stage.tau_s for stage in prior.stages if stage.tau_s < PEAK_TAU_S), default=1.0)
        self.top = len(prior.levels) - 1

    def mean(self, point: Point, mix: Mix) -> tuple[float, float, float]:
        """Shares of the time that the same work takes at `point` (prefill, decode), and the whole, which may be above
        1: then it cannot all be done."""
        prefill = mix.prefill / self._levels[point.prefill].prefill_rate / point.duty
        decode = mix.decode / self._levels[point.decode].decode[point.threads].rate / point.duty
        whole = prefill + decode
        most = max(whole, 1e-9) if mix.saturated or whole > 1 else 1.0
        return prefill / most, decode / most, whole

    def power(self, point: Point, prefill: float, decode: float) -> tuple[float, float]:
        """Mean power of prefill and decode while they take these shares of the time."""
        levels = self._levels
        return (
            levels[point.prefill].prefill_w * prefill * point.duty,
            levels[point.decode].decode[point.threads].watts * decode * point.duty,
        )

    def full(self, point: Point) -> tuple[float, float]:
        """Power while that phase runs without a break that takes more."""
        return max(self.power(point, 1.0, 0.0), self.power(point, 0.0, 1.0), key=sum)

    def ahead(self, load: LoadSight, memory: LoadMemory, temp_c: float) -> Ahead:
        return Ahead(
            peaks=(self._follows(memory.length_s("prefill")), self._follows(memory.length_s("decode"))),
            mean=self._model.outlook(MEAN_HORIZON_S, temp_c),
            now=None if load.phase == "idle" else self._model.outlook(NOW_HORIZON_S, temp_c),
            phase=load.phase,
        )

    def _follows(self, length_s: float | None) -> float:
        return 1.0 if length_s is None else 1 - math.exp(-length_s / self._fast_tau_s)

    def forecast_c(self, point: Point, mix: Mix, ahead: Ahead) -> tuple[float, float]:
        """The highest temperature that the point leads to within the horizons, and its uncertainty."""
        prefill, decode, _ = self.mean(point, mix)
        mean = self.power(point, prefill, decode)
        peaks = self.power(point, 1.0, 0.0), self.power(point, 0.0, 1.0)
        worst = max(
            ahead.mean.at(mean, _between(mean, peak, share)) for peak, share in zip(peaks, ahead.peaks, strict=True)
        )
        if ahead.now is not None:
            now = peaks[ahead.phase == "decode"]
            worst = max(worst, ahead.now.at(now, now))
        return worst

    def best(self, mix: Mix, ahead: Ahead, limit_c: float, *, fixed: int | None, apart: bool) -> Point:
        """The fastest point that stays below `limit_c`. `fixed`: clocks cannot be set and allow this level, so
        that only the duty is left; `apart`: prompts and answers may have different clocks, because they change
        seldom enough."""
        for point in self._fastest_first(mix, fixed=fixed, apart=apart):
            forecast_c, sd_c = self.forecast_c(point, mix, ahead)
            if forecast_c + sd_c <= limit_c:
                return self._thrifty(point, apart=apart and fixed is None)
        return self.lowest(DUTIES[-1], fixed)

    def lowest(self, duty: float, fixed: int | None) -> Point:
        """The least that clocks allow, at a duty."""
        low = 0 if fixed is None else fixed
        threads = min(self._choices, key=lambda number: self._levels[low].decode[number].watts)
        return Point(low, low, threads, duty)

    def _fastest_first(self, mix: Mix, *, fixed: int | None, apart: bool) -> Iterator[Point]:
        # Without any work yet, both count alike.
        weighed = mix if mix.prefill + mix.decode > 1e-6 else Mix(0.5, 0.5)
        if fixed is None:
            points = self._points(apart=apart)
            yield from sorted(points, key=lambda point: (self.mean(point, weighed)[2], -point.prefill))
        for duty in DUTIES:
            if duty < 1 or fixed is not None:
                points = [msgspec.structs.replace(self.lowest(duty, fixed), threads=n) for n in self._choices]
                yield from sorted(points, key=lambda point: self.mean(point, weighed)[2])

    def _points(self, *, apart: bool) -> list[Point]:
        numbers = range(self.top + 1)
        return [
            Point(p, d, threads) for p in numbers for d in (numbers if apart else (p,)) for threads in self._choices
        ]

    def _thrifty(self, point: Point, *, apart: bool) -> Point:
        """The same with the least power for answers that costs them nothing to speak of."""
        rate = self._levels[point.decode].decode[point.threads].rate
        least = max(rate * (1 - DECODE_TOLERANCE), min(rate, 1.0) * (1 - PLAIN_TOLERANCE))
        decodes = range(point.decode + 1) if apart else (point.decode,)
        found = [
            (answering.watts, number, threads)
            for number in decodes
            for threads, answering in enumerate(self._levels[number].decode)
            if answering.rate >= least
        ]
        _, number, threads = min(found)
        return Point(point.prefill, number, threads, point.duty)

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


def _between(mean: tuple[float, float], peak: tuple[float, float], share: float) -> tuple[float, float]:
    return mean[0] + share * (peak[0] - mean[0]), mean[1] + share * (peak[1] - mean[1])
