"""The golden gate: who has computed right once may serve, everybody else may not."""

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
from sample_plans import of_this_test
from scripted_engine import Answer, ScriptedEngine

from magnitude.engine.message import Message
from magnitude.engine.protocol import Embed, Failed, Finished, Generate, TokenLogprob, Tokens, ToService, Vectors
from magnitude.errors import MagnitudeError
from magnitude.models.description import DecoderShape, EncoderShape, ModelDescription
from magnitude.models.golden import Golden, GoldenPrompt, GoldenVector, write_golden
from magnitude.policy.provision import Provision
from magnitude.schedule.golden_gate import MAX_VERDICTS, GoldenGate, verdict_key
from magnitude.schedule.plan import ModelPlan

TOP = [3, 1, 4, 15, 9, 2, 6, 5]
LOGITS = [12.0, 9.0, 8.5, 8.0, 7.0, 6.0, 5.0, 4.0]
VECTOR = [0.6, 0.8]
FEATURES = ("neon",)


def decoder(folder: Path) -> ModelPlan:
    shape = DecoderShape(layers=1, kv_heads=1, head_dim=4, vocab_size=16, hidden_size=8, context_length=64)
    description = ModelDescription(
        name="m",
        kind="decoder",
        family="llama",
        folder=str(folder),
        graph_file="model.onnx",
        model_hash="hash",
        weight_bytes=1,
        decoder=shape,
    )
    provision = Provision(threads=1, prefill_chunk=8, slots=1, context_length=64, kv_type="float32")
    return of_this_test(ModelPlan(description, provision))


