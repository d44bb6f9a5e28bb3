from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from engine_driver import KvFile
from tiny_decoder import VOCAB, write_decoder

from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.sessions import open_session
from magnitude.errors import EngineError, ModelError
from magnitude.models.description import ModelDescription

NewKv = Callable[..., KvFile]
PROMPT = [int(i) for i in np.random.default_rng(0).integers(0, 250, 40)]


def open_decoder(model: ModelDescription, file: KvFile) -> Decoder:
    session = open_session(Path(model.folder) / model.graph_file, 1)
    return file.keep(Decoder(model, session, file.keep(KvMemory(file.fd, file.layout))))


def run(decoder: Decoder, slot: int, ids: list[int], past: int) -> np.ndarray:
    decoder.show(decoder.prefill_row, slot)
    return decoder.extend(decoder.prefill_row, ids, past)[0]


def prefill(decoder: Decoder, ids: list[int], chunk: int, slot: int = 0) -> np.ndarray:
    for past in range(0, len(ids), chunk):
        row = run(decoder, slot, ids[past : past + chunk], past)
    return row.copy()


@pytest.mark.parametrize("kv_type", ["float32", "int8"])
@pytest.mark.parametrize("chunk", [1, 3, 16, 39, 40])
def test_the_logits_do_not_depend_on_how_the_prompt_is_cut_into_chunks(
    folder: Path, new_kv: NewKv, kv_type: str, chunk: int
):
    model = write_decoder(folder, kv_type=kv_type)
    decoder = open_decoder(model, new_kv(model))
    whole = prefill(decoder, PROMPT, len(PROMPT))
    # Matrix products of other shapes add up in another order; the tiny weights are of the order of one.
    assert np.allclose(prefill(decoder, PROMPT, chunk), whole, atol=2e-4)


def test_the_kv_cache_is_written_in_place_in_the_shared_memory(tiny: ModelDescription, new_kv: NewKv):
    file = new_kv(tiny)
    prefill(open_decoder(tiny, file), PROMPT, 8, slot=1)
    # Another mapping of the same memory, as a new engine has it, goes on from there.
    other = open_decoder(tiny, file)
    undisturbed = open_decoder(tiny, new_kv(tiny))
    prefill(undisturbed, PROMPT, 8, slot=1)
    assert np.array_equal(run(other, 1, [7], len(PROMPT)), run(undisturbed, 1, [7], len(PROMPT)))


def test_doing_a_step_again_gives_the_same_numbers(tiny: ModelDescription, new_kv: NewKv):
    decoder = open_decoder(tiny, new_kv(tiny))
    prefill(decoder, PROMPT, 8)
    first = run(decoder, 0, [7], len(PROMPT)).copy()
    run(decoder, 0, [8], len(PROMPT) + 1)
    assert np.array_equal(run(decoder, 0, [7], len(PROMPT)), first)


def test_slots_do_not_touch_each_other(tiny: ModelDescription, new_kv: NewKv):
    decoder = open_decoder(tiny, new_kv(tiny))
    alone = prefill(decoder, PROMPT, 8, slot=0)
    prefill(decoder, PROMPT[::-1], 8, slot=1)
    past = len(PROMPT) - 1
    assert np.array_equal(run(decoder, 0, PROMPT[-1:], past), run(decoder, 0, PROMPT[-1:], past))
    assert np.allclose(run(decoder, 0, PROMPT[-1:], past), alone, atol=2e-4)


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_a_graph_with_logits_for_all_positions_gives_those_of_the_last(folder: Path, new_kv: NewKv, chunk: int):
    last_only = write_decoder(folder / "last")
    all_rows = write_decoder(folder / "all", all_positions=True)
    want = prefill(open_decoder(last_only, new_kv(last_only)), PROMPT, chunk)
    decoder = open_decoder(all_rows, new_kv(all_rows))
    got = prefill(decoder, PROMPT, chunk)
    assert got.shape == (VOCAB,)
    assert np.allclose(got, want, atol=1e-4)
    # A step after a chunk: the chunk's own buffer is gone by then.
    assert np.isfinite(run(decoder, 0, [3], len(PROMPT))).all()


def test_half_precision_logits_and_kv_come_back_as_float32(folder: Path, new_kv: NewKv):
    whole = write_decoder(folder / "f32")
    half = write_decoder(folder / "f16", logits_type="float16")
    want = prefill(open_decoder(whole, new_kv(whole)), PROMPT, 8)
    got = prefill(open_decoder(half, new_kv(half)), PROMPT, 8)
    assert got.dtype == np.float32
    assert np.allclose(got, want, atol=0.02)


def test_position_ids_are_fed_where_the_graph_wants_them(folder: Path, new_kv: NewKv):
    model = write_decoder(folder, position_ids=True)
    decoder = open_decoder(model, new_kv(model))
    whole = prefill(decoder, PROMPT, 40)
    assert np.allclose(prefill(decoder, PROMPT, 8), whole, atol=2e-4)
    # The same token elsewhere is not the same.
    assert not np.allclose(run(decoder, 0, [5], 3).copy(), run(decoder, 0, [5], 4))


def test_a_token_outside_the_vocabulary_fails_the_run_and_not_the_decoder(tiny: ModelDescription, new_kv: NewKv):
    decoder = open_decoder(tiny, new_kv(tiny))
    with pytest.raises(EngineError) as caught:
        run(decoder, 0, [VOCAB + 5], 0)
    assert caught.value.code == "model_run_failed"
    assert np.isfinite(run(decoder, 0, [1], 0)).all()


def test_a_graph_that_is_not_what_its_description_says_is_refused(folder: Path, new_kv: NewKv):
    model = write_decoder(folder)
    assert model.decoder is not None
    session = open_session(Path(model.folder) / model.graph_file, 1)

    def refusal(**changes: object) -> str:
        assert model.decoder is not None
        shape = msgspec.structs.replace(model.decoder, **changes)
        other = msgspec.structs.replace(model, decoder=shape)
        file = new_kv(other)
        with pytest.raises(ModelError) as caught:
            Decoder(other, session, file.keep(KvMemory(file.fd, file.layout)))
        return caught.value.message

    assert "past_key_values.2.key" in refusal(layers=3)
    assert "float16" in refusal(kv_type="float16")
    assert "past_key_values.0.key has type float32, the KV memory int8" in refusal(kv_type="int8_per_token")
    assert "[batch, 4, ...]" in refusal(kv_heads=4)
    assert "head size 16, not 32" in refusal(head_dim=32)
    assert "ids" in refusal(input_ids="ids")
    assert "attention_mask" in refusal(attention_mask=None)
    assert "logits" in refusal(vocab_size=299)
