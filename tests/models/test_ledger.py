"""The memory ledger: sums, borders and advice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.models.description import DecoderShape, EncoderShape, ModelDescription
from magnitude.models.ledger import ledger

SHAPE = DecoderShape(layers=30, kv_heads=3, head_dim=64, vocab_size=49152, hidden_size=576, context_length=8192)
DECODER = ModelDescription(
    name="d",
    kind="decoder",
    family="llama",
    folder="/m/d",
    graph_file="model.onnx",
    model_hash="h",
    weight_bytes=124_000_000,
    decoder=SHAPE,
)
ENCODER = ModelDescription(
    name="e",
    kind="embedder",
    family="bert",
    folder="/m/e",
    graph_file="model.onnx",
    model_hash="h",
    weight_bytes=90_000_000,
    encoder=EncoderShape(width=384, max_tokens=256),
)
GB = 1_000_000_000
memory = st.integers(100_000_000, 20 * GB)


def row(sheet_rows: tuple, name: str) -> int:
    return next(r.bytes for r in sheet_rows if r.name == name)


def test_the_kv_row_is_every_position_of_every_slot() -> None:
    sheet = ledger(DECODER, available_bytes=4 * GB, context=4096, slots=3)
    assert row(sheet.rows, "KV cache") == 3 * 4096 * SHAPE.kv_bytes_per_token()


def test_the_total_is_the_sum_of_the_rows() -> None:
    sheet = ledger(DECODER, available_bytes=4 * GB, context=1000, slots=2)
    assert sheet.total_bytes == sum(r.bytes for r in sheet.rows)


@given(memory, st.integers(1, 16))
def test_the_largest_context_fits_and_the_next_does_not(available: int, slots: int) -> None:
    largest = ledger(DECODER, available_bytes=available, context=64, slots=slots).largest_context
    if largest:
        assert ledger(DECODER, available_bytes=available, context=largest, slots=slots).fits
    if largest < SHAPE.context_length:
        assert not ledger(DECODER, available_bytes=available, context=max(largest + 1, 64), slots=slots).fits


@given(memory, st.integers(64, 8192), st.integers(1, 16))
def test_advice_is_given_only_and_always_when_it_does_not_fit(available: int, context: int, slots: int) -> None:
    sheet = ledger(DECODER, available_bytes=available, context=context, slots=slots)
    assert sheet.fits == (not sheet.advice)


@given(memory, st.integers(1, 8))
def test_more_memory_never_makes_the_context_smaller(available: int, slots: int) -> None:
    less = ledger(DECODER, available_bytes=available, context=64, slots=slots).largest_context
    more = ledger(DECODER, available_bytes=available * 2, context=64, slots=slots).largest_context
    assert more >= less


def test_a_scale_for_each_position_and_head_counts_and_is_named() -> None:
    plain, scaled = (
        next(
            r
            for r in ledger(DECODER, available_bytes=4 * GB, context=1000, kv_type=kv_type).rows
            if r.name == "KV cache"
        )
        for kv_type in ("int8", "int8_per_token")
    )
    assert scaled.bytes == plain.bytes + 1000 * 2 * 30 * 3 * 4
    assert "(2 x 30 layers x 3 heads x 64 x int8)" in plain.how
    assert "(2 x 30 layers x 3 heads x (64 x int8 + a float32 scale))" in scaled.how
    advice = ledger(DECODER, available_bytes=GB, context=8192, slots=9, kv_type="int8_per_token").advice
    assert not any("--kv" in line for line in advice)


def test_int8_kv_is_a_quarter_and_is_advised_where_it_helps() -> None:
    floats = ledger(DECODER, available_bytes=GB, context=8192, slots=2)
    int8 = ledger(DECODER, available_bytes=GB, context=8192, slots=2, kv_type="int8")
    assert not floats.fits
    assert int8.fits
    assert any("--kv int8" in line for line in floats.advice)
    assert row(int8.rows, "KV cache") == pytest.approx(row(floats.rows, "KV cache") / 4, rel=0.01)


def test_where_nothing_helps_a_smaller_model_is_advised() -> None:
    sheet = ledger(DECODER, available_bytes=100_000_000, context=8192)
    assert sheet.largest_context == 0
    assert any("smaller model" in line for line in sheet.advice)


def test_an_encoder_has_no_kv_cache() -> None:
    sheet = ledger(ENCODER, available_bytes=GB, context=256)
    assert sheet.fits
    assert "KV cache" not in {r.name for r in sheet.rows}
