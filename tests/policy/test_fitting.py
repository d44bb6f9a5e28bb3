import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.errors import BudgetExceeded
from magnitude.models.description import DecoderShape, EncoderShape, ModelDescription
from magnitude.models.ledger import ledger
from magnitude.policy.fitting import (
    POOL_SHARE,
    account_bytes,
    fit_each,
    fit_to_memory,
    fit_together,
    need_of,
    pool_refusal,
)
from magnitude.policy.provision import Provision

MIB = 1 << 20
WISH = Provision(
    threads=4,
    prefill_chunk=128,
    max_batch=4,
    slots=16,
    kv_budget_bytes=4 * 8192 * 46080,
    context_length=8192,
    kv_type="float32",
)
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
    sums = ledger(CHAT, available_bytes=available_bytes, context=fitted.context_length, slots=fitted.max_batch)
    assert sums.fits
    if fitted.context_length < WISH.context_length:
        longer = ledger(CHAT, available_bytes=available_bytes, context=fitted.context_length + 1, slots=4)
        assert not longer.fits


@pytest.mark.parametrize(
    ("model", "provision"), [(CHAT, WISH), (EMBEDDER, msgspec.structs.replace(WISH, slots=0, context_length=0))]
)
def test_what_cannot_fit_at_all_is_refused_with_the_figures(model: ModelDescription, provision: Provision) -> None:
    with pytest.raises(BudgetExceeded) as raised:
        fit_to_memory(provision, model, 100 * MIB)
    assert "weights" in raised.value.message
    assert "What would fit" in raised.value.hint


def test_a_board_that_owes_memory_is_refused_and_not_a_crash() -> None:
    with pytest.raises(BudgetExceeded):
        fit_to_memory(WISH, CHAT, -5 * MIB)


def wish(model: ModelDescription) -> Provision:
    return WISH if model.decoder else msgspec.structs.replace(WISH, slots=0, context_length=0)


def heavy(mib: int) -> ModelDescription:
    return msgspec.structs.replace(EMBEDDER, name=f"heavy-{mib}", weight_bytes=mib * MIB)


def names(pairs: list) -> list[str]:
    return [model.name for model, _ in pairs]


def test_models_that_fit_side_by_side_are_all_served_as_wished() -> None:
    fitted = fit_together([CHAT, EMBEDDER], wish, 8192 * MIB)
    assert fitted.served == [(CHAT, WISH), (EMBEDDER, wish(EMBEDDER))]
    assert fitted.left_out == []


def test_the_heaviest_companion_goes_where_the_chat_model_has_no_room_beside_it() -> None:
    fitted = fit_together([CHAT, EMBEDDER, heavy(4096)], wish, 2048 * MIB)
    assert names(fitted.served) == ["chat", "embedder"]
    assert names(fitted.left_out) == ["heavy-4096"]


def test_the_first_model_must_fit() -> None:
    with pytest.raises(BudgetExceeded):
        fit_together([CHAT, EMBEDDER], wish, 100 * MIB)


def test_a_context_that_was_cut_for_a_companion_grows_back_when_that_one_is_left_out() -> None:
    free_bytes = 1024 * MIB
    alone = fit_together([CHAT], wish, free_bytes).served
    assert fit_together([CHAT, heavy(800)], wish, free_bytes).served == alone


@given(st.integers(360, 8192))
def test_memory_is_not_promised_twice(free_mib: int) -> None:
    second = msgspec.structs.replace(CHAT, name="second")
    fitted = fit_together([CHAT, second, EMBEDDER], wish, free_mib * MIB)
    held = 0
    for model, provision in fitted.served:
        held += need_of(model, provision).total_bytes
    assert held <= account_bytes(free_mib * MIB)
    assert len(fitted.served) + len(fitted.left_out) == 3


def test_kv_beyond_the_share_of_pools_is_cut_and_no_slot_is_longer_than_the_rest() -> None:
    wide = msgspec.structs.replace(WISH, max_batch=16, kv_budget_bytes=16 * 8192 * 46080)
    ((_, provision),) = fit_together([CHAT], lambda model: wide, 12_000 * MIB).served
    limit_bytes = int(POOL_SHARE * account_bytes(12_000 * MIB))
    assert provision.context_length == 8192
    assert need_of(CHAT, wide).pool_bytes <= limit_bytes
    ((_, provision),) = fit_together([CHAT], lambda model: wide, 8_000 * MIB).served
    need = need_of(CHAT, provision)
    assert need.pool_bytes <= int(POOL_SHARE * account_bytes(8_000 * MIB)) < need.pool_bytes + 46080
    assert provision.context_length * 46080 <= provision.kv_budget_bytes


@given(st.integers(0, 10**10), st.integers(0, 10**10))
def test_a_pool_above_its_share_of_the_memory_is_refused_and_no_other(pool_bytes: int, available_bytes: int) -> None:
    reason = pool_refusal(pool_bytes, available_bytes)
    assert (reason is not None) == (pool_bytes > POOL_SHARE * available_bytes)
    if reason is not None:
        assert f"{pool_bytes / 1e6:.0f} MB" in reason
        assert f"{available_bytes / 1e6:.0f} MB" in reason


def test_activations_beyond_the_share_of_pools_are_refused() -> None:
    wordy = msgspec.structs.replace(
        CHAT, name="wordy", decoder=msgspec.structs.replace(CHAT.decoder, vocab_size=10**6)
    )
    with pytest.raises(BudgetExceeded, match="60% of the memory"):
        fit_together([wordy], wish, 2200 * MIB)


@given(st.integers(360, 16384))
def test_each_model_on_demand_fits_beside_the_pinned_ones(free_mib: int) -> None:
    free_bytes = free_mib * MIB
    pinned = fit_together([CHAT], wish, free_bytes).served
    others = [msgspec.structs.replace(CHAT, name="second"), EMBEDDER, heavy(4096)]
    fitted = fit_each(others, wish, free_bytes, pinned)
    held_bytes = need_of(*pinned[0]).total_bytes
    for model, provision in fitted.served:
        need = need_of(model, provision)
        assert held_bytes + need.total_bytes <= account_bytes(free_bytes)
        assert need.pool_bytes <= POOL_SHARE * account_bytes(free_bytes)
    assert len(fitted.served) + len(fitted.left_out) == 3
