"""Agents, board and controller together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import pytest

from magnitude.board.profiles import load_profile
from magnitude.board.snapshot import Snapshot
from magnitude.governor.thermal_terms import (
    Effect,
    LoadSight,
    PreferSmaller,
    SetCaps,
    SetConcurrency,
    SetDuty,
    SetThreads,
)
from magnitude.simulate.closed_loop import simulate
from magnitude.simulate.controllers import GovernedController, StockController
from magnitude.simulate.load import read_load
from magnitude.simulate.trace import Latencies, most_within, percentile
from magnitude.simulate.variants import varied


class Scripted:
    """Asks for some effects when it is first asked itself, and notes what it sees."""

    name = "scripted"

    def __init__(self, *effects: Effect) -> None:
        self._effects = effects
        self.seen: list[tuple[float, LoadSight, Snapshot]] = []

    def step(self, snapshot: Snapshot, load: LoadSight, now_s: float) -> Sequence[Effect]:
        self.seen.append((now_s, load, snapshot))
        effects, self._effects = self._effects, ()
        return effects


COOL = load_profile("pi5-cooler")
STEADY = read_load("steady")


def rate(*effects: Effect, follow_threads: bool = True) -> float:
    """Tokens a second of one long answer after the other, far from any heat."""
    run = simulate(COOL, STEADY, Scripted(*effects), hours=0.05, ambient_c=10, follow_threads=follow_threads)
    return run.summary.tokens_s


def test_a_bare_board_throttles_by_itself_and_is_kept_from_that_by_the_governor() -> None:
    bare, load = load_profile("pi5-bare"), read_load("agent")
    stock = simulate(bare, load, StockController(), hours=0.5).summary
    governed = simulate(bare, load, GovernedController(bare), hours=0.5).summary
    assert stock.soft_s > 1200
    assert governed.soft_s == governed.hard_s == 0
    assert stock.cap_changes == 0 < governed.cap_changes
    assert governed.board_j_per_token is not None
    assert stock.board_j_per_token is not None
    assert governed.board_j_per_token < stock.board_j_per_token


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    bare, load = load_profile("pi5-bare"), read_load("agent")
    first, again, other = (
        simulate(bare, load, StockController(), hours=0.1, seed=seed).summary for seed in (5, 5, 6)
    )
    assert first == again
    assert first.tokens != other.tokens


def test_pauses_threads_and_clock_limits_reach_the_board() -> None:
    whole = rate()
    assert rate(SetDuty(0.5, "half")) == pytest.approx(whole / 2, rel=0.02)
    assert rate(SetThreads(None, 2, "fewer")) > 1.05 * whole
    assert rate(SetThreads(None, None, "as planned")) == whole
    assert rate(SetCaps({"policy0": 1_500_000}, "low")) < whole


def test_an_engine_with_one_fixed_pool_does_not_follow_a_wish_for_threads() -> None:
    assert rate(SetThreads(2, 1, "fewer"), follow_threads=False) == rate()


def test_a_limit_on_what_runs_at_once_keeps_the_others_waiting() -> None:
    controller = Scripted(SetConcurrency(1, "one at a time"))
    simulate(COOL, read_load("crowd"), controller, hours=0.1, ambient_c=10)
    later = [load for now_s, load, _ in controller.seen if now_s > 5]
    assert max(load.running for load in later) == 1
    assert max(load.waiting for load in later) >= 2


def test_the_controller_is_asked_every_second_and_when_a_phase_begins() -> None:
    controller = Scripted(PreferSmaller(True, "noted, nothing else"))
    run = simulate(COOL, read_load("agent"), controller, hours=0.05, ambient_c=10)
    times = [now_s for now_s, _, _ in controller.seen]
    assert all(later - earlier <= 1.0 + 1e-6 for earlier, later in itertools.pairwise(times))
    assert len(times) > 180, "phases begin between the seconds"
    for _, load, _ in controller.seen:
        assert 0 <= load.prefill_share + load.decode_share + load.mixed_share <= 1 + 1e-9
    assert "smaller variant True" in run.decisions[0][1]


def test_a_row_is_kept_for_each_second_and_sums_up_to_the_totals() -> None:
    run = simulate(load_profile("pi5-bare"), read_load("agent"), StockController(), hours=0.25)
    assert len(run.rows) == 900
    assert sum(run.rows.tokens_s) == pytest.approx(run.summary.tokens, rel=1e-4)
    energy = (run.summary.board_j_per_token or 0.0) * run.summary.tokens
    assert sum(run.rows.board_w) == pytest.approx(energy, rel=1e-4)
    assert max(run.rows.temp_c) == pytest.approx(run.summary.peak_c, abs=0.01)
    assert sum(run.summary.phase_shares.values()) == pytest.approx(1.0)


def test_progress_is_told_and_only_rises() -> None:
    told: list[float] = []
    simulate(COOL, STEADY, StockController(), hours=0.2, progress=told.append)
    assert told == sorted(told)
    assert told[-1] > 0.9


def test_two_days_are_simulated() -> None:
    run = simulate(load_profile("pi5-bare"), read_load("chat"), StockController(), hours=48)
    assert len(run.rows) == 48 * 3600
    assert run.summary.tokens > 100_000


def test_a_variant_changes_where_the_chip_settles_and_how_fast() -> None:
    bare, load = load_profile("pi5-cooler"), read_load("steady")
    plain, hotter, heavier, hungrier = (
        simulate(profile, load, StockController(), hours=0.05, ambient_c=20).summary.peak_c
        for profile in (bare, varied(bare, resistance=1.2), varied(bare, capacity=3.0), varied(bare, power=1.2))
    )
    assert heavier < plain < min(hotter, hungrier)
    assert varied(bare) == msgspec.structs.replace(bare)


def test_percentiles_go_by_tokens_and_not_by_steps() -> None:
    latencies = Latencies()
    assert latencies.percentile(0.5) is None
    latencies.add(0.1, 94.0)
    latencies.add(1.0, 6.0)
    assert latencies.percentile(0.5) == pytest.approx(0.1)
    assert latencies.percentile(0.94) == pytest.approx(0.1)
    assert latencies.percentile(0.95) == pytest.approx(1.0)
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([], 0.5) is None


def test_the_busiest_minute_is_found_wherever_it_begins() -> None:
    assert most_within([], 60.0) == 0
    assert most_within([0.0, 59.0, 60.0, 61.0, 118.0], 60.0) == 4
