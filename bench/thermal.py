"""What the thermal governor does for a board, in simulation: stock beside governed, on boards that are as their
profile says and on boards that are not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal

import msgspec

from bench.parallel import in_parallel
from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import load_profile, policy_name
from magnitude.board.snapshot import Snapshot
from magnitude.governor.thermal_terms import Effect, LoadSight, Phase, SetCaps, SetThreads
from magnitude.simulate.closed_loop import simulate
from magnitude.simulate.controllers import STOCK_THREADS, Controller, GovernedController, StockController
from magnitude.simulate.load import read_load
from magnitude.simulate.trace import Summary, Trace, ratio
from magnitude.simulate.variants import varied

Contender = Literal["off", "magnitude", "clocks only"]
CONTENDERS: tuple[Contender, ...] = ("off", "magnitude", "clocks only")
BOARDS = ("pi5-bare", "rock5b")
HOT_LOAD = "agent"
# Where nothing is limited by heat: little to do, or the same to do with a cooler.
COOL = (("pi5-bare", "light"), ("rock5b", "light"), ("pi5-cooler", "agent"))
# Shown, not judged: how much hangs on the load.
OTHER_LOADS = ("steady", "crowd", "chat")
# What is known of a board's heat is known to about so much.
UNSURE = 0.2

# What the governor is to reach against the same board without it.
LEAST_SPEED = 1.10
MOST_SPREAD = 1.3
MOST_ENERGY = 0.80
LEAST_COOL_SPEED = 0.99


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on what a profile says; the governor goes on believing the profile."""

    name: str
    resistance: float = 1.0
    capacity: float = 1.0
    power: float = 1.0


