"""What `scripts/bench policy load` makes of its runs."""

from __future__ import annotations

import random

import pytest

from bench.policy_figures import DEFAULT, LOOP, LoadRun, bootstrap, by_contender, verdict
from bench.policy_work import PhaseRun


def run(contender: str, at: int, *seconds: float) -> LoadRun:
    phases = tuple(
        PhaseRun(phase=f"phase {place}", seconds=each, request_s=(each / 2, each / 2), tokens=10)
        for place, each in enumerate(seconds)
    )
    return LoadRun(contender=contender, round=at, phases=phases)


def rounds(*contenders: tuple[str, tuple[float, ...]], count: int = 3) -> list[LoadRun]:
    return [run(name, at, *seconds) for at in range(count) for name, seconds in contenders]


def test_the_best_fixed_strategy_is_the_one_with_the_least_time_in_all() -> None:
    judged = verdict(rounds((DEFAULT, (4.0, 4.0)), ("one", (1.0, 5.0)), ("two", (3.0, 2.0)), (LOOP, (1.0, 2.0))))
    assert judged.best_fixed == "two"
    assert judged.ratio.median == pytest.approx(5 / 3)
    assert judged.ratio_to_default.median == pytest.approx(8 / 3)
    assert judged.oracle_s == judged.honest_oracle_s == pytest.approx(3.0)
    assert judged.regret == judged.honest_regret == pytest.approx(0.0)
    assert list(judged.oracle.values()) == ["one", "two"]
    assert judged.missed == []


def test_what_is_missed_is_said_each() -> None:
    judged = verdict(rounds((DEFAULT, (2.0, 2.0)), ("one", (1.0, 3.0)), ("two", (3.0, 1.0)), (LOOP, (3.0, 3.0))))
    assert judged.regret == pytest.approx(2.0)
    lines = judged.missed
    assert len(lines) == 2
    assert "0.667 x as fast as one" in lines[0]
    assert "200.0% above the per-phase oracle" in lines[1]
    slow = verdict(rounds((DEFAULT, (2.0, 2.0)), ("one", (2.0, 2.0)), (LOOP, (1.0, 3.0))))
    assert any("P95" in line for line in slow.missed)


def test_an_oracle_that_is_chosen_by_other_rounds_does_not_profit_from_noise() -> None:
    """All are equal in truth: whoever takes the least of many noisy figures believes in a gain."""
    chance = random.Random(1)
    names = [DEFAULT, LOOP, *(f"fixed {number}" for number in range(12))]
    runs = [
        run(name, at, *(chance.lognormvariate(0.0, 0.15) for _ in range(10))) for at in range(5) for name in names
    ]
    judged = verdict(runs)
    assert judged.regret > 0.05
    assert abs(judged.honest_regret) < 0.06 < judged.regret + 0.02


def test_a_round_that_was_cut_off_does_not_count() -> None:
    runs = rounds((DEFAULT, (2.0,)), ("one", (2.0,)), (LOOP, (2.0,)))
    table = by_contender([*runs, run(DEFAULT, 3, 9.0)])
    assert {name: len(each) for name, each in table.items()} == {DEFAULT: 3, "one": 3, LOOP: 3}


def test_without_a_fixed_strategy_there_is_nothing_to_judge() -> None:
    with pytest.raises(ValueError, match="at least one fixed"):
        verdict(rounds((DEFAULT, (1.0,)), (LOOP, (1.0,))))


def test_the_interval_holds_the_ratio_and_narrows_with_pairs() -> None:
    chance = random.Random(2)

    def pairs(count: int) -> list[tuple[float, float]]:
        drawn = []
        for _ in range(count):
            base = chance.lognormvariate(0.0, 0.3)
            drawn.append((0.8 * base * chance.lognormvariate(0.0, 0.05), base))
        return drawn

    few, many = bootstrap(pairs(8)), bootstrap(pairs(200))
    for found in (few, many):
        assert found.low <= found.value <= found.high
    assert many.low < 0.8 < many.high
    assert many.high - many.low < few.high - few.low
    with pytest.raises(ValueError, match="no pairs"):
        bootstrap([])
