"""Loads: those that come with the service, those of one's own, and agents that follow them."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.board.profiles import load_profile
from magnitude.board.sim.board import SimulatedBoard
from magnitude.board.workload import Pool
from magnitude.errors import ConfigError
from magnitude.governor.thermal_terms import Phase
from magnitude.simulate.agents import Agents
from magnitude.simulate.load import FOLDER, load_names, read_load

POOLS: dict[Phase, Pool] = dict.fromkeys(("idle", "prefill", "decode", "mixed"), Pool(4))


def phases_of(name: str, seconds: float) -> dict[Phase, float]:
    """Seconds in each phase on a board that is never hot."""
    board, agents = SimulatedBoard(load_profile("pi5-cooler"), ambient_c=10), Agents(read_load(name))
    spent: dict[Phase, float] = {"idle": 0.0, "prefill": 0.0, "decode": 0.0, "mixed": 0.0}
    while board.now_s < seconds:
        agents.wake(board.now_s)
        work = agents.work(POOLS)
        step_s = min(1.0, max(1e-3, agents.next_event_s(board.now_s, board.load_now(work), work.duty)))
        agents.advance(board.now_s + step_s, board.advance(step_s, work))
        spent[work.phase] += step_s
    return spent


def test_all_loads_that_come_with_the_service_are_valid() -> None:
    assert load_names() == ("agent", "chat", "crowd", "light", "steady")
    for name in load_names():
        assert read_load(name).name == name
        assert read_load(f"{name}.yaml") == read_load(name)


def test_agents_keep_a_board_busy_and_a_crowd_mixes_prompts_with_answers() -> None:
    agent, crowd = phases_of("agent", 1200.0), phases_of("crowd", 600.0)
    assert agent["idle"] < 60
    assert agent["prefill"] > 200 < agent["decode"]
    assert agent["mixed"] == 0, "one generation at a time"
    assert crowd["mixed"] > 60


def test_a_light_load_rests_most_of_the_time() -> None:
    assert phases_of("light", 3600.0)["idle"] > 3400


def test_an_unknown_load_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as error:
        read_load("nights.yaml")
    assert "agent" in error.value.hint


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("count: 3", "count: 0", "agents[0].count"),
        ("turns: 6", "turn: 6", "agents[0]"),
        ("high: 220", "high: 20", "answer_tokens"),
        ("answer_tokens: {low: 30", "answer_tokens: {low: 0", "answer_tokens"),
        ("slots: 1", "slots: [1", "YAML"),
    ],
)
def test_what_is_wrong_in_a_load_is_said_with_its_place(tmp_path: Path, old: str, new: str, where: str) -> None:
    file = tmp_path / "own.yaml"
    text = (FOLDER / "agent.yaml").read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(ConfigError) as error:
        read_load(str(file))
    assert str(file) in error.value.message
    assert where in error.value.message
