"""Generations that outgrow their slot, in the engine's own process and in the graph itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from engine_driver import EngineDriver, KvFile
from test_engine_rebuild import PROMPT, killed_run
from tiny_decoder import HEAD_DIM, LAYERS, write_decoder

from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.protocol import CancelRequest, Failed, Finished, PrefillProgress, SamplerSettings, Tokens
from magnitude.engine.sessions import open_session
from magnitude.engine.slide import SINKS, SlidingWindow, dropped_before, plan_slide, slide_slot
from magnitude.engine.slot_header import trusted_length
from magnitude.models.description import ModelDescription

NewKv = Callable[..., KvFile]
MAX_LEN = 96  # of the tiny decoder's slots
FREQUENCIES = tuple(10000.0 ** (-i / HEAD_DIM) for i in range(0, HEAD_DIM, 2))
LONG: dict[str, Any] = {
    "sampler": SamplerSettings(temperature=0.8, top_p=0.95, presence_penalty=0.5, repetition_penalty=1.1, seed=99),
    "max_new_tokens": 150,
    "prefill_chunk": 8,
    "overflow": "slide",
}
# Positions of a generation of `LONG`: the last token is not computed.
LAST = len(PROMPT) + LONG["max_new_tokens"] - 2


def turning(model: ModelDescription) -> ModelDescription:
    """The model, with what is known about its rotation."""
    decoder = msgspec.structs.replace(model.decoder, rope_frequencies=FREQUENCIES)
    return msgspec.structs.replace(model, decoder=decoder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelDescription:
    return turning(write_decoder(tmp_path_factory.mktemp("turning")))


@pytest.fixture
def running(model: ModelDescription, new_kv: NewKv) -> Iterator[EngineDriver]:
    with EngineDriver() as engine:
        engine.load(model, new_kv(model))
        yield engine


def ids_of_long(model: ModelDescription, kv: KvFile) -> list[int]:
    with EngineDriver() as engine:
        engine.load(model, kv)
        ids, end = engine.generate(PROMPT, **LONG)
    assert isinstance(end, Finished)
    return ids


def test_a_generation_goes_on_beyond_its_slot_and_says_what_it_dropped(running: EngineDriver) -> None:
    ids, end = running.generate(PROMPT, **LONG)
    assert isinstance(end, Finished)
    assert (len(ids), end.reason, end.new_tokens) == (150, "length", 150)
    assert end.slid_tokens == dropped_before(LAST, MAX_LEN) > MAX_LEN // 2
    again, _ = running.generate(PROMPT, slot=1, **LONG)
    assert again == ids


def test_up_to_the_slots_end_the_answer_is_that_of_a_generation_that_stops_there(running: EngineDriver) -> None:
    ids, _ = running.generate(PROMPT, **LONG)
    stopped, end = running.generate(PROMPT, **(LONG | {"overflow": "stop"}))
    assert isinstance(end, Finished)
    assert (end.reason, end.slid_tokens) == ("length", 0)
    assert len(PROMPT) + len(stopped) == MAX_LEN
    assert ids[: len(stopped)] == stopped


def test_keys_and_values_of_the_first_layer_are_those_of_the_kept_tokens_at_their_new_positions(
    model: ModelDescription, new_kv: NewKv
) -> None:
    # In the first layer they depend on a position's own token and on where it stands, on nothing else.
    file = new_kv(model)
    kv = KvMemory(file.fd, file.layout)
    decoder = Decoder(model, open_session(Path(model.folder) / model.graph_file, 1), kv)
    ids = [(i * 29) % 250 for i in range(MAX_LEN)]
    slide = plan_slide(MAX_LEN, MAX_LEN)
    assert slide is not None
    kept = ids[:SINKS] + ids[SINKS + slide.drop_tokens :]
    for slot, tokens in ((0, ids), (1, kept)):
        decoder.show(decoder.prefill_row, slot)
        decoder.extend(decoder.prefill_row, tokens, 0)
    slide_slot(kv, 0, slide, FREQUENCIES, MAX_LEN)
    for part in ("key", "value"):
        moved, direct = (kv.slot_bytes(0, part, slot).view(np.float32)[:, : len(kept)].copy() for slot in (0, 1))
        assert np.abs(direct).max() > 1
        assert np.allclose(moved, direct, rtol=0, atol=1e-5)
    decoder.close()
    kv.close()


@pytest.mark.parametrize("keep_kv", [True, False])
def test_a_generation_killed_before_and_after_slides_gives_the_undisturbed_ids(
    model: ModelDescription, new_kv: NewKv, keep_kv: bool
) -> None:
    undisturbed = ids_of_long(model, new_kv(model))
    # After 73 tokens the slot is full, and it has slid once by 74 and twice by 98.
    ids, end = killed_run(model, new_kv(model), [30, 73, 74, 98, 120], keep_kv=keep_kv, **LONG)
    assert ids == undisturbed
    assert isinstance(end, Finished)
    assert end.slid_tokens == dropped_before(LAST, MAX_LEN)


@pytest.mark.parametrize("emitted", [72, 73, 74, 75, 96, 97, 120])
def test_what_a_slid_slot_still_holds_is_not_computed_again(
    model: ModelDescription, new_kv: NewKv, emitted: int
) -> None:
    file = new_kv(model)
    whole = ids_of_long(model, new_kv(model))
    with EngineDriver() as engine:
        engine.load(model, file)
        engine.generate(PROMPT, **(LONG | {"max_new_tokens": emitted}))
    with EngineDriver() as engine:
        engine.load(model, file)
        before = engine.stats().steps
        valid = len(PROMPT) + emitted - 1
        fields = LONG | {"max_new_tokens": emitted + 1, "kv_valid_tokens": valid}
        ids, _ = engine.generate(PROMPT, emitted=whole[:emitted], **fields)
        assert ids == whole[emitted : emitted + 1]
        assert engine.stats().steps - before <= 2  # the last step, and the slide that it may need


def test_a_slot_that_slid_is_nobodys_prefix(running: EngineDriver) -> None:
    ids, _ = running.generate(PROMPT, **LONG)
    for prompt in (PROMPT, [*PROMPT, *ids[:40]]):
        request_id = running.start(prompt, kv_valid_tokens=len(prompt) - 1, prefill_chunk=8)
        first = running.next()
        assert isinstance(first, PrefillProgress)
        assert (first.request_id, first.done_tokens) == (request_id, 8)
        running.collect(request_id)
        running.generate(PROMPT, **LONG)


def test_others_get_the_same_answers_while_one_slides(running: EngineDriver) -> None:
    alone, _ = running.generate(PROMPT, **LONG)
    other_prompt = [5, 6, 7]
    other_alone, _ = running.generate(other_prompt, slot=1, max_new_tokens=80)
    first = running.start(PROMPT, **LONG)
    second = running.start(other_prompt, slot=1, max_new_tokens=80)
    got: dict[int, list[int]] = {first: [], second: []}
    open_ids = {first, second}
    while open_ids:
        message = running.next()
        if isinstance(message, Tokens):
            got[message.request_id] += message.ids
        elif isinstance(message, (Finished, Failed)):
            assert isinstance(message, Finished)
            open_ids.remove(message.request_id)
    assert got == {first: alone, second: other_alone}
    running.stats()  # the report of the last moments comes before the answer
    assert any(group.kind == "slide" for report in running.steps for group in report.groups)


def test_a_generation_that_is_cancelled_after_slides_gives_its_slot_back(running: EngineDriver) -> None:
    request_id = running.start(PROMPT, **(LONG | {"max_new_tokens": 100_000}))
    count = 0
    while count < 200:
        message = running.next()
        count += len(message.ids) if isinstance(message, Tokens) else 0
    running.send(CancelRequest(target=request_id))
    _, end = running.collect(request_id)
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"
    assert end.slid_tokens > MAX_LEN
    assert running.stats().open_requests == 0
    assert len(running.generate([1, 2, 3])[0]) == 8


def test_while_layers_are_moved_the_header_claims_nothing(model: ModelDescription, new_kv: NewKv) -> None:
    file = new_kv(model)
    kv = KvMemory(file.fd, file.layout)
    ids = list(range(MAX_LEN))
    state = kv.open_slot(0, model.model_hash)
    state.begin(ids)
    window = SlidingWindow(kv, 0, state, FREQUENCIES)
    assert window.full
    for layer in range(LAYERS):
        assert window.make_room(ids, limit_s=0) > 0
        header = kv.read_header(0)
        assert header is not None
        if layer < LAYERS - 1:
            assert header.length == 0
            assert window.full
    assert not window.full
    slide = plan_slide(MAX_LEN, MAX_LEN)
    assert slide is not None
    assert header.length == MAX_LEN - slide.drop_tokens
    assert trusted_length(header, model.model_hash, file.layout.layout_id, ids) == 0
    kv.close()


def test_a_model_that_cannot_slide_refuses_only_what_could_overflow(folder: Path, new_kv: NewKv) -> None:
    model = turning(write_decoder(folder, kv_type="int8"))
    with EngineDriver() as engine:
        engine.load(model, new_kv(model))
        _, refused = engine.generate(PROMPT, **LONG)
        assert isinstance(refused, Failed)
        assert (refused.code, refused.request_fault) == ("sliding_unsupported", True)
        assert "INT8" in refused.message
        assert refused.hint
        ids, end = engine.generate(PROMPT, **(LONG | {"max_new_tokens": MAX_LEN - len(PROMPT)}))
        assert isinstance(end, Finished)
        assert len(ids) == MAX_LEN - len(PROMPT)