AS_PROFILED = Variant(name="as profiled")
VARIANTS = (
    AS_PROFILED,
    *(
        Variant(name=f"{what} {factor - 1:+.0%}", **{what: factor})
        for what, factor in itertools.product(("resistance", "capacity", "power"), (1 - UNSURE, 1 + UNSURE))
    ),
)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run."""

    board: str
    load: str
    variant: Variant
    contender: Contender
    hours: float
    ambient_c: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A governed run beside the stock run of the same board and load. `speed` is tokens a second over all the time;
    `busy_speed` while anything ran; `energy` is the whole board's for a token, `chip_energy` the chip's."""

    job: Job
    summary: Summary
    speed: float | None
    busy_speed: float | None
    energy: float | None
    chip_energy: float | None


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks that stay as they are, by phase, with `decode_threads` for answers."""

    prefill_khz: int
    decode_khz: int
    decode_threads: int


class FixedController:
    """Holds one operating point whatever happens."""

    name = "fixed"

    def __init__(self, profile: BoardProfile, point: Point) -> None:
        fastest = max(cluster.capacity for cluster in profile.clusters)
        self._policies = [
            policy_name(profile, index)
            for index, cluster in enumerate(profile.clusters)
            if cluster.capacity == fastest
        ]
        self._point = point
        self._phase: Phase | None = None

    def step(self, snapshot: Snapshot, load: LoadSight, now_s: float) -> Sequence[Effect]:
        point, effects = self._point, list[Effect]()
        if self._phase is None:
            effects.append(SetThreads(STOCK_THREADS, point.decode_threads, "fixed"))
        if load.phase != self._phase:
            self._phase = load.phase
            khz = point.decode_khz if load.phase == "decode" else point.prefill_khz
            effects.append(SetCaps(dict.fromkeys(self._policies, khz), "fixed"))
        return effects


def hot_jobs(hours: float, ambient_c: float) -> list[Job]:
    """The load that heats, on every board in every variant."""
    return [
        Job(board=board, load=HOT_LOAD, variant=variant, contender=contender, hours=hours, ambient_c=ambient_c)
        for board in BOARDS
        for variant in VARIANTS
        for contender in CONTENDERS
    ]


def cool_jobs(hours: float, ambient_c: float) -> list[Job]:
    """Loads that heat does not limit."""
    return [
        Job(board=board, load=load, variant=AS_PROFILED, contender=contender, hours=hours, ambient_c=ambient_c)
        for board, load in COOL
        for contender in CONTENDERS
    ]


def other_jobs(hours: float, ambient_c: float) -> list[Job]:
    """The boards under other loads that heat them."""
    return [
        Job(board=board, load=load, variant=AS_PROFILED, contender=contender, hours=hours, ambient_c=ambient_c)
        for board in BOARDS
        for load in OTHER_LOADS
        for contender in CONTENDERS
    ]


def run_job(job: Job) -> Trace:
    """The run itself. The governor is given the profile, the board its variant."""
    profile = load_profile(job.board)
    variant = job.variant
    board = varied(profile, resistance=variant.resistance, capacity=variant.capacity, power=variant.power)
    follow = job.contender != "clocks only"
    controller: Controller = (
        StockController()
        if job.contender == "off"
        else GovernedController(profile, threads=None if follow else STOCK_THREADS)
    )
    return simulate(
        board, read_load(job.load), controller, hours=job.hours, ambient_c=job.ambient_c, follow_threads=follow
    )


def run_all(jobs: Sequence[Job], progress: Callable[[str], None]) -> dict[Job, Summary]:
    """All of them, on all CPUs that there are."""
    return in_parallel(_summary, jobs, lambda done: progress(f"{done} of {len(jobs)} runs"))


def outcomes(results: dict[Job, Summary]) -> list[Outcome]:
    """Every governed run against the stock run of the same board, variant and load."""
    found = []
    for job, summary in results.items():
        if job.contender == "off":
            continue
        stock = results[msgspec.structs.replace(job, contender="off")]
        found.append(
            Outcome(
                job=job,
                summary=summary,
                speed=ratio(summary.tokens_s, stock.tokens_s),
                busy_speed=ratio(summary.busy_tokens_s, stock.busy_tokens_s),
                energy=ratio(summary.board_j_per_token, stock.board_j_per_token),
                chip_energy=ratio(summary.chip_j_per_token, stock.chip_j_per_token),
            )
        )
    return sorted(found, key=lambda each: _place(each.job))


def missed(found: Iterable[Outcome]) -> list[str]:
    """Goals that the governor did not reach, on boards that are as their profile says."""
    lines = []
    for each in found:
        job, summary = each.job, each.summary
        if job.variant != AS_PROFILED or job.contender != "magnitude" or job.load in OTHER_LOADS:
            continue
        where = f"{job.board}, {job.load}"
        if summary.soft_s:
            lines.append(f"{where}: {summary.soft_s} s at or above the soft limit, goal none")
        if (job.board, job.load) in COOL:
            if (each.busy_speed or 0.0) < LEAST_COOL_SPEED:
                lines.append(f"{where}: {each.busy_speed or 0:.3f} x the speed, goal {LEAST_COOL_SPEED:.2f}")
            continue
        if (each.speed or 0.0) < LEAST_SPEED:
            lines.append(f"{where}: {each.speed or 0:.3f} x the tokens/s, goal {LEAST_SPEED:.2f}")
        if (summary.inter_token_p95_over_p50 or 0.0) > MOST_SPREAD:
            lines.append(f"{where}: p95/p50 {summary.inter_token_p95_over_p50:.2f}, goal {MOST_SPREAD:.1f}")
        if (each.energy or 1.0) > MOST_ENERGY:
            lines.append(f"{where}: {each.energy or 0:.3f} x the energy a token, goal {MOST_ENERGY:.2f}")
    return lines


def best_fixed(board: str, hours: float, ambient_c: float, progress: Callable[[str], None]) -> tuple[Point, Summary]:
    """The fastest fixed operating point that never reaches the soft limit on this load: what a governor that knew
    everything beforehand, but held still, would take."""
    profile = load_profile(board)
    fastest = max(profile.clusters, key=lambda cluster: cluster.capacity)
    # Below half the highest clock nothing is fast.
    clocks = [opp.khz for opp in fastest.opps if opp.khz >= fastest.opps[-1].khz / 2]
    points = [
        Point(prefill_khz=prefill, decode_khz=decode, decode_threads=threads)
        for prefill in clocks
        for decode in clocks
        for threads in range(2, STOCK_THREADS + 1)
    ]
    run = partial(_fixed, board, hours, ambient_c)
    found = in_parallel(run, points, lambda done: progress(f"{board}: {done} of {len(points)} fixed points"))
    cool = {point: summary for point, summary in found.items() if not summary.soft_s}
    if not cool:
        raise ValueError(f"no fixed clock keeps {board} below its soft limit")
    return max(cool.items(), key=lambda each: each[1].tokens_s)


def _summary(job: Job) -> Summary:
    return run_job(job).summary


def _fixed(board: str, hours: float, ambient_c: float, point: Point) -> Summary:
    profile = load_profile(board)
    controller = FixedController(profile, point)
    return simulate(profile, read_load(HOT_LOAD), controller, hours=hours, ambient_c=ambient_c).summary


def _place(job: Job) -> tuple[int, str, int, int]:
    hot = (job.board, job.load) not in COOL
    return (0 if hot else 1, job.board, VARIANTS.index(job.variant), CONTENDERS.index(job.contender))
