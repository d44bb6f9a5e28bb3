"""A real engine that compares and times further sessions, before they are used and while nothing else is open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_driver import EngineDriver, KvFile
from onnx import numpy_helper
from tiny_decoder import write_decoder, write_encoder

from magnitude.engine.comparing import Differences
from magnitude.engine.message import Message
from magnitude.engine.protocol import (
    CancelRequest,
    Compared,
    CompareSession,
    Done,
    Drain,
    Drained,
    Embed,
    Failed,
    Finished,
    GetStats,
    Measure,
    Measured,
    Pace,
    PrepareSession,
    Probe,
    Probed,
    ReleaseSession,
    SessionPrepared,
    Shutdown,
    Stats,
    Tokens,
    UseSessions,
    Vectors,
)
from magnitude.engine.session_messages import ProbedRun
from magnitude.engine.session_spec import SessionSpec
from magnitude.models.description import ModelDescription

NewKv = Callable[..., KvFile]
TWO = SessionSpec(threads=2)
TEXTS = [[1, 2, 3, 4, 5, 6, 7], [9] * 40, [8]]


def prepare(engine: EngineDriver, session: SessionSpec, model: str = "tiny") -> None:
    request_id = engine.new_id()
    engine.send(PrepareSession(request_id=request_id, model=model, session=session))
    engine.wait(SessionPrepared, request_id)


def send_compare(engine: EngineDriver, session: SessionSpec = TWO, **fields: Any) -> int:
    request_id = engine.new_id()
    defaults: dict[str, Any] = {"model": "tiny", "slot": 3, "texts": TEXTS}
    engine.send(CompareSession(request_id=request_id, session=session, **(defaults | fields)))
    return request_id


def compare(engine: EngineDriver, session: SessionSpec = TWO, **fields: Any) -> Compared:
    return engine.wait(Compared, send_compare(engine, session, **fields))


def send_probe(engine: EngineDriver, *runs: ProbedRun, rounds: int = 3, **fields: Any) -> int:
    request_id = engine.new_id()
    defaults: dict[str, Any] = {"model": "tiny", "slot": 3, "past_tokens": 10}
    engine.send(Probe(request_id=request_id, runs=runs, rounds=rounds, **(defaults | fields)))
    return request_id


def step(session: SessionSpec | None, rows: int = 1) -> ProbedRun:
    return ProbedRun(session=session, rows=rows, tokens=1)


def piece(session: SessionSpec | None, tokens: int = 16) -> ProbedRun:
    return ProbedRun(session=session, rows=1, tokens=tokens)


@pytest.fixture
def serving(engine: EngineDriver, tiny: ModelDescription, new_kv: NewKv) -> EngineDriver:
    """An engine with the tiny decoder, its own session of one thread, and one of two threads."""
    engine.load(tiny, new_kv(tiny, slots=4))
    prepare(engine, TWO)
    return engine


# --- comparing ---


def test_sessions_that_differ_in_threads_compute_the_same(serving: EngineDriver):
    found = compare(serving)
    # 7 tokens: 3 in a piece, 4 alone. 40: 20 in two pieces, 16 alone. 1: a piece. Logits come from each run's last.
    assert found.positions == (1 + 4) + (2 + 16) + 1
    assert (found.equal, found.largest_difference, found.top1_agreement, found.least_cosine) == (True, 0.0, 1.0, 1.0)


def test_every_position_of_the_last_piece_is_compared_where_the_graph_gives_them(
    engine: EngineDriver, new_kv: NewKv, folder: Path
):
    model = write_decoder(folder, all_positions=True)
    engine.load(model, new_kv(model, slots=4))
    prepare(engine, TWO)
    assert compare(engine).positions == (3 + 4) + (1 + 4 + 16) + 1


def change_weight(path: Path, name: str, factor: float) -> None:
    model = onnx.load(path)
    (weight,) = [weight for weight in model.graph.initializer if weight.name == name]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), name))
    onnx.save(model, path)


@pytest.mark.parametrize(("factor", "alike"), [(1.001, True), (-1.0, False)])
def test_a_graph_that_computes_something_else_is_told_by_how_much(
    engine: EngineDriver, new_kv: NewKv, folder: Path, factor: float, alike: bool
):
    model = write_decoder(folder)
    (folder / "other.onnx").write_bytes((folder / "model.onnx").read_bytes())
    change_weight(folder / "other.onnx", "head.weight", factor)
    engine.load(model, new_kv(model, slots=4))
    other = SessionSpec(threads=1, graph_file="other.onnx")
    prepare(engine, other)
    found = compare(engine, other)
    assert not found.equal and found.largest_difference > 0
    assert (found.top1_agreement, found.least_cosine > 0.999) == (1.0 if alike else 0.0, alike)


def test_differences_in_what_earlier_positions_left_behind_are_seen(
    engine: EngineDriver, new_kv: NewKv, folder: Path
):
    """Values of the first layer reach the logits of later positions through the KV memory only."""
    model = write_decoder(folder)
    (folder / "other.onnx").write_bytes((folder / "model.onnx").read_bytes())
    change_weight(folder / "other.onnx", "l1.v.weight", 2.0)
    engine.load(model, new_kv(model, slots=4))
    other = SessionSpec(threads=1, graph_file="other.onnx")
    prepare(engine, other)
    assert not compare(engine, other).equal


def test_an_encoders_vectors_are_compared(engine: EngineDriver, folder: Path):
    encoder = write_encoder(folder)
    engine.load(encoder)
    prepare(engine, TWO, encoder.name)
    found = compare(engine, model=encoder.name)
    assert (found.positions, found.equal) == (3, True)
    engine.send(Embed(request_id=engine.new_id(), model=encoder.name, inputs=TEXTS))
    assert engine.wait(Vectors).count == 3


def test_answers_go_on_between_the_runs_of_a_comparison_and_nobodys_text_changes(serving: EngineDriver):
    want, _ = serving.generate([1, 2, 3], max_new_tokens=80)
    serving.start([1, 2, 3], max_new_tokens=80, slot=1)
    comparison = send_compare(serving, texts=[[5] * 30] * 30)
    ids: list[int] = []
    before_compared, compared, finished = 0, None, False
    while not (compared and finished):
        message = serving.next()
        assert not isinstance(message, Failed)
        if isinstance(message, Tokens):
            ids += message.ids
            before_compared += compared is None
        elif isinstance(message, Compared):
            compared = message
        finished = finished or isinstance(message, Finished)
    assert ids == want
    assert compared.request_id == comparison and compared.equal
    assert before_compared >= 78  # 960 runs of the comparison; a token is made in each turn


def test_a_comparisons_slot_is_nobody_elses(serving: EngineDriver):
    long = [[5] * 40] * 40
    send_compare(serving, texts=long)
    request_id = serving.start([1, 2], slot=3)
    refused = serving.next()
    assert isinstance(refused, Failed) and (refused.request_id, refused.code) == (request_id, "slot_in_use")
    assert serving.wait(Compared).equal
    serving.start([1, 2, 3], slot=3, max_new_tokens=90)
    again = send_compare(serving)
    while not isinstance(refused := serving.next(), Failed):
        assert isinstance(refused, Message)
    assert (refused.request_id, refused.code) == (again, "slot_in_use")


def test_runs_of_a_comparison_are_reported_to_nobody(serving: EngineDriver):
    compare(serving)
    serving.generate([1, 2, 3], max_new_tokens=3)
    serving.stats()
    assert sum(group.runs for steps in serving.steps for group in steps.groups) == 3


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"session": SessionSpec(threads=9)}, "session_not_prepared"),
        ({"model": "nobody"}, "model_not_found"),
        ({"slot": 4}, "invalid_request"),
        ({"slot": -1}, "invalid_request"),
        ({"texts": [[]]}, "invalid_request"),
        ({"texts": [[1], [2] * 1000]}, "invalid_request"),
        ({"texts": [[10**9]]}, "invalid_request"),
        ({"texts": [[-1]]}, "invalid_request"),
    ],
)
def test_what_cannot_be_compared_is_refused(serving: EngineDriver, fields: dict[str, Any], code: str):
    send_compare(serving, **fields)
    answer = serving.next()
    assert isinstance(answer, Failed) and answer.code == code
    assert compare(serving).equal


def test_nothing_to_compare_is_nothing_different(serving: EngineDriver):
    found = compare(serving, texts=[])
    assert (found.positions, found.equal) == (0, True)


@pytest.mark.parametrize("end", ["cancel", "release", "drain"])
def test_a_comparison_can_be_ended_in_the_middle(serving: EngineDriver, end: str):
    comparison = send_compare(serving, texts=[[5] * 40] * 400)
    request_id = serving.new_id()
    if end == "cancel":
        serving.send(CancelRequest(target=comparison))
    elif end == "release":
        serving.send(ReleaseSession(request_id=request_id, model="tiny", session=TWO))
    else:
        serving.send(Drain(request_id=request_id))
    answer = serving.next()
    assert isinstance(answer, Failed) and answer.request_id == comparison
    assert answer.code == {"cancel": "cancelled", "release": "session_released", "drain": "engine_draining"}[end]
    if end != "cancel":
        assert isinstance(serving.next(), Done | Drained)


def rows(*values: list[float]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)


def test_differences_are_the_worst_of_all_rows():
    found = Differences()
    found.add(rows([1, 0, 0], [0, 3, 4]), rows([1, 0, 0], [0, 4, 3]))
    answer = found.compared(7)
    assert (answer.request_id, answer.positions, answer.equal) == (7, 2, False)
    assert (answer.largest_difference, answer.top1_agreement) == (1.0, 0.5)
    assert answer.least_cosine == pytest.approx(24 / 25)


def test_rows_without_numbers_are_as_different_as_can_be_unless_both_have_them():
    nan = float("nan")
    found = Differences()
    found.add(rows([nan, 1]), rows([nan, 1]))
    assert found.compared(1).equal
    found.add(rows([1, 2]), rows([nan, 2]))
    answer = found.compared(1)
    assert (answer.equal, answer.largest_difference, answer.least_cosine) == (False, float("inf"), 0.0)
    assert answer.top1_agreement == 0.5


# --- timing ---


def test_each_run_is_timed_in_each_round(serving: EngineDriver):
    probed = serving.wait(Probed, send_probe(serving, step(None), step(TWO, rows=3), piece(TWO), rounds=4))
    assert probed.complete
    assert [len(seconds) for seconds in probed.seconds] == [4, 4, 4]
    assert all(second > 0 for seconds in probed.seconds for second in seconds)


def test_an_encoders_runs_are_timed(engine: EngineDriver, folder: Path):
    encoder = write_encoder(folder)
    engine.load(encoder)
    prepare(engine, TWO, encoder.name)
    runs = [ProbedRun(session=session, rows=2, tokens=16) for session in (None, TWO)]
    probed = engine.wait(Probed, send_probe(engine, *runs, rounds=2, model=encoder.name))
    assert probed.complete and [len(seconds) for seconds in probed.seconds] == [2, 2]


def endless(engine: EngineDriver) -> int:
    """A probe that would take hours."""
    return send_probe(engine, step(None), step(TWO), rounds=10**8)


@pytest.mark.parametrize(
    "come", ["generate", "prepare", "release", "compare", "measure", "drain", "probe", "shutdown"]
)
def test_a_probe_gives_way_to_whatever_comes(serving: EngineDriver, come: str):
    probe = endless(serving)
    request_id = serving.new_id()
    answer: type[Message]
    match come:
        case "generate":
            request_id, answer = serving.start([1, 2, 3]), Finished
        case "prepare":
            session, answer = SessionSpec(threads=3), SessionPrepared
            serving.send(PrepareSession(request_id=request_id, model="tiny", session=session))
        case "release":
            answer = Done
            serving.send(ReleaseSession(request_id=request_id, model="tiny", session=TWO))
        case "compare":
            request_id, answer = send_compare(serving), Compared
        case "measure":
            answer = Measured
            serving.send(Measure(request_id=request_id, model="tiny", slot=0, rows=(1,), past_tokens=3, steps=1))
        case "drain":
            answer = Drained
            serving.send(Drain(request_id=request_id))
        case "probe":
            request_id, answer = send_probe(serving, step(None), rounds=1), Probed
        case _:
            serving.send(Shutdown())
    first = serving.next()
    assert isinstance(first, Probed) and first.request_id == probe
    assert not first.complete
    assert len(first.seconds) == 2 and len({len(seconds) for seconds in first.seconds}) == 1
    if come == "shutdown":
        assert serving.process.wait(60) == 0
    else:
        serving.wait(answer, request_id)


def test_a_probe_goes_on_beside_questions_and_a_new_pace(serving: EngineDriver):
    probe = endless(serving)
    for _ in range(3):
        serving.send(GetStats(request_id=serving.new_id()))
        stats = serving.next()
        assert isinstance(stats, Stats) and stats.open_requests == 0
    serving.send(Pace(request_id=serving.new_id(), prefill=0.5, decode=0.5))
    serving.send(UseSessions(request_id=serving.new_id(), model="tiny", decode=TWO))
    steps = serving.stats().steps
    while serving.stats().steps <= steps:
        pass  # it is progress
    serving.send(CancelRequest(target=probe))
    answer = serving.next()
    assert isinstance(answer, Probed) and answer.request_id == probe


def test_a_probe_is_answered_at_once_and_without_times_when_something_is_open(serving: EngineDriver):
    request_id = serving.start([1, 2, 3], max_new_tokens=90)
    probe = send_probe(serving, step(None), step(TWO))
    while not isinstance(answer := serving.next(), Probed):
        assert not isinstance(answer, Finished)
    assert (answer.request_id, answer.complete, answer.seconds) == (probe, False, ((), ()))
    assert len(serving.collect(request_id)[0]) > 80


def test_a_probe_waits_for_no_session_that_is_being_made(serving: EngineDriver):
    serving.send(PrepareSession(request_id=serving.new_id(), model="tiny", session=SessionSpec(threads=3)))
    probe = send_probe(serving, step(None), rounds=10**8)
    answer = serving.next()
    assert isinstance(answer, Probed) and (answer.request_id, answer.complete) == (probe, False)
    serving.wait(SessionPrepared)


@pytest.mark.parametrize(
    ("run", "fields", "code"),
    [
        (step(SessionSpec(threads=9)), {}, "session_not_prepared"),
        (step(None), {"model": "nobody"}, "model_not_found"),
        (step(None), {"slot": 9}, "invalid_request"),
        (step(None), {"rounds": 0}, "invalid_request"),
        (step(None, rows=5), {}, "invalid_request"),
        (step(None, rows=0), {}, "invalid_request"),
        (piece(None, tokens=0), {}, "invalid_request"),
        (piece(None, tokens=90), {}, "invalid_request"),
        (piece(None), {"past_tokens": -1}, "invalid_request"),
        (ProbedRun(session=None, rows=2, tokens=2), {}, "invalid_request"),
    ],
)
def test_a_probe_of_what_cannot_run_is_refused(
    serving: EngineDriver, run: ProbedRun, fields: dict[str, Any], code: str
):
    send_probe(serving, run, **fields)
    answer = serving.next()
    assert isinstance(answer, Failed) and answer.code == code
    assert serving.wait(Probed, send_probe(serving, step(None))).complete


def test_a_slot_that_was_probed_or_compared_in_is_trusted_by_nobody(serving: EngineDriver):
    prompt = list(range(1, 40))
    want, _ = serving.generate(prompt, slot=3, prefill_chunk=8)
    serving.wait(Probed, send_probe(serving, step(None), past_tokens=2))
    again, end = serving.generate(prompt, slot=3, prefill_chunk=8, kv_valid_tokens=32)
    assert again == want and isinstance(end, Finished) and end.kept_tokens == 0
    compare(serving)
    again, end = serving.generate(prompt, slot=3, prefill_chunk=8, kv_valid_tokens=32)
    assert again == want and isinstance(end, Finished) and end.kept_tokens == 0
    again, end = serving.generate(prompt, slot=3, prefill_chunk=8, kv_valid_tokens=32)
    assert again == want and isinstance(end, Finished) and end.kept_tokens == 32


def test_nothing_of_a_probe_is_reported_as_work(serving: EngineDriver):
    serving.wait(Probed, send_probe(serving, step(None), step(TWO)))
    serving.stats()
    assert serving.steps == []
