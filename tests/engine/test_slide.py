from __future__ import annotations

import msgspec
import numpy as np
import pytest
from engine_driver import KvFile
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_bytes import quantise
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.slide import (
    SINKS,
    KeyTurn,
    Slide,
    can_slide,
    dropped_before,
    header_ids,
    move_bytes_down,
    move_down,
    plan_slide,
    slide_slot,
)
from magnitude.engine.slot_header import HASH_OF_NOTHING, extend_hash
from magnitude.models.description import DecoderShape

F64 = NDArray[np.float64]

SHAPE = DecoderShape(
    layers=2,
    kv_heads=2,
    head_dim=16,
    vocab_size=300,
    hidden_size=64,
    context_length=256,
    rope_frequencies=tuple(10000.0 ** (-i / 8) for i in range(8)),
)
LAYOUT = KvLayout.of(SHAPE, slots=2, max_len=96)


def frequencies_of(head_dim: int, theta: float) -> F64:
    return theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def rotated(vectors: F64, positions: F64, frequencies: F64) -> F64:
    """Rotary position embedding (Su et al.), channel i paired with i + head_dim / 2, in double precision."""
    angles = positions[:, None] * frequencies[None]
    half = vectors.shape[1] // 2
    pairs = (vectors[:, :half] + 1j * vectors[:, half:]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag], axis=1)


