"""A real engine whose model gets further sessions while it serves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_driver import EngineDriver, KvFile
from tiny_decoder import layout_of, write_decoder, write_encoder, write_tensors

from magnitude.engine.protocol import (
    CancelRequest,
    Done,
    Failed,
    Finished,
    PrepareSession,
    ReleaseSession,
    SessionPrepared,
    StepGroup,
    Tokens,
    UnloadModel,
    UseSessions,
)
from magnitude.engine.session_messages import TrialRuns
from magnitude.engine.session_spec import SessionSpec
from magnitude.models.description import ModelDescription

NewKv = Callable[..., KvFile]
TWO, THREE = SessionSpec(threads=2), SessionSpec(threads=3)


def send_prepare(engine: EngineDriver, session: SessionSpec, model: str = "tiny") -> int:
    request_id = engine.new_id()
    engine.send(PrepareSession(request_id=request_id, model=model, session=session))
    return request_id


def prepare(engine: EngineDriver, session: SessionSpec, model: str = "tiny") -> SessionPrepared:
    return engine.wait(SessionPrepared, send_prepare(engine, session, model))


def refused(engine: EngineDriver, session: SessionSpec, model: str = "tiny") -> Failed:
    send_prepare(engine, session, model)
    answer = engine.next()
    assert isinstance(answer, Failed)
    return answer


def use(engine: EngineDriver, model: str = "tiny", **fields: Any) -> None:
    engine.send(UseSessions(request_id=engine.new_id(), model=model, **fields))


def release(engine: EngineDriver, session: SessionSpec, model: str = "tiny") -> None:
    request_id = engine.new_id()
    engine.send(ReleaseSession(request_id=request_id, model=model, session=session))
    engine.wait(Done, request_id)


def runs_of(engine: EngineDriver, kind: str) -> dict[SessionSpec | None, int]:
    """Reported runs of that kind so far, by session."""
    runs: dict[SessionSpec | None, int] = {}
    for group in all_groups(engine):
        if group.kind == kind:
            runs[group.session] = runs.get(group.session, 0) + group.runs
    return runs


def all_groups(engine: EngineDriver) -> list[StepGroup]:
    """All that was reported so far. The engine has nothing open."""
    engine.stats()  # what comes before the answer has arrived
    return [group for steps in engine.steps for group in steps.groups]


@pytest.fixture
def serving(engine: EngineDriver, tiny: ModelDescription, new_kv: NewKv) -> EngineDriver:
    """An engine with the tiny decoder and its own session of one thread."""
    engine.load(tiny, new_kv(tiny, slots=4))
    return engine


def test_a_text_is_the_same_whatever_sessions_are_switched_under_it(serving: EngineDriver):
    want, _ = serving.generate([1, 2, 3], max_new_tokens=60)
    prepare(serving, TWO)
    prepare(serving, THREE)
    for _ in range(50):  # a text may end before the engine has seen what is sent while it runs
        request_id = serving.start([1, 2, 3], max_new_tokens=60, slot=1)
        ids: list[int] = []
        for turn in range(60):
            message = serving.wait(Tokens, request_id)
            ids += message.ids
            use(serving, decode=(None, TWO, THREE)[turn % 3], prefill=TWO)
        serving.wait(Finished, request_id)
        assert ids == want
        if len(runs_of(serving, "decode")) == 3:
            break
    assert set(runs_of(serving, "decode")) == {None, TWO, THREE}


def test_each_phase_runs_by_its_session_and_is_reported_so(serving: EngineDriver):
    prepare(serving, TWO)
    prepare(serving, THREE)
    use(serving, decode=TWO, prefill=THREE)
    serving.generate([1, 2, 3, 4, 5], max_new_tokens=10)
    assert runs_of(serving, "decode") == {TWO: 9}
    assert runs_of(serving, "prefill") == {THREE: 1}


def test_one_of_every_so_many_decode_steps_is_the_trials(serving: EngineDriver):
    prepare(serving, TWO)
    use(serving, trial=TrialRuns(phase="decode", session=TWO, every=4))
    serving.generate([1, 2, 3], max_new_tokens=41)
    assert runs_of(serving, "decode") == {None: 30, TWO: 10}


def test_several_generations_decode_together_by_a_further_session(serving: EngineDriver):
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    want = [serving.generate(prompt, max_new_tokens=30)[0] for prompt in prompts]
    prepare(serving, TWO)
    use(serving, decode=TWO, prefill=TWO)
    requests = [serving.start(prompt, max_new_tokens=30, slot=slot) for slot, prompt in enumerate(prompts)]
    got: dict[int, list[int]] = {request_id: [] for request_id in requests}
    ended = 0
    while ended < len(requests):
        message = serving.next()
        if isinstance(message, Tokens):
            got[message.request_id] += message.ids
        ended += isinstance(message, Finished)
    assert list(got.values()) == want
    assert any(group.rows == 3 and group.session == TWO for group in all_groups(serving))


def test_answers_go_on_while_a_session_is_made(serving: EngineDriver):
    """The engine has the preparation before the generation, whose first token comes while or after it is made: what
    is shown is that the loop takes the one while the other is open, and both end."""
    prepared = send_prepare(serving, TWO)
    request_id = serving.start([1, 2, 3], max_new_tokens=90)
    ended: set[int] = set()
    while ended != {prepared, request_id}:
        message = serving.next()
        assert not isinstance(message, Failed)
        if isinstance(message, SessionPrepared | Finished):
            ended.add(message.request_id)


def test_a_released_session_is_stood_in_for_in_the_middle_of_a_text(serving: EngineDriver):
    want, _ = serving.generate([1, 2, 3], max_new_tokens=60)
    prepare(serving, TWO)
    use(serving, decode=TWO, prefill=TWO)
    request_id = serving.start([1, 2, 3], max_new_tokens=60, slot=1)
    ids = serving.wait(Tokens, request_id).ids
    serving.send(ReleaseSession(request_id=serving.new_id(), model="tiny", session=TWO))
    rest, end = serving.collect(request_id)
    assert ids + rest == want and isinstance(end, Finished)
    runs = runs_of(serving, "decode")
    assert set(runs) <= {None, TWO} and runs[None] > 0


def test_a_session_that_is_there_is_answered_at_once_with_its_size(serving: EngineDriver):
    first = prepare(serving, TWO)
    again = prepare(serving, TWO)
    assert (again.load_s, again.added_bytes) == (0.0, first.added_bytes)
    own = prepare(serving, SessionSpec(threads=1))
    assert (own.load_s, own.added_bytes) == (0.0, 0)
    assert serving.stats().sessions == 1


def test_releasing_what_is_not_there_is_done(serving: EngineDriver):
    release(serving, TWO)
    release(serving, SessionSpec(threads=1))
    release(serving, TWO, model="nobody")
    assert len(serving.generate([1, 2, 3])[0]) == 8


def test_preparations_are_made_one_after_the_other_in_their_order(serving: EngineDriver):
    asked = [send_prepare(serving, SessionSpec(threads=threads)) for threads in (2, 3, 2, 4)]
    answers = [serving.wait(SessionPrepared).request_id for _ in asked]
    assert sorted(answers) == sorted(asked)
    assert [a for a in answers if a != asked[2]] == [asked[0], asked[1], asked[3]]
    assert serving.stats().sessions == 3


def test_a_cancelled_preparation_leaves_no_session(serving: EngineDriver):
    first, second = send_prepare(serving, TWO), send_prepare(serving, THREE)
    serving.send(CancelRequest(target=second))
    answers = {}
    while len(answers) < 2:
        message = serving.next()
        answers[message.request_id] = message  # type: ignore[attr-defined]
    assert isinstance(answers[first], SessionPrepared)
    cancelled = answers[second]
    assert isinstance(cancelled, Failed) and cancelled.code == "cancelled"
    prepare(serving, SessionSpec(threads=4))
    assert serving.stats().sessions == 2


def test_a_release_gives_up_the_preparation_of_that_session(serving: EngineDriver):
    send_prepare(serving, THREE)
    asked = send_prepare(serving, TWO)
    serving.send(ReleaseSession(request_id=serving.new_id(), model="tiny", session=TWO))
    answer = None
    while not isinstance(answer, Failed):
        answer = serving.next()
    assert (answer.request_id, answer.code) == (asked, "session_released")
    prepare(serving, SessionSpec(threads=4))
    assert serving.stats().sessions == 2


def test_unloading_gives_up_what_is_being_made_and_the_model_loads_again(
    serving: EngineDriver, tiny: ModelDescription, new_kv: NewKv
):
    want, _ = serving.generate([1, 2, 3])
    asked = send_prepare(serving, TWO)
    serving.send(UnloadModel(request_id=serving.new_id(), model="tiny"))
    answer = None
    while not isinstance(answer, Failed | SessionPrepared):
        answer = serving.next()
    assert answer.request_id == asked
    assert isinstance(answer, SessionPrepared) or answer.code == "model_unloaded"
    serving.load(tiny, new_kv(tiny, slots=4))
    assert serving.stats().sessions == 0
    assert serving.generate([1, 2, 3])[0] == want
    prepare(serving, TWO)
    use(serving, decode=TWO)
    assert serving.generate([1, 2, 3])[0] == want


def test_the_engine_leaves_while_a_session_is_being_made(serving: EngineDriver):
    send_prepare(serving, TWO)
    assert serving.shut_down() == 0


@pytest.mark.parametrize(
    ("session", "code"),
    [
        (SessionSpec(threads=0), "invalid_request"),
        (SessionSpec(threads=-1), "invalid_request"),
        (SessionSpec(threads=100_000), "invalid_request"),
        (SessionSpec(threads=1, cpus=(4095,)), "cpus_not_usable"),
        (SessionSpec(threads=1, cpus=(0, 10**12)), "cpus_not_usable"),
        (SessionSpec(threads=1, cpus=(-1,)), "cpus_not_usable"),
        (SessionSpec(threads=1, graph_file="absent.onnx"), "model_file_missing"),
        (SessionSpec(threads=1, graph_file="../model.onnx"), "model_file_unsafe"),
        (SessionSpec(threads=1, graph_file=".."), "model_file_unsafe"),
        (SessionSpec(threads=1, graph_file="tokenizer.json"), "model_file_torn"),
    ],
)
def test_a_session_that_cannot_be_made_is_refused_and_nothing_else_suffers(
    serving: EngineDriver, session: SessionSpec, code: str
):
    answer = refused(serving, session)
    assert answer.code == code
    assert answer.message
    assert len(serving.generate([1, 2, 3])[0]) == 8


def test_a_session_of_a_model_that_is_not_loaded_is_refused(serving: EngineDriver):
    assert refused(serving, TWO, model="nobody").code == "model_not_found"
    use(serving, model="nobody", decode=TWO)
    assert len(serving.generate([1, 2, 3])[0]) == 8


def test_another_graph_over_the_same_memory_can_run(engine: EngineDriver, new_kv: NewKv, folder: Path):
    model = write_decoder(folder)
    os.link(folder / "model.onnx", folder / "fused.onnx")
    engine.load(model, new_kv(model))
    want, _ = engine.generate([1, 2, 3], max_new_tokens=20)
    fused = SessionSpec(threads=2, graph_file="fused.onnx")
    prepare(engine, fused)
    use(engine, decode=fused)
    assert engine.generate([1, 2, 3], max_new_tokens=20)[0] == want
    assert runs_of(engine, "decode")[fused] == 19


@pytest.mark.parametrize("fields", [{"kv_type": "int8"}, {"logits_type": "float16"}, {"position_ids": True}])
def test_a_graph_with_other_inputs_or_outputs_is_refused(
    engine: EngineDriver, new_kv: NewKv, tmp_path: Path, fields: dict[str, Any]
):
    model = write_decoder(tmp_path / "model")
    write_decoder(tmp_path / "other", **fields)
    os.link(tmp_path / "other" / "model.onnx", tmp_path / "model" / "other.onnx")
    engine.load(model, new_kv(model))
    answer = refused(engine, SessionSpec(threads=1, graph_file="other.onnx"))
    assert answer.code == "model_invalid"
    assert engine.stats().sessions == 0
    assert len(engine.generate([1, 2, 3])[0]) == 8


def test_a_session_keeps_to_its_cpus_and_the_own_one_does_not(serving: EngineDriver):
    cpus = sorted(os.sched_getaffinity(serving.process.pid))
    tasks = Path(f"/proc/{serving.process.pid}/task")
    before = set(tasks.iterdir())
    pinned = SessionSpec(threads=3, cpus=(cpus[-1],))
    prepare(serving, pinned)
    places = [os.sched_getaffinity(int(task.name)) for task in set(tasks.iterdir()) - before]
    assert places.count({cpus[-1]}) == 2  # the pool; a third one calls
    assert sorted(os.sched_getaffinity(serving.process.pid)) == cpus
    use(serving, decode=pinned)
    want, _ = serving.generate([1, 2, 3])
    assert sorted(os.sched_getaffinity(serving.process.pid)) == [cpus[-1]]
    use(serving)
    assert serving.generate([1, 2, 3])[0] == want
    assert sorted(os.sched_getaffinity(serving.process.pid)) == cpus


def test_encoders_and_tensors_run_by_the_session_of_prompts(engine: EngineDriver, tmp_path: Path):
    from magnitude.engine.protocol import Embed, InferTensors, Tensor, TensorsOut, Vectors

    encoder, double = write_encoder(tmp_path / "encoder"), write_tensors(tmp_path / "double")
    engine.load(encoder)
    engine.load(double)

    def answers() -> tuple[bytes, bytes]:
        engine.send(Embed(request_id=engine.new_id(), model=encoder.name, inputs=[[1] * 9, [2] * 10]))
        vectors = engine.wait(Vectors)
        data = (b"\0\0\x80\x3f" * 8).ljust(32)
        tensor = Tensor(name="x", dtype="float32", shape=(2, 4), data=data)
        engine.send(InferTensors(request_id=engine.new_id(), model=double.name, inputs=[tensor]))
        return vectors.data, engine.wait(TensorsOut).outputs[0].data

    want = answers()
    for model in (encoder.name, double.name):
        prepare(engine, TWO, model)
        use(engine, model, prefill=TWO)
    assert answers() == want
    assert runs_of(engine, "encode") == {None: 1, TWO: 1}
    assert runs_of(engine, "tensors") == {None: 1, TWO: 1}
    assert {(group.rows, group.tokens) for group in all_groups(engine) if group.kind == "encode"} == {(2, 16)}
    release(engine, TWO, encoder.name)
    assert answers() == want
    assert engine.stats().sessions == 1


def test_memory_of_further_sessions_is_told(engine: EngineDriver, new_kv: NewKv, tiny: ModelDescription):
    engine.load(tiny, KvFile(layout_of(tiny)))
    added = prepare(engine, TWO).added_bytes
    assert engine.stats().session_bytes == added
    release(engine, TWO)
    assert (engine.stats().sessions, engine.stats().session_bytes) == (0, 0)


def test_drafts_are_verified_by_the_session_in_force_and_change_no_text(
    engine: EngineDriver, new_kv: NewKv, folder: Path
):
    model = write_decoder(folder, all_positions=True)
    engine.load(model, new_kv(model))
    prompt = [1, 2, 3, 4] * 8
    want, _ = engine.generate(prompt, max_new_tokens=50)
    prepare(engine, TWO)
    prepare(engine, THREE)
    use(engine, decode=TWO, trial=TrialRuns(phase="decode", session=THREE, every=3))
    got, _ = engine.generate(prompt, max_new_tokens=50, max_draft=4)
    assert got == want
    verified, decoded = runs_of(engine, "verify"), runs_of(engine, "decode")
    assert None not in verified
    trials = verified.get(THREE, 0) + decoded.get(THREE, 0)
    in_force = verified.get(TWO, 0) + decoded.get(TWO, 0)
    assert verified and trials == (trials + in_force) // 3
