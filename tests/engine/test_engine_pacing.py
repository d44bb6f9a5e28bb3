"""A real engine that may compute for a share of the time only. Its pauses are counted, never timed: at the smallest
shares each one lasts as long as a pause may, longer than anything else that these tests wait for."""

from __future__ import annotations

from collections.abc import Callable

from engine_driver import EngineDriver, KvFile

from magnitude.engine.message import Message
from magnitude.engine.protocol import (
    CancelRequest,
    Drain,
    Drained,
    Failed,
    Finished,
    GetStats,
    Pace,
    Stats,
    Steps,
    Tokens,
)
from magnitude.models.description import ModelDescription

NewKv = Callable[..., KvFile]
HARDLY_EVER = 1e-9


def pace(engine: EngineDriver, prefill: float, decode: float) -> int:
    request_id = engine.new_id()
    engine.send(Pace(request_id=request_id, prefill=prefill, decode=decode))
    return request_id


def until(engine: EngineDriver, kind: type[Message]) -> tuple[list[Message], Message]:
    """The next message of that kind and what came before it."""
    before: list[Message] = []
    while not isinstance(message := engine.next(), kind):
        before.append(message)
    return before, message


def start_and_pause(engine: EngineDriver) -> int:
    """A generation after whose first token the engine pauses."""
    pace(engine, 1.0, HARDLY_EVER)
    request_id = engine.start([1, 2, 3], max_new_tokens=90)
    engine.wait(Tokens, request_id)
    engine.wait(Tokens, request_id)
    return request_id


def test_a_cancelled_request_ends_in_the_middle_of_a_pause(tiny_engine: EngineDriver):
    request_id = start_and_pause(tiny_engine)
    tiny_engine.send(CancelRequest(target=request_id))
    before, end = until(tiny_engine, Finished)
    assert not before
    assert isinstance(end, Finished) and end.reason == "cancelled"


def test_a_new_pace_ends_a_pause(tiny_engine: EngineDriver):
    """Ninety of the longest pauses take longer than the driver waits."""
    request_id = start_and_pause(tiny_engine)
    pace(tiny_engine, 1.0, 1.0)
    _, end = tiny_engine.collect(request_id)
    assert isinstance(end, Finished) and end.new_tokens == 90


def test_questions_are_answered_in_a_pause(tiny_engine: EngineDriver):
    start_and_pause(tiny_engine)
    tiny_engine.send(GetStats(request_id=tiny_engine.new_id()))
    before, stats = until(tiny_engine, Stats)
    assert not before
    assert isinstance(stats, Stats) and stats.open_requests == 1


def test_a_drain_is_heard_in_a_pause(tiny: ModelDescription, new_kv: NewKv):
    with EngineDriver() as engine:
        engine.load(tiny, new_kv(tiny))
        running = start_and_pause(engine)
        engine.send(Drain(request_id=engine.new_id()))
        refused = engine.start([4, 5], slot=1)
        before, answer = until(engine, Failed)
        assert not before
        assert isinstance(answer, Failed) and (answer.request_id, answer.code) == (refused, "engine_draining")
        engine.send(CancelRequest(target=running))
        engine.wait(Drained)


def test_a_shutdown_ends_a_pause(tiny: ModelDescription, new_kv: NewKv):
    with EngineDriver() as engine:
        engine.load(tiny, new_kv(tiny))
        start_and_pause(engine)
        assert engine.shut_down() == 0


def test_heartbeats_say_that_the_engine_pauses(tiny_engine: EngineDriver):
    """The engine beats four times in the longest pause."""
    request_id = start_and_pause(tiny_engine)
    tiny_engine.heartbeats.clear()
    tiny_engine.wait(Tokens, request_id)
    assert any(beat.paused and beat.busy_s == 0 for beat in tiny_engine.heartbeats)


def test_reports_tell_pauses_from_runs(tiny_engine: EngineDriver):
    pace(tiny_engine, 1.0, 0.05)
    tiny_engine.steps.clear()
    tiny_engine.generate([1, 2, 3], max_new_tokens=20)
    pace(tiny_engine, 1.0, 1.0)
    tiny_engine.generate([1, 2, 3], max_new_tokens=2)  # what is owed for the last run is over
    tiny_engine.stats()
    reports = tiny_engine.steps
    decode_s = sum(group.total_s for report in reports for group in report.groups if group.kind == "decode")
    assert 0 < decode_s < paused_s(reports)


def test_an_engine_that_may_always_compute_never_pauses(tiny_engine: EngineDriver):
    pace(tiny_engine, 1.0, 1.0)
    tiny_engine.steps.clear()
    tiny_engine.generate([1, 2, 3], max_new_tokens=20)
    tiny_engine.stats()
    assert tiny_engine.steps
    assert paused_s(tiny_engine.steps) == 0


def test_the_answer_does_not_depend_on_the_pace(tiny_engine: EngineDriver):
    prompt = list(range(1, 40))
    plain, _ = tiny_engine.generate(prompt, max_new_tokens=12)
    pace(tiny_engine, 0.2, 0.5)
    assert tiny_engine.generate(prompt, max_new_tokens=12)[0] == plain


def test_what_is_no_share_is_refused(tiny_engine: EngineDriver):
    request_id = pace(tiny_engine, 0.0, 1.0)
    failed = tiny_engine.next()
    assert isinstance(failed, Failed)
    assert (failed.request_id, failed.code, failed.param) == (request_id, "pace_invalid", "prefill")


def paused_s(reports: list[Steps]) -> float:
    return sum(report.paused_s for report in reports)
