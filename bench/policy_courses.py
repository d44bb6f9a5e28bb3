"""The strategy loop through hours of simulated time with costs that are known: does it keep still under noise, and
does it leave a strategy that is fast for those tasks only that survive it?

No board and no engine: runs take what a formula says, times a factor of chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.optimizer import Optimizer
from magnitude.policy.rules import ModelFacts, Rules
from magnitude.policy.situation import Part, Situation
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import BoardSeen, LoadSeen
from magnitude.simulate.engine import Errand, Scatter, SimulatedEngine, lognormal

ONE, TWO = SessionSpec(threads=1), SessionSpec(threads=2)
BOARD = BoardSeen(cores=(0, 1), usable=2)
# Seconds of a decode step and of a prompt's token by two threads: about what a Raspberry Pi 5 takes for a model of
# half a billion weights.
STEP_S, TOKEN_S = 0.040, 0.0045
CHUNK = 128
PREPARE_S = 0.5
NOISE = 0.3
MOST_SWITCHES_AN_HOUR = 2
TIMED_OUT_SHARE = 0.05
# By the last quarter what lets tasks time out is to be left for good; this is for the last one that had to show it.
MOST_LAST_SHARE = 0.01
TIMEOUT_S = 20.0
# Steps that are told together: half a second of them at most.
GROUP = 16

Fails = Callable[[Strategy, random.Random], bool]


class Course:
    """Tasks one after the other, with rests between them. `relative` is the time of a run by a session, by that of
    two threads; `fails` says whether a task times out."""

    def __init__(
        self,
        rules: Rules,
        relative: Mapping[SessionSpec, float],
        *,
        seed: int,
        scatter: Scatter = lognormal,
        fails: Fails = lambda strategy, chance: False,
        variants: tuple[str, ...] = (),
        variant_relative: float = 1.0,
    ) -> None:
        facts = ModelFacts(name="model", kind="decoder", own=TWO, chunk=CHUNK, max_batch=4, variants=variants)
        self.optimizer = Optimizer(facts, rules)
        self.engine = SimulatedEngine(self.optimizer, TWO, seed=seed, scatter=scatter, prepare_s=PREPARE_S)
        self.now_s = 0.0
        self.tasks: list[tuple[float, Strategy, bool]] = []
        self._relative = relative
        self._variant_relative = variant_relative
        self._fails = fails
        self._chance = random.Random(seed)

    def run(self, hours: float) -> None:
        self.engine.begin(BOARD, self.now_s)
        end_s = self.now_s + 3600.0 * hours
        while self.now_s < end_s:
            busy_until_s = self.now_s + self._chance.uniform(10.0, 60.0)
            while self.now_s < busy_until_s:
                self._task()
            self._rest(self._chance.uniform(5.0, 30.0))

    def switches(self) -> list[float]:
        """When another choice was put in force, or taken back."""
        return [at_s for at_s, decided in self.engine.decided if decided.kind in ("switch", "revert")]

    # --- inside ---

    def _task(self) -> None:
        engine, begin_s = self.engine, self.now_s
        self._tell(LoadSeen(entering=1))
        strategy = self.optimizer.strategy_for(Situation(tokens=CHUNK, cores=2))
        weights = self._variant_relative if strategy.variant else 1.0
        pieces, steps = self._chance.randint(1, 3), self._chance.randint(20, 120)
        for _ in range(pieces):
            self._runs("prefill", 1, CHUNK, weights)
        self._tell(LoadSeen(decoding=1))
        failed = self._fails(self.optimizer.strategy_for(Situation(tokens=CHUNK, cores=2)), self._chance)
        left = steps if not failed else round(TIMEOUT_S / STEP_S)
        while left > 0:
            count = min(left, GROUP, engine.runs_until_change("decode") or GROUP)
            self._runs("decode", count, 1, weights)
            left -= count
        run_s = self.now_s - begin_s
        used = msgspec.structs.replace(engine.strategy, variant=strategy.variant)
        self.tasks.append((self.now_s, used, failed))
        engine.task_over(run_s, pieces * CHUNK + steps, self.now_s, failed=failed, strategy=used)

    def _runs(self, part: Part, count: int, tokens: int, weights: float) -> None:
        engine = self.engine
        session = engine.session(part)
        run_s = self._cost(part, session, tokens) * weights
        self.now_s += count * run_s
        engine.ran(part, session, rows=1, tokens=tokens, runs=count, run_s=run_s, now_s=self.now_s)
        engine.advance(self.now_s)
        errand = engine.errand(self.now_s)
        if errand is not None:
            self._errand(errand)

    def _rest(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        self._tell(LoadSeen())
        while self.now_s < end_s:
            errand = self.engine.errand(self.now_s)
            if errand is not None:
                self._errand(errand)
                continue
            self.now_s = min(end_s, self.now_s + max(1e-3, self.engine.next_event_s(self.now_s)))
            self.engine.advance(self.now_s)

    def _errand(self, errand: Errand) -> None:
        run_s = self._cost(errand.part, errand.session, errand.tokens)
        self.now_s += run_s
        self.engine.errand_done(errand, run_s, self.now_s)
        self.engine.advance(self.now_s)

    def _tell(self, load: LoadSeen) -> None:
        self.engine.see_board(BOARD, self.now_s)
        self.engine.see_load(load, self.now_s)

    def _cost(self, part: Part, session: SessionSpec, tokens: int) -> float:
        return self._relative.get(session, 1.0) * (STEP_S if part == "decode" else TOKEN_S * tokens)


NoiseKind = Literal["each run", "each second", "each minute", "each session and second"]
NOISES: tuple[NoiseKind, ...] = ("each run", "each second", "each minute", "each session and second")


def noisy(kind: NoiseKind, seed: int) -> Scatter:
    """Factors within 30 % of 1: drawn for each run, for all runs of a second or of a minute, or (the hardest: it
    looks like a difference between sessions) for all runs of one session in a second."""
    moods = random.Random(seed)
    now: dict[object, float] = {}
    last: object = None

    def scatter(chance: random.Random, now_s: float, session: SessionSpec) -> float:
        nonlocal last
        if kind == "each run":
            return chance.uniform(1 - NOISE, 1 + NOISE)
        moment = int(now_s / 60) if kind == "each minute" else int(now_s)
        if moment != last:
            now.clear()
            last = moment
        whose = session if kind == "each session and second" else None
        if whose not in now:
            now[whose] = moods.uniform(1 - NOISE, 1 + NOISE)
        return now[whose]

    return scatter


class NoiseResult(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated hours of many seeds. `worst_hour`: the most switches within any hour of any seed. `gap`: by how much
    one thread is slower than two in truth."""

    noise: NoiseKind
    gap: float
    seeds: int
    hours: float
    switches_an_hour: float
    worst_hour: int
    ended_wrong: int

    @property
    def missed(self) -> list[str]:
        if self.worst_hour <= MOST_SWITCHES_AN_HOUR:
            return []
        return [
            f"noise of {self.noise}, {self.gap:.0%} apart: {self.worst_hour} switches in one hour, "
            f"goal {MOST_SWITCHES_AN_HOUR}"
        ]