def embedder(folder: Path) -> ModelPlan:
    description = ModelDescription(
        name="e",
        kind="embedder",
        family="bert",
        folder=str(folder),
        graph_file="model.onnx",
        model_hash="hash",
        weight_bytes=1,
        encoder=EncoderShape(width=2, max_tokens=64),
    )
    return ModelPlan(description, Provision(threads=1, prefill_chunk=8, slots=0, context_length=0, kv_type=None))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a golden set of one prompt and one vector."""
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def with_prompt(folder: Path) -> ModelPlan:
    prompt = GoldenPrompt(ids=[1, 2, 3], top=TOP, logits=LOGITS)
    write_golden(folder, Golden(version=1, model_hash="hash", prompts=[prompt]))
    return decoder(folder)


def with_vector(folder: Path) -> ModelPlan:
    write_golden(folder, Golden(version=1, model_hash="hash", vectors=[GoldenVector(ids=[1, 2], vector=VECTOR)]))
    return embedder(folder)


def generates(top: list[tuple[int, float]]) -> Answer:
    def answer(message: Message) -> ToService:
        assert isinstance(message, Generate)
        logprob = TokenLogprob(logprob=top[0][1], top=top)
        return Tokens(request_id=message.request_id, ids=[top[0][0]], logprobs=[logprob])

    return answer


def embeds(vector: list[float]) -> Answer:
    def answer(message: Message) -> ToService:
        assert isinstance(message, Embed)
        data = np.array(vector, dtype="<f4").tobytes()
        return Vectors(request_id=message.request_id, count=1, width=len(vector), data=data, run_s=0.01)

    return answer


# Log probabilities: the logits, less a constant that no probability depends on.
RIGHT = generates([(token, logit - 12.3) for token, logit in zip(TOP, LOGITS, strict=True)])
WRONG = generates([(token, logit - 12.3) for token, logit in zip(reversed(TOP), LOGITS, strict=True)])
NANS = generates([(token, math.nan) for token in range(8)])


def judge(
    gate: GoldenGate,
    plan: ModelPlan,
    answer: Answer,
    *,
    graph_file: str = "model.onnx",
    ort_version: str = "1",
    features: tuple[str, ...] = FEATURES,
) -> tuple[MagnitudeError | None, int]:
    """The verdict, and how many questions it took."""
    engine = ScriptedEngine(answer)
    error = asyncio.run(
        gate.admit(plan, engine, graph_file=graph_file, ort_version=ort_version, cpu_features=features)
    )
    return error, len(engine.sent)


def test_a_decoder_that_computes_what_it_did_at_import_may_serve(folder: Path, state: Path) -> None:
    assert judge(GoldenGate(state), with_prompt(folder), RIGHT) == (None, 1)


def test_an_encoder_that_computes_what_it_did_at_import_may_serve(folder: Path, state: Path) -> None:
    assert judge(GoldenGate(state), with_vector(folder), embeds(VECTOR)) == (None, 1)


def test_a_pass_is_kept_over_restarts_and_asks_nothing_again(folder: Path, state: Path) -> None:
    plan = with_prompt(folder)
    gate = GoldenGate(state)
    judge(gate, plan, RIGHT)
    assert judge(gate, plan, WRONG) == (None, 0)
    assert judge(GoldenGate(state), plan, WRONG) == (None, 0)


@pytest.mark.parametrize(("ort_version", "features"), [("2", FEATURES), ("1", ("neon", "dotprod"))])
def test_another_runtime_or_cpu_has_to_prove_itself_anew(
    folder: Path, state: Path, ort_version: str, features: tuple[str, ...]
) -> None:
    plan = with_prompt(folder)
    judge(GoldenGate(state), plan, RIGHT)
    error, asked = judge(GoldenGate(state), plan, WRONG, ort_version=ort_version, features=features)
    assert error is not None
    assert asked == 1


@pytest.mark.parametrize("answer", [WRONG, NANS], ids=["other tokens", "no numbers"])
def test_wrong_logits_are_not_served_and_say_what_to_do(folder: Path, state: Path, answer: Answer) -> None:
    error, _ = judge(GoldenGate(state), with_prompt(folder), answer)
    assert error is not None
    assert error.code == "golden_failed"
    assert error.permanent
    assert error.hint


@pytest.mark.parametrize("vector", [[0.8, -0.6], [math.nan, math.nan]], ids=["elsewhere", "no numbers"])
def test_wrong_vectors_are_not_served(folder: Path, state: Path, vector: list[float]) -> None:
    error, _ = judge(GoldenGate(state), with_vector(folder), embeds(vector))
    assert error is not None
    assert error.code == "golden_failed"


def test_a_failure_is_not_kept_so_that_a_mended_model_serves(folder: Path, state: Path) -> None:
    plan = with_prompt(folder)
    gate = GoldenGate(state)
    assert judge(gate, plan, WRONG)[0] is not None
    assert judge(gate, plan, RIGHT) == (None, 1)


def test_a_model_without_a_golden_set_serves_unasked(folder: Path, state: Path) -> None:
    assert judge(GoldenGate(state), decoder(folder), WRONG) == (None, 0)


def test_a_set_of_another_model_is_refused(folder: Path, state: Path) -> None:
    write_golden(folder, Golden(version=1, model_hash="other", prompts=[]))
    error, asked = judge(GoldenGate(state), decoder(folder), RIGHT)
    assert error is not None
    assert asked == 0


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"version": 99, "model_hash": "hash"}'])
def test_a_damaged_set_keeps_the_model_from_serving(folder: Path, state: Path, content: bytes) -> None:
    (folder / "golden.json").write_bytes(content)
    error, asked = judge(GoldenGate(state), decoder(folder), RIGHT)
    assert error is not None
    assert "golden.json" in str(error)
    assert asked == 0


def test_what_the_engine_reports_instead_of_an_answer_is_passed_on(folder: Path, state: Path) -> None:
    def fails(message: Message) -> ToService:
        return Failed(request_id=1, code="out_of_memory", message="no memory", hint="Free some")

    error, _ = judge(GoldenGate(state), with_prompt(folder), fails)
    assert error is not None
    assert (error.code, error.permanent) == ("out_of_memory", False)


def test_an_end_before_the_first_token_is_a_failure(folder: Path, state: Path) -> None:
    def ends(message: Message) -> ToService:
        return Finished(
            request_id=1, reason="length", prompt_tokens=3, new_tokens=0, wait_s=0, prefill_s=0, decode_s=0
        )

    error, _ = judge(GoldenGate(state), with_prompt(folder), ends)
    assert error is not None
    assert error.code == "golden_failed"


@pytest.mark.parametrize("damage", [b"", b"{}", b"not json"])
def test_a_damaged_file_of_verdicts_means_to_ask_again(folder: Path, state: Path, damage: bytes) -> None:
    plan = with_prompt(folder)
    judge(GoldenGate(state), plan, RIGHT)
    for file in state.iterdir():
        file.write_bytes(damage)
    assert judge(GoldenGate(state), plan, RIGHT) == (None, 1)
    assert judge(GoldenGate(state), plan, WRONG) == (None, 0)


def test_storage_that_takes_no_verdict_does_not_keep_the_model_from_serving(folder: Path, tmp_path: Path) -> None:
    # A file where the folder should be refuses even root, which a read-only mode does not.
    (tmp_path / "state").write_bytes(b"")
    plan = with_prompt(folder)
    gate = GoldenGate(tmp_path / "state")
    assert judge(gate, plan, RIGHT) == (None, 1)
    assert judge(gate, plan, WRONG) == (None, 0)


def test_old_verdicts_make_room_for_new_ones(folder: Path, state: Path) -> None:
    plan = with_prompt(folder)
    gate = GoldenGate(state)
    for version in range(MAX_VERDICTS + 1):
        assert judge(gate, plan, RIGHT, ort_version=str(version)) == (None, 1)
    assert judge(GoldenGate(state), plan, RIGHT, ort_version=str(MAX_VERDICTS)) == (None, 0)
    assert judge(GoldenGate(state), plan, RIGHT, ort_version="0") == (None, 1)
    assert sum(file.stat().st_size for file in state.iterdir()) < 64 * 2 * 2 * MAX_VERDICTS


def test_the_key_names_model_graph_runtime_and_cpu_in_any_order_of_features() -> None:
    assert verdict_key("h", "g", "1", ("a", "b")) == verdict_key("h", "g", "1", ("b", "a"))
    keys = {
        verdict_key("h", "g", "1", ("a",)),
        verdict_key("i", "g", "1", ("a",)),
        verdict_key("h", "f", "1", ("a",)),
        verdict_key("h", "g", "2", ("a",)),
        verdict_key("h", "g", "1", ("b",)),
    }
    assert len(keys) == 5


def test_the_fallback_graph_has_to_prove_itself_too(folder: Path, state: Path) -> None:
    plan = with_prompt(folder)
    gate = GoldenGate(state)
    judge(gate, plan, RIGHT)
    error, asked = judge(gate, plan, WRONG, graph_file="fallback.onnx")
    assert error is not None
    assert asked == 1


def test_logits_that_the_engine_refuses_to_sample_from_are_nonsense_too(folder: Path, state: Path) -> None:
    def refuses(message: Message) -> ToService:
        return Failed(request_id=1, code="bad_logits", message="the logits are no numbers")

    error, _ = judge(GoldenGate(state), with_prompt(folder), refuses)
    assert error is not None
    assert error.code == "golden_failed"
