from hypothesis import given
from hypothesis import strategies as st

from magnitude.config import EngineSettings
from magnitude.config.kv import KvSettings
from magnitude.models.description import DecoderShape, ModelDescription
from magnitude.policy.provision import BoardFacts, default_provision, draft_bytes

KV = KvSettings()
SHAPE = DecoderShape(
    layers=2, kv_heads=1, head_dim=8, vocab_size=32, hidden_size=16, context_length=2048, kv_type="int8"
)


@given(st.integers(1, 64), st.integers(0, 256))
def test_never_more_threads_than_the_board_lets_us_use(usable: int, wished: int) -> None:
    provision = default_provision(BoardFacts(usable_threads=usable), EngineSettings(threads=wished), SHAPE, KV)
    assert 1 <= provision.threads <= usable


def test_the_context_is_the_smaller_of_wish_and_model() -> None:
    board = BoardFacts(usable_threads=4)
    assert default_provision(board, EngineSettings(context_length=512), SHAPE, KV).context_length == 512
    assert default_provision(board, EngineSettings(context_length=8192), SHAPE, KV).context_length == 2048


def test_tokens_are_drafted_unless_speculation_is_off() -> None:
    board = BoardFacts(usable_threads=4)
    assert default_provision(board, EngineSettings(), SHAPE, KV).max_draft > 0
    assert default_provision(board, EngineSettings(speculation="off"), SHAPE, KV).max_draft == 0
    assert default_provision(board, EngineSettings(), None, KV).max_draft == 0


def test_a_draft_model_takes_memory_for_weights_and_kv() -> None:
    draft = ModelDescription(
        name="small",
        kind="decoder",
        family="any",
        folder="/nowhere",
        graph_file="model.onnx",
        model_hash="0",
        weight_bytes=1000,
        decoder=SHAPE,
    )
    settings = EngineSettings(max_batch_size=2, context_length=512)
    assert draft_bytes(draft, settings) == 1000 + 2 * 512 * SHAPE.kv_bytes_per_token()
    assert draft_bytes(None, settings) == 0


def test_a_model_without_kv_gets_no_slots() -> None:
    provision = default_provision(BoardFacts(usable_threads=4), EngineSettings(), None, KV)
    assert (provision.slots, provision.context_length, provision.kv_type) == (0, 0, None)