def noise_course(kind: NoiseKind, gap: float, seed: int, hours: float) -> tuple[list[float], bool]:
    """When it switched, and whether it ended with the slower session."""
    course = Course(Rules(), {ONE: 1.0 + gap}, seed=seed, scatter=noisy(kind, seed))
    course.run(hours)
    return course.switches(), gap > 0.0 and course.engine.strategy.decode == ONE


def noise_result(kind: NoiseKind, gap: float, hours: float, courses: list[tuple[list[float], bool]]) -> NoiseResult:
    return NoiseResult(
        noise=kind,
        gap=gap,
        seeds=len(courses),
        hours=hours,
        switches_an_hour=sum(len(times) for times, _ in courses) / (len(courses) * hours),
        worst_hour=max(most_in_an_hour(times) for times, _ in courses),
        ended_wrong=sum(wrong for _, wrong in courses),
    )


def most_in_an_hour(times_s: list[float]) -> int:
    """The most of them within any hour."""
    return max((sum(at <= other < at + 3600.0 for other in times_s) for at in times_s), default=0)


Survivor = Literal["session", "weights"]
SURVIVORS: tuple[Survivor, ...] = ("session", "weights")


class SurvivorsResult(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy that takes `relative` of the time and lets some tasks time out, over many seeds. `without`: the same
    where none does, to show that it would be chosen. `tasks_under_it` is the mean number of tasks that ran with it
    before it was left for good; `last_share` the share of the last quarter's tasks that still did."""

    what: Survivor
    relative: float
    seeds: int
    hours: float
    chosen_without: int
    chosen_with: int
    tasks_under_it: float
    failed_tasks: float
    last_share: float

    @property
    def missed(self) -> list[str]:
        found = []
        if self.chosen_without < self.seeds:
            found.append(f"{self.what}: without failures only {self.chosen_without} of {self.seeds} seeds choose it")
        if self.chosen_with:
            found.append(f"{self.what}: {self.chosen_with} of {self.seeds} seeds end with it although tasks time out")
        elif self.last_share > MOST_LAST_SHARE:
            found.append(
                f"{self.what}: {self.last_share:.1%} of the last quarter's tasks run with it although tasks time "
                f"out, goal {MOST_LAST_SHARE:.0%}"
            )
        return found


class SurvivorCourse(msgspec.Struct, frozen=True, kw_only=True):
    """One seed. `ends_with` and `tasks_under` are about the strategy in question."""

    ends_with: bool
    tasks_under: int
    failed: int
    last_share: float


def survivor_course(what: Survivor, relative: float, seed: int, hours: float, *, failing: bool) -> SurvivorCourse:
    """`hours` with it."""

    def under(strategy: Strategy) -> bool:
        return bool(strategy.variant) if what == "weights" else strategy.decode == ONE

    def fails(strategy: Strategy, chance: random.Random) -> bool:
        return failing and under(strategy) and chance.random() < TIMED_OUT_SHARE

    if what == "session":
        course = Course(Rules(), {ONE: relative}, seed=seed, fails=fails)
    else:
        rules = Rules(prefer="speed")
        course = Course(
            rules, {ONE: 1.4}, seed=seed, fails=fails, variants=("smaller weights",), variant_relative=relative
        )
    course.run(hours)
    last = [strategy for at_s, strategy, _ in course.tasks if at_s > 0.75 * course.now_s]
    ends_with = under(course.optimizer.strategy_for(Situation(tokens=CHUNK, cores=2)))
    return SurvivorCourse(
        ends_with=ends_with,
        tasks_under=sum(under(strategy) for _, strategy, _ in course.tasks),
        failed=sum(failed for _, _, failed in course.tasks),
        last_share=sum(under(strategy) for strategy in last) / max(1, len(last)),
    )


def survivors_result(
    what: Survivor, relative: float, hours: float, failing: list[SurvivorCourse], without: list[SurvivorCourse]
) -> SurvivorsResult:
    return SurvivorsResult(
        what=what,
        relative=relative,
        seeds=len(failing),
        hours=hours,
        chosen_without=sum(course.ends_with for course in without),
        chosen_with=sum(course.ends_with for course in failing),
        tasks_under_it=sum(course.tasks_under for course in failing) / len(failing),
        failed_tasks=sum(course.failed for course in failing) / len(failing),
        last_share=sum(course.last_share for course in failing) / len(failing),
    )
