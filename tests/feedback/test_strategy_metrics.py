from __future__ import annotations

import pytest

from magnitude.cli.ps import strategy_line
from magnitude.feedback.metrics import Metrics
from magnitude.schedule.strategy_report import LoopCounts, SessionShown, StrategyState

STATE = StrategyState(
    on=True,
    strategy_id="abc",
    in_words="prompts 2 threads in pieces of 128; answers 1 thread, 4 at once",
    since_s=65.0,
    sessions=[SessionShown(session="1 thread", size_bytes=125_000_000, state="ready")],
    experiment="decode at rows=1: 2 threads against 1 thread, 4 pairs so far",
    counts=LoopCounts(
        decisions={"switch": {"decode": 2}, "revert": {"decode": 1}, "kept": {"prefill": 4}, "start": {"": 1}},
        trials={"decode": 3},
        probes={"prefill": 5},
        delay_s={"decode": 12.5},
        delays={"decode": 3},
        cpu_s=0.25,
    ),
)


def rendered() -> list[str]:
    metrics = Metrics()
    metrics.watch_strategies(lambda: {"m": STATE})
    return metrics.render().decode().splitlines()


@pytest.mark.parametrize(
    "line",
    [
        'magnitude_strategy_switches_total{model="m",part="decode"} 3.0',
        'magnitude_strategy_decisions_total{kind="kept",model="m"} 4.0',
        'magnitude_strategy_decision_delay_seconds_count{model="m",part="decode"} 3.0',
        'magnitude_strategy_decision_delay_seconds_sum{model="m",part="decode"} 12.5',
        'magnitude_strategy_trials_total{model="m",part="decode"} 3.0',
        'magnitude_strategy_probes_total{model="m",part="prefill"} 5.0',
        'magnitude_strategy_sessions{model="m"} 1.0',
        'magnitude_strategy_session_bytes{model="m"} 1.25e+08',
        'magnitude_strategy_loop_cpu_seconds_total{model="m"} 0.25',
    ],
)
def test_the_loops_decisions_experiments_sessions_and_cost_are_series(line: str) -> None:
    assert line in rendered()


def test_a_part_that_kept_what_it_has_did_not_switch() -> None:
    assert not any(line.startswith("magnitude_strategy_switches") and "prefill" in line for line in rendered())


def test_a_person_reads_what_is_in_force_what_it_takes_and_what_is_compared() -> None:
    line = strategy_line("m", STATE)
    for part in (STATE.in_words, "strategy abc", "1 thread ready", "125 MB", "comparing decode at rows=1"):
        assert part in line


def test_a_loop_that_was_given_up_says_why() -> None:
    state = StrategyState(fault="ZeroDivisionError: no samples", in_words="prompts 2 threads")
    assert strategy_line("m", state) == (
        "m: strategy loop given up (ZeroDivisionError: no samples); prompts 2 threads"
    )
