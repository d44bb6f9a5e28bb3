"""Generations in the engine's own process, over its real socket: streaming, turns, cancels, grammars."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_driver import EngineDriver, KvFile
from tiny_decoder import VOCAB, write_decoder

from magnitude.engine.protocol import (
    CancelRequest,
    Drain,
    Drained,
    Failed,
    Finished,
    GrammarSpec,
    Measure,
    Measured,
    PrefillProgress,
    SamplerSettings,
    Tokens,
)
from magnitude.models.description import ModelDescription

NewKv = Callable[..., KvFile]


def test_a_generation_streams_its_tokens_and_finishes_once(tiny_engine: EngineDriver):
    request_id = tiny_engine.start(list(range(20)), prefill_chunk=8, max_new_tokens=5)
    stats_id = None
    seen = []
    while stats_id is None or not isinstance(seen[-1], Drained):
        seen.append(tiny_engine.next())
        if isinstance(seen[-1], Finished) and stats_id is None:
            stats_id = tiny_engine.new_id()
            tiny_engine.send(Drain(request_id=stats_id))
    prefill = [m.done_tokens for m in seen if isinstance(m, PrefillProgress)]
    assert prefill == [8, 16, 20]
    assert sum(len(m.ids) for m in seen if isinstance(m, Tokens)) == 5
    ends = [m for m in seen if isinstance(m, (Finished, Failed))]
    assert len(ends) == 1
    assert (ends[0].reason, ends[0].prompt_tokens, ends[0].new_tokens) == ("length", 20, 5)
    assert all(m.request_id == request_id for m in seen[:-1])


def test_a_generation_ends_with_its_stop_id_delivered(tiny_engine: EngineDriver):
    ids, _ = tiny_engine.generate([1, 2, 3], max_new_tokens=20, sampler=SamplerSettings(temperature=1.0, seed=5))
    stop = ids[6]
    first = ids.index(stop)
    shorter, end = tiny_engine.generate(
        [1, 2, 3], max_new_tokens=20, sampler=SamplerSettings(temperature=1.0, seed=5), stop_ids=(stop,)
    )
    assert shorter == ids[: first + 1]
    assert isinstance(end, Finished)
    assert end.reason == "stop"


def test_a_generation_ends_where_its_slot_ends(tiny_engine: EngineDriver):
    ids, end = tiny_engine.generate(list(range(90)), max_new_tokens=1000)
    assert len(ids) == 6  # the slot has 96 positions
    assert isinstance(end, Finished)
    assert end.reason == "length"


def test_logprobs_come_with_each_token_where_asked_for(tiny_engine: EngineDriver):
    request_id = tiny_engine.start([1, 2, 3], logprobs=3, max_new_tokens=2)
    tokens = tiny_engine.wait(Tokens, request_id)
    (logprob,) = tokens.logprobs
    assert len(logprob.top) == 3
    assert logprob.top[0] == (tokens.ids[0], logprob.logprob)


def test_constrained_output_matches_its_grammar_and_stops_when_complete(tiny_engine: EngineDriver):
    ids, end = tiny_engine.generate([1, 2], grammar=GrammarSpec(kind="regex", text="[a-c]{4}"), max_new_tokens=50)
    assert len(ids) == 4
    assert isinstance(end, Finished)
    assert end.reason == "stop"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model": "nobody"}, "model_not_found"),
        ({"slot": 2}, "invalid_request"),
        ({"slot": -1}, "invalid_request"),
        ({"prompt": []}, "invalid_request"),
        ({"prompt": [VOCAB]}, "invalid_request"),
        ({"prompt": [-1]}, "invalid_request"),
        ({"emitted": [VOCAB]}, "invalid_request"),
        ({"prompt": [1] * 96}, "context_length_exceeded"),
        ({"prefill_chunk": 0}, "invalid_request"),
        ({"sampler": SamplerSettings(temperature=-1)}, "invalid_request"),
        ({"grammar": GrammarSpec(kind="regex", text="[a-")}, "invalid_grammar"),
        ({"grammar": GrammarSpec(kind="json_schema", text="nope")}, "invalid_grammar"),
    ],
)
def test_a_request_at_fault_fails_once_and_the_engine_serves_on(
    tiny_engine: EngineDriver, fields: dict[str, object], code: str
):
    prompt = fields.pop("prompt", [1, 2, 3])
    _, end = tiny_engine.generate(prompt, **fields)  # type: ignore[arg-type]
    assert isinstance(end, Failed)
    assert end.code == code
    ids, end = tiny_engine.generate([1, 2, 3])
    assert len(ids) == 8


def test_a_model_that_computes_no_numbers_fails_the_request_and_sends_no_token(
    engine: EngineDriver, folder: Path, new_kv: NewKv
):
    model = write_decoder(folder, poison=float("nan"))
    engine.load(model, new_kv(model))
    for temperature in (0.0, 0.8):
        ids, end = engine.generate([1, 2], sampler=SamplerSettings(temperature=temperature))
        assert ids == []
        assert isinstance(end, Failed)
        assert end.code == "bad_logits"
    assert engine.stats().open_requests == 0


def test_open_generations_take_turns(tiny_engine: EngineDriver):
    first = tiny_engine.start([1, 2, 3], slot=0, max_new_tokens=90)
    second = tiny_engine.start([4, 5, 6], slot=1, max_new_tokens=90)
    order = []
    while len(order) < 120:
        message = tiny_engine.next()
        if isinstance(message, Tokens):
            order.append(message.request_id)
    later = order[order.index(second) :]
    assert first in later
    assert all(later[i] != later[i + 1] for i in range(20))


def test_a_turn_with_others_gives_the_same_text_as_alone(tiny_engine: EngineDriver):
    alone, _ = tiny_engine.generate([4, 5, 6], slot=1, max_new_tokens=30)
    other = tiny_engine.start([1, 2, 3], slot=0, max_new_tokens=30)
    together, _ = tiny_engine.generate([4, 5, 6], slot=1, max_new_tokens=30)
    assert together == alone
    assert other


def test_a_slot_in_use_is_not_given_away(tiny_engine: EngineDriver):
    first = tiny_engine.start([1, 2, 3], max_new_tokens=90)
    tiny_engine.wait(Tokens, first)
    second = tiny_engine.start([1, 2, 3])
    failed = None
    while failed is None:
        message = tiny_engine.next()
        failed = message if isinstance(message, Failed) else None
    assert (failed.request_id, failed.code) == (second, "slot_in_use")


def test_a_cancelled_generation_ends_once_and_frees_its_slot(tiny_engine: EngineDriver):
    request_id = tiny_engine.start([1, 2, 3], max_new_tokens=90)
    tiny_engine.wait(Tokens, request_id)
    tiny_engine.send(CancelRequest(target=request_id))
    tiny_engine.send(CancelRequest(target=request_id))
    assert tiny_engine.wait(Finished, request_id).reason == "cancelled"
    tiny_engine.send(CancelRequest(target=request_id))
    tiny_engine.send(CancelRequest(target=12345))
    ids, end = tiny_engine.generate([1, 2, 3])
    assert len(ids) == 8
    assert isinstance(end, Finished)


def test_a_prompt_is_cancelled_between_two_chunks(tiny_engine: EngineDriver):
    request_id = tiny_engine.start(list(range(95)), prefill_chunk=1)
    tiny_engine.send(CancelRequest(target=request_id))
    ids, end = tiny_engine.collect(request_id)
    assert ids == []
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"


def slow_grammar(size: int = 3000) -> GrammarSpec:
    """A grammar that takes a noticeable time to refuse."""
    choices = [{"type": "object", "properties": {f"k{i}": {}}, "required": [f"k{i}"]} for i in range(size)]
    return GrammarSpec(kind="json_schema", text=json.dumps({"anyOf": choices}))


def test_a_generation_goes_on_while_the_grammar_of_another_is_built(tiny_engine: EngineDriver):
    first = tiny_engine.start([1, 2, 3], slot=0, max_new_tokens=90)
    second = tiny_engine.start([1, 2, 3], slot=1, grammar=slow_grammar())
    ids, end = tiny_engine.collect(first)  # messages of the second would be dropped: it must come later
    assert len(ids) == 90
    assert isinstance(end, Finished)
    _, end = tiny_engine.collect(second)
    assert isinstance(end, Failed)
    assert end.code == "invalid_grammar"


def test_a_generation_is_cancelled_while_its_grammar_is_built_and_its_slot_is_free(tiny_engine: EngineDriver):
    request_id = tiny_engine.start([1, 2, 3], grammar=slow_grammar())
    twin = tiny_engine.start([1, 2, 3])
    tiny_engine.send(CancelRequest(target=request_id))
    failed = tiny_engine.next()
    assert isinstance(failed, Failed)
    assert (failed.request_id, failed.code) == (twin, "slot_in_use")
    assert tiny_engine.wait(Finished, request_id).reason == "cancelled"
    ids, _ = tiny_engine.generate([1, 2, 3])
    assert len(ids) == 8


def test_steps_of_each_batch_size_are_measured_on_request(tiny: ModelDescription, new_kv: NewKv):
    with EngineDriver() as engine:
        engine.load(tiny, new_kv(tiny, slots=4))
        request_id = engine.new_id()
        engine.send(Measure(request_id=request_id, model="tiny", slot=3, rows=(1, 2, 4), past_tokens=16, steps=3))
        measured = engine.wait(Measured, request_id)
        assert len(measured.step_s) == 3 and min(measured.step_s) > 0
        for wrong in ({"slot": 4}, {"rows": (1, 5)}, {"past_tokens": 96}, {"model": "other"}):
            request_id = engine.new_id()
            fields = {"model": "tiny", "slot": 3, "rows": (1,), "past_tokens": 16} | wrong
            engine.send(Measure(request_id=request_id, **fields))
            assert engine.wait(Failed, request_id).request_fault


def test_nothing_is_measured_beside_a_generation(tiny: ModelDescription, new_kv: NewKv):
    with EngineDriver() as engine:
        engine.load(tiny, new_kv(tiny, slots=2))
        running = engine.start([1, 2, 3], max_new_tokens=90)
        request_id = engine.new_id()
        engine.send(Measure(request_id=request_id, model="tiny", slot=1, rows=(1,), past_tokens=16))
        assert engine.wait(Failed, request_id).code == "engine_busy"
        assert len(engine.collect(running)[0]) > 0