@given(
    head_dim=st.sampled_from([2, 16, 64, 128]),
    theta=st.sampled_from([10_000.0, 100_000.0, 1_000_000.0]),
    sinks=st.integers(1, 6),
    drop=st.integers(1, 1500),
    stay=st.integers(1, 700),
    seed=st.integers(0, 2**32 - 1),
)
def test_attention_after_a_slide_is_that_of_keys_computed_where_they_now_stand(
    head_dim: int, theta: float, sinks: int, drop: int, stay: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    frequencies = frequencies_of(head_dim, theta)
    length, kept = sinks + drop + stay, sinks + stay
    keys, query = rng.standard_normal((length, head_dim)), rng.standard_normal((1, head_dim))
    cache = rotated(keys, np.arange(length, dtype=np.float64), frequencies).astype(np.float32)

    move_down(cache, Slide(sinks, drop), length, KeyTurn(tuple(frequencies), drop))

    remaining = np.concatenate([keys[:sinks], keys[sinks + drop :]])
    direct = rotated(remaining, np.arange(kept, dtype=np.float64), frequencies)
    asked = rotated(query, np.array([float(kept)]), frequencies)[0]
    assert np.allclose(cache[:kept], direct, rtol=0, atol=1e-5)
    assert np.allclose(cache[:kept].astype(np.float64) @ asked, direct @ asked, rtol=0, atol=1e-5 * head_dim)


@given(
    positions=st.integers(1, 2000), sinks=st.integers(0, 6), drop=st.integers(1, 1500), dtype=st.sampled_from("fe")
)
def test_values_move_unchanged_and_nothing_else_is_written(positions: int, sinks: int, drop: int, dtype: str) -> None:
    head = np.arange(2.0 * positions, dtype=np.float32).reshape(positions, 2).astype(dtype)
    was = head.copy()
    length = positions - positions // 5  # behind it stands what is not of this conversation
    move_down(head, Slide(sinks, drop), length, None)
    kept = np.concatenate([was[:sinks], was[sinks + drop : length]])[: max(0, length)]
    assert (head[: len(kept)] == kept).all()
    assert (head[length:] == was[length:]).all()


def test_half_precision_keys_are_turned_in_single_precision() -> None:
    rng = np.random.default_rng(3)
    frequencies = frequencies_of(64, 10_000.0)
    keys = rng.standard_normal((600, 64))
    cache = rotated(keys, np.arange(600.0), frequencies).astype(np.float16)
    move_down(cache, Slide(4, 100), 600, KeyTurn(tuple(frequencies), 100))
    direct = rotated(keys[104:], np.arange(4.0, 500.0), frequencies)
    # Rounded twice, when it was written and when it was moved: 2^-11 each, relative to values below 4.
    assert np.abs(cache[4:500] - direct).max() < 2 * 4 * 2**-11


@given(
    head_dim=st.sampled_from([16, 64, 128]),
    drop=st.integers(1, 700),
    stay=st.integers(1, 1200),
    seed=st.integers(0, 99),
)
def test_keys_in_bytes_are_turned_to_within_two_roundings(head_dim: int, drop: int, stay: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    frequencies = frequencies_of(head_dim, 10_000.0)
    length = SINKS + drop + stay
    keys = rng.standard_normal((length, head_dim))
    codes, scales = np.empty((length, head_dim), np.int8), np.empty(length, np.float32)
    quantise(rotated(keys, np.arange(float(length)), frequencies).astype(np.float32), codes, scales)
    was = scales.copy()
    move_bytes_down(codes, scales, Slide(SINKS, drop), length, KeyTurn(tuple(frequencies), drop))
    remaining = np.concatenate([keys[:SINKS], keys[SINKS + drop :]])
    direct = rotated(remaining, np.arange(float(SINKS + stay)), frequencies)
    found = codes[: SINKS + stay].astype(np.float64) * scales[: SINKS + stay, None]
    # A turned pair has errors of both of its channels as they were, at most sqrt(2) together, and its own.
    before = np.concatenate([was[:SINKS], was[SINKS + drop :]])
    bound = 0.501 * (np.sqrt(2) * before + scales[: SINKS + stay])
    assert (np.abs(found - direct).max(axis=1) <= bound + 1e-5).all()


def test_a_slide_moves_all_tensors_of_a_slot_in_bytes() -> None:
    shape = msgspec.structs.replace(SHAPE, kv_type="int8_per_token")
    layout = KvLayout.of(shape, slots=2, max_len=96)
    file = KvFile(layout)
    kv = KvMemory(file.fd, layout)
    rng = np.random.default_rng(8)
    for layer in range(layout.layers):
        for part in layout.parts:
            view = kv.slot_bytes(layer, part.name, 1).view(np.dtype(part.dtype))
            if part.dtype == "int8":
                view[:] = rng.integers(-127, 128, view.shape)
            else:
                view[:] = rng.uniform(0.01, 0.02, view.shape)
            del view
    was = {
        (layer, part.name): kv.slot_bytes(layer, part.name, 1).view(np.dtype(part.dtype)).copy()
        for layer in range(layout.layers)
        for part in layout.parts
    }
    slide = Slide(SINKS, 20)
    slide_slot(kv, 1, slide, SHAPE.rope_frequencies, 96)
    for layer in range(layout.layers):
        for name in ("value", "value_scale"):
            dtype = np.int8 if name == "value" else np.float32
            now = kv.slot_bytes(layer, name, 1).view(dtype)[:, :76].copy()
            assert (now == np.concatenate([was[layer, name][:, :SINKS], was[layer, name][:, 24:96]], axis=1)).all()
        keys, scales = was[layer, "key"].copy(), was[layer, "key_scale"].copy()
        for head in range(layout.kv_heads):
            turn = KeyTurn(SHAPE.rope_frequencies, 20)
            move_bytes_down(keys[head], scales[head, :, 0], slide, 96, turn)
        assert (kv.slot_bytes(layer, "key", 1).view(np.int8)[:, :76].copy() == keys[:, :76]).all()
        assert (kv.slot_bytes(layer, "key_scale", 1).view(np.float32)[:, :76].copy() == scales[:, :76]).all()
    kv.close()
    file.close()


@given(max_len=st.integers(16, 300), tokens=st.integers(1, 1500))
def test_what_is_dropped_follows_from_the_number_of_tokens_alone(max_len: int, tokens: int) -> None:
    length = dropped = 0
    for index in range(tokens):
        slide = plan_slide(length, max_len)
        if slide is not None:
            assert slide.drop_from == SINKS
            assert slide.drop_from + slide.drop_tokens < length
            length -= slide.drop_tokens
            dropped += slide.drop_tokens
        assert dropped_before(index, max_len) == dropped
        assert length == index - dropped < max_len
        length += 1


@given(max_len=st.integers(40, 5000))
def test_a_slide_makes_room_for_a_quarter_and_keeps_three(max_len: int) -> None:
    slide = plan_slide(max_len, max_len)
    assert slide is not None
    assert 0.2 < slide.drop_tokens / max_len <= 0.25


@given(ids=st.lists(st.integers(0, 2**31 - 1), min_size=10, max_size=60), dropped=st.integers(1, 5))
def test_a_slot_that_was_slid_looks_like_the_beginning_of_no_conversation(ids: list[int], dropped: int) -> None:
    marked = header_ids(ids, dropped)
    assert len(marked) == len(ids) - dropped
    assert marked[1:] == [*ids[1:SINKS], *ids[SINKS + dropped :]]
    found = extend_hash(HASH_OF_NOTHING, marked)
    plain = [*ids[:SINKS], *ids[SINKS + dropped :]]
    assert found != extend_hash(HASH_OF_NOTHING, plain)
    assert found != extend_hash(HASH_OF_NOTHING, ids[: len(marked)])
    assert found != extend_hash(HASH_OF_NOTHING, [*header_ids(ids, dropped + 1), 0])


def test_a_header_grows_behind_a_slide_as_it_does_elsewhere() -> None:
    ids = list(range(50))
    early = extend_hash(HASH_OF_NOTHING, header_ids(ids[:40], 8))
    assert extend_hash(early, ids[40:]) == extend_hash(HASH_OF_NOTHING, header_ids(ids, 8))


def test_without_a_slide_a_header_is_made_from_the_ids_themselves() -> None:
    assert header_ids([1, 2, 3], 0) == [1, 2, 3]


def test_models_whose_keys_can_be_turned_slide() -> None:
    assert can_slide(SHAPE, LAYOUT) is None
    scaled = msgspec.structs.replace(SHAPE, kv_type="int8_per_token")
    assert can_slide(scaled, KvLayout.of(scaled, slots=1, max_len=96)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_type": "int8"}, "INT8"),
        ({"rope_frequencies": ()}, "not known"),
        ({"rope_frequencies": (1.0, 0.5)}, "part"),
        ({"position_ids": "position_ids"}, "input"),
    ],
)
def test_others_say_why_they_do_not(changes: dict[str, object], reason: str) -> None:
    shape = msgspec.structs.replace(SHAPE, **changes)
    assert reason in (can_slide(shape, KvLayout.of(shape, slots=1, max_len=96)) or "")


def test_a_slot_of_a_few_positions_does_not_slide() -> None:
    assert "short" in (can_slide(SHAPE, KvLayout.of(SHAPE, slots=1, max_len=15)) or "")
