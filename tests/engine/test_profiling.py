"""A real engine whose operators are profiled on a twin, while nothing else is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_driver import EngineDriver, KvFile
from tiny_decoder import write_encoder

from magnitude.engine.protocol import (
    CancelRequest,
    Done,
    Failed,
    Finished,
    GetStats,
    OperatorsProfiled,
    Pace,
    PrepareSession,
    ProfileOperators,
    SessionPrepared,
    Shutdown,
    Stats,
    UnloadModel,
    UseSessions,
)
from magnitude.engine.session_spec import SessionSpec
from magnitude.models.description import ModelDescription

NewKv = Callable[..., KvFile]
TWO = SessionSpec(threads=2)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def idle(scratch: Path, tiny: ModelDescription, new_kv: NewKv) -> Iterator[EngineDriver]:
    """An engine with the tiny decoder and nothing to do."""
    with EngineDriver(options=("--scratch", str(scratch))) as driver:
        driver.load(tiny, new_kv(tiny, slots=4))
        yield driver


def ask(engine: EngineDriver, **fields: Any) -> int:
    request_id = engine.new_id()
    defaults: dict[str, Any] = {"model": "tiny", "slot": 3, "past_tokens": 10, "steps": 3, "tokens": 16}
    engine.send(ProfileOperators(request_id=request_id, **(defaults | fields)))
    return request_id


def test_the_time_of_steps_and_pieces_is_told_by_operator(idle: EngineDriver) -> None:
    found = idle.wait(OperatorsProfiled, ask(idle))
    decode, prefill = found.phases
    assert (found.reason, decode.session, prefill.session) == ("", "1 thread", "1 thread")
    assert (decode.phase, decode.tokens, len(decode.run_s)) == ("decode", 1, 3)
    assert (prefill.phase, prefill.tokens, len(prefill.run_s)) == ("prefill", 16, 1)
    for phase in found.phases:
        assert "MatMul" in phase.operators_s
        for at, run_s in enumerate(phase.run_s):
            assert 0 < sum(times[at] for times in phase.operators_s.values()) <= run_s


def test_twins_are_like_the_sessions_in_force_and_leave_nothing_behind(idle: EngineDriver, scratch: Path) -> None:
    prepared = idle.new_id()
    idle.send(PrepareSession(request_id=prepared, model="tiny", session=TWO))
    idle.wait(SessionPrepared, prepared)
    idle.send(UseSessions(request_id=idle.new_id(), model="tiny", decode=TWO))
    found = idle.wait(OperatorsProfiled, ask(idle)).phases
    assert [(phase.phase, phase.session) for phase in found] == [("decode", "2 threads"), ("prefill", "1 thread")]
    assert list(scratch.iterdir()) == []
    stats = idle.new_id()
    idle.send(GetStats(request_id=stats))
    assert idle.wait(Stats, stats).sessions == 1


def test_an_encoder_is_profiled_by_texts(idle: EngineDriver, folder: Path) -> None:
    encoder = write_encoder(folder)
    idle.load(encoder)
    (texts,) = idle.wait(OperatorsProfiled, ask(idle, model=encoder.name, tokens=8)).phases
    assert (texts.phase, texts.tokens, len(texts.run_s)) == ("encode", 8, 3)


def test_answers_are_the_same_after_a_profile(idle: EngineDriver) -> None:
    before = idle.generate([5, 6, 7])[0]
    idle.wait(OperatorsProfiled, ask(idle))
    assert idle.generate([5, 6, 7])[0] == before


def test_it_is_given_up_when_a_request_comes(idle: EngineDriver, scratch: Path) -> None:
    asked = ask(idle, steps=20_000)
    answer = idle.start([5, 6, 7])
    given_up = idle.wait(OperatorsProfiled, asked)
    assert (given_up.phases, given_up.reason) == ((), "something else came first")
    assert idle.wait(Finished, answer).new_tokens == 8
    # The next one is no worse for it, once the twin of this one is gone.
    found = idle.wait(OperatorsProfiled, ask(idle))
    while not found.phases:
        found = idle.wait(OperatorsProfiled, ask(idle))
    assert list(scratch.iterdir()) == []


def test_it_does_not_begin_while_something_is_open(idle: EngineDriver) -> None:
    idle.send(Pace(request_id=idle.new_id(), prefill=0.01, decode=0.01))
    answer = idle.start([5, 6, 7], max_new_tokens=30)
    assert idle.wait(OperatorsProfiled, ask(idle)).reason == "something else was open"
    idle.send(CancelRequest(target=answer))


def test_cancelling_it_ends_it(idle: EngineDriver) -> None:
    asked = ask(idle, steps=20_000)
    idle.send(CancelRequest(target=asked))
    assert idle.wait(OperatorsProfiled, asked).phases == ()


def test_a_model_that_is_unloaded_takes_its_twin_with_it(idle: EngineDriver) -> None:
    asked = ask(idle, steps=20_000)
    gone = idle.new_id()
    idle.send(UnloadModel(request_id=gone, model="tiny"))
    assert idle.wait(OperatorsProfiled, asked).phases == ()
    idle.wait(Done, gone)


@pytest.mark.parametrize("wrong", [{"slot": 9}, {"past_tokens": 1 << 20}, {"steps": 0}])
def test_runs_that_cannot_be_done_are_refused_and_the_next_ones_are_done(
    idle: EngineDriver, wrong: dict[str, int]
) -> None:
    asked = ask(idle, **wrong)
    while not isinstance(answer := idle.next(), Failed):
        pass
    assert (answer.request_id, answer.request_fault) == (asked, True)
    found = idle.wait(OperatorsProfiled, ask(idle))
    while not found.phases:
        found = idle.wait(OperatorsProfiled, ask(idle))


def test_what_an_engine_that_died_left_behind_is_removed(idle: EngineDriver, scratch: Path) -> None:
    left = scratch / "operators-4194399-abc"  # beyond the highest process number
    left.mkdir(parents=True)
    idle.wait(OperatorsProfiled, ask(idle))
    assert list(scratch.iterdir()) == []


def test_without_a_folder_there_are_no_profiles(engine: EngineDriver, tiny: ModelDescription, new_kv: NewKv) -> None:
    engine.load(tiny, new_kv(tiny, slots=4))
    assert engine.wait(OperatorsProfiled, ask(engine)).reason == "there is no folder for profiles"


def test_an_engine_leaves_in_the_midst_of_a_profile(idle: EngineDriver) -> None:
    ask(idle, steps=20_000)
    idle.send(Shutdown())
    assert idle.process.wait(60) == 0
