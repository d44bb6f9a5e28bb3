"""What `scripts/bench thermal` makes of its runs."""

from __future__ import annotations

import msgspec

from bench.thermal import (
    AS_PROFILED,
    COOL,
    VARIANTS,
    Contender,
    FixedController,
    Job,
    Point,
    cool_jobs,
    hot_jobs,
    missed,
    outcomes,
    run_job,
)
from magnitude.board.profiles import load_profile
from magnitude.simulate.closed_loop import simulate
from magnitude.simulate.load import read_load
from magnitude.simulate.trace import Summary


def job(contender: Contender, board: str = "pi5-bare", load: str = "agent") -> Job:
    return Job(board=board, load=load, variant=AS_PROFILED, contender=contender, hours=0.05, ambient_c=25.0)


STOCK = msgspec.structs.replace(run_job(job("off")).summary, soft_s=0, inter_token_p95_over_p50=1.1)


def test_each_board_is_run_as_profiled_and_twenty_percent_off_in_each_respect() -> None:
    factors = {(each.resistance, each.capacity, each.power) for each in VARIANTS}
    assert len(VARIANTS) == len(factors) == 7
    assert {(0.8, 1.0, 1.0), (1.0, 1.2, 1.0), (1.0, 1.0, 0.8)} < factors
    jobs = hot_jobs(1.0, 25.0)
    assert len(jobs) == len(set(jobs)) == 2 * 7 * 3
    assert len(cool_jobs(1.0, 25.0)) == len(COOL) * 3


def figures(**changes: object) -> Summary:
    """A run with these figures."""
    return msgspec.structs.replace(STOCK, **changes)


def test_goals_that_were_not_reached_are_named_each() -> None:
    stock = STOCK
    assert stock.board_j_per_token is not None
    good = figures(tokens_s=1.2 * stock.tokens_s, board_j_per_token=0.7 * stock.board_j_per_token)
    bad = msgspec.structs.replace(stock, soft_s=3, inter_token_p95_over_p50=1.5)
    assert missed(outcomes({job("off"): stock, job("magnitude"): good})) == []
    lines = missed(outcomes({job("off"): stock, job("magnitude"): bad}))
    assert len(lines) == 4
    for named in ("3 s at or above", "1.000 x the tokens/s", "p95/p50 1.50", "1.000 x the energy"):
        assert any(named in line for line in lines)
    assert missed(outcomes({job("off"): stock, job("clocks only"): bad})) == [], "shown, not judged"


def test_other_loads_are_shown_and_not_judged() -> None:
    slower = msgspec.structs.replace(STOCK, tokens_s=0.5 * STOCK.tokens_s)
    found = outcomes({job("off", load="crowd"): STOCK, job("magnitude", load="crowd"): slower})
    assert [each.speed for each in found] == [0.5]
    assert missed(found) == []


def test_a_load_that_heat_does_not_limit_is_judged_by_its_speed_while_busy() -> None:
    board, load = COOL[0]
    stock = STOCK
    assert stock.busy_tokens_s is not None
    slower = msgspec.structs.replace(stock, busy_tokens_s=0.98 * stock.busy_tokens_s)
    lines = missed(outcomes({job("off", board, load): stock, job("magnitude", board, load): slower}))
    assert lines == [f"{board}, {load}: 0.980 x the speed, goal 0.99"]


def test_a_fixed_point_holds_its_clocks_by_phase() -> None:
    profile = load_profile("pi5-bare")
    point = Point(prefill_khz=1_700_000, decode_khz=2_000_000, decode_threads=2)
    run = simulate(profile, read_load("agent"), FixedController(profile, point), hours=0.05, ambient_c=10)
    assert {round(khz) for khz in run.rows.asked_khz} <= {1_500_000, 1_700_000, 2_000_000}
    assert max(run.rows.asked_khz) == 2_000_000
