import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.errors import BudgetExceeded
from magnitude.models.description import DecoderShape, EncoderShape, ModelDescription
from magnitude.models.ledger import ledger
from magnitude.policy.fitting import fit_to_memory
from magnitude.policy.strategy import Strategy

MIB = 1 << 20
WISH = Strategy(threads=4, prefill_chunk=128, slots=4, context_length=8192, kv_type="float32")
CHAT = ModelDescription(
    name="chat",
    kind="decoder",
    family="llama",
    folder="/nowhere",
    graph_file="model.onnx",
    model_hash="0",
    weight_bytes=120 * MIB,
    decoder=DecoderShape(layers=30, kv_heads=3, head_dim=64, vocab_size=49152, hidden_size=576, context_length=8192),
)
EMBEDDER = ModelDescription(
    name="embedder",
    kind="embedder",
    family="bert",
    folder="/nowhere",
    graph_file="model.onnx",
    model_hash="0",
    weight_bytes=90 * MIB,
    encoder=EncoderShape(width=384, max_tokens=256),
)


def test_what_fits_is_left_as_it_is() -> None:
    assert fit_to_memory(WISH, CHAT, 8192 * MIB) == WISH


@given(st.integers(360, 4096))
def test_a_shortened_context_fits_and_a_longer_one_would_not(available_mib: int) -> None:
    available_bytes = available_mib * MIB
    fitted = fit_to_memory(WISH, CHAT, available_bytes)
    assert fitted.slots == WISH.slots
    sums = ledger(CHAT, available_bytes=available_bytes, context=fitted.context_length, slots=fitted.slots)
    assert sums.fits
    if fitted.context_length < WISH.context_length:
        longer = ledger(CHAT, available_bytes=available_bytes, context=fitted.context_length + 1, slots=4)
        assert not longer.fits


@pytest.mark.parametrize(
    ("model", "strategy"), [(CHAT, WISH), (EMBEDDER, msgspec.structs.replace(WISH, slots=0, context_length=0))]
)
def test_what_cannot_fit_at_all_is_refused_with_the_figures(model: ModelDescription, strategy: Strategy) -> None:
    with pytest.raises(BudgetExceeded) as raised:
        fit_to_memory(strategy, model, 100 * MIB)
    assert "weights" in raised.value.message
    assert "What would fit" in raised.value.hint


def test_a_board_that_owes_memory_is_refused_and_not_a_crash() -> None:
    with pytest.raises(BudgetExceeded):
        fit_to_memory(WISH, CHAT, -5 * MIB)
