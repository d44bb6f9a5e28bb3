"""The strategy loop on simulated boards, beside an engine that takes all cores and knows nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from bench.parallel import in_parallel
from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import load_profile
from magnitude.board.snapshot import Snapshot
from magnitude.governor.thermal_terms import Effect, LoadSight, SetThreads
from magnitude.simulate.closed_loop import simulate
from magnitude.simulate.controllers import Controller, GovernedController, StockController
from magnitude.simulate.load import read_load
from magnitude.simulate.optimized import all_cores, optimized_engine
from magnitude.simulate.trace import Summary, Trace, ratio

Contender = Literal["all cores", "loop", "loop and governor"]
CONTENDERS: tuple[Contender, ...] = ("all cores", "loop", "loop and governor")
BOARDS = ("pi5-bare", "pi5-cooler", "rock5b")
LOADS = ("agent", "chat", "steady")
# A load that leaves a board idle for most of the time has the same tokens a second whoever runs it: there speed is
# while anything ran.
IDLE_LOADS = ("chat",)
LEAST_SPEED = 1.25


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run, or the best fixed numbers of threads (`threads`: for prompts and for answers)."""

    board: str
    load: str
    hours: float
    contender: Contender | None = None
    threads: tuple[int, int] | None = None
    seed: int | None = None


class FixedThreads:
    """Holds these numbers of threads, and no limit on clocks."""

    name = "fixed"

    def __init__(self, prefill: int, decode: int) -> None:
        self._effects: tuple[Effect, ...] = (SetThreads(prefill, decode, "fixed"),)

    def step(self, snapshot: Snapshot, load: LoadSight, now_s: float) -> Sequence[Effect]:
        effects, self._effects = self._effects, ()
        return effects


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A run beside the one with all cores on the same board and load: tokens a second (answers, prompts), the 95th
    percentiles of the time to the first token and between two tokens, energy of the board for a token."""

    board: str
    load: str
    contender: str
    speed: float | None
    prompt_speed: float | None
    ttft_p95: float | None
    inter_token_p95: float | None
    energy: float | None
    summary: Summary


def jobs(hours: float, boards: Sequence[str] = BOARDS, loads: Sequence[str] = LOADS) -> list[Job]:
    """The contenders, and every pair of thread numbers that could be the best one."""
    found = []
    for board in boards:
        for load in loads:
            found += [Job(board=board, load=load, hours=hours, contender=contender) for contender in CONTENDERS]
            pairs = thread_pairs(load_profile(board))
            found += [Job(board=board, load=load, hours=hours, threads=pair) for pair in pairs]
    return found


def thread_pairs(profile: BoardProfile) -> list[tuple[int, int]]:
    """Threads for prompts and for answers, the fastest cores first: what a user could set and leave. Prompts compute,
    so that fewer cores than half of them are never best."""
    every = all_cores(profile)
    big = sum(len(one.cpus) for one in profile.clusters if one.capacity == max(c.capacity for c in profile.clusters))
    return [(prefill, decode) for prefill in sorted({big, every}) for decode in sorted({*range(1, big + 1), every})]


def run_job(job: Job) -> Trace:
    """The run itself. What learns begins with all cores as well, and knows nothing."""
    profile, load = load_profile(job.board), read_load(job.load)
    if job.seed is not None:
        load = msgspec.structs.replace(load, seed=job.seed)
    if job.threads is not None:
        return simulate(profile, load, FixedThreads(*job.threads), hours=job.hours, threads=all_cores(profile))
    controller: Controller = (
        GovernedController(profile) if job.contender == "loop and governor" else StockController()
    )
    if job.contender == "all cores":
        return simulate(profile, load, controller, hours=job.hours, threads=all_cores(profile))
    engine = optimized_engine(profile, load)
    return simulate(profile, load, controller, hours=job.hours, engine=engine)


def run_all(work: Sequence[Job], progress: Callable[[str], None]) -> dict[Job, Summary]:
    """All of them, on all CPUs that there are."""
    return in_parallel(_summary, work, lambda done: progress(f"{done} of {len(work)} runs"))


def outcomes(results: dict[Job, Summary]) -> list[Outcome]:
    """Those that learn, and of the fixed ones the fastest of each board and load."""
    found = []
    for job, base in results.items():
        if job.contender != "all cores":
            continue
        mine = [(one, summary) for one, summary in results.items() if (one.board, one.load) == (job.board, job.load)]
        fixed = [(one, summary) for one, summary in mine if one.threads is not None]
        if fixed:
            best, summary = max(fixed, key=lambda pair: _speed(job.load, pair[1]) or 0.0)
            found.append(_outcome(job, f"best fixed: {_named(best)}", summary, base))
        found += [
            _outcome(job, one.contender, summary, base)
            for one, summary in mine
            if one.contender is not None and one.contender != "all cores"
        ]
    order = {name: at for at, name in enumerate(CONTENDERS)}
    return sorted(found, key=lambda one: (one.board, LOADS.index(one.load), order.get(one.contender, -1)))  # type: ignore[call-overload]


def missed(found: Sequence[Outcome]) -> list[str]:
    """Where neither with the governor nor without it the goal is reached."""
    lines = []
    for board, load in dict.fromkeys((one.board, one.load) for one in found):
        mine = [one for one in found if (one.board, one.load) == (board, load)]
        loops = [one for one in mine if one.contender in CONTENDERS]
        best = max(loops, key=lambda one: one.speed or 0.0)
        if (best.speed or 0.0) < LEAST_SPEED:
            fixed = max((one.speed or 0.0 for one in mine if one not in loops), default=0.0)
            lines.append(
                f"simulated {board}, {load}: {best.speed or 0:.3f} x the tokens/s ({best.contender}), goal "
                f"{LEAST_SPEED:.2f}; the best fixed numbers of threads reach {fixed:.3f}"
            )
    return lines


def _outcome(job: Job, contender: str, summary: Summary, base: Summary) -> Outcome:
    return Outcome(
        board=job.board,
        load=job.load,
        contender=contender,
        speed=ratio(_speed(job.load, summary), _speed(job.load, base)),
        prompt_speed=ratio(summary.prompt_tokens, base.prompt_tokens),
        ttft_p95=ratio(summary.ttft_p95_s, base.ttft_p95_s),
        inter_token_p95=ratio(summary.inter_token_p95_s, base.inter_token_p95_s),
        energy=ratio(summary.board_j_per_token, base.board_j_per_token),
        summary=summary,
    )


def _speed(load: str, summary: Summary) -> float | None:
    return summary.busy_tokens_s if load in IDLE_LOADS else summary.tokens_s


def _named(job: Job) -> str:
    assert job.threads is not None
    return f"{job.threads[0]}, {job.threads[1]}"


def _summary(job: Job) -> Summary:
    return run_job(job).summary
