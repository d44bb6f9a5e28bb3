"""The variant gate: who comes near enough to its parent on this board may stand in for it."""

import asyncio
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sample_plans import decoder_plan, encoder_plan
from scripted_engine import Answer, ScriptedEngine

from magnitude.engine.message import Message
from magnitude.engine.protocol import Embed, Failed, Generate, TokenLogprob, Tokens, ToService, Vectors
from magnitude.models.golden import GoldenVector
from magnitude.models.parent_golden import PARENT_GOLDEN_VERSION, ParentGolden, ParentPrompt, write_parent_golden
from magnitude.models.tolerance import Tolerance
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.variant_gate import VariantGate

TOP, LOGPROBS = [3, 1, 4], [-0.1, -2.5, -5.0]
FEATURES = ("neon",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A variant's folder with what its parent says after one prompt, and of one text."""
    (tmp_path / "variant").mkdir()
    prompts = [ParentPrompt(ids=[1, 2], top=TOP, logprobs=LOGPROBS)]
    vectors = [GoldenVector(ids=[1, 2], vector=[0.6, 0.8])]
    golden = ParentGolden(version=PARENT_GOLDEN_VERSION, parent_hash="parent", prompts=prompts, vectors=vectors)
    write_parent_golden(tmp_path / "variant", golden)
    return tmp_path / "variant"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def of(folder: Path, plan: ModelPlan, **changed: object) -> ModelPlan:
    facts = {"folder": str(folder), "variant_of": "chat", "parent_hash": "parent", **changed}
    plan.description = msgspec.structs.replace(plan.description, **facts)
    return plan


def decoder(folder: Path, **changed: object) -> ModelPlan:
    return of(folder, decoder_plan("small"), **changed)


def says(*top: tuple[int, float]) -> Answer:
    def answer(message: Message) -> ToService:
        assert isinstance(message, Generate)
        logprob = TokenLogprob(logprob=top[0][1], top=list(top))
        return Tokens(request_id=message.request_id, ids=[top[0][0]], logprobs=[logprob])

    return answer


NEAR = says((3, -0.11), (1, -2.45), (4, -5.1), (9, -6.0))
FAR = says((9, -0.1), (1, -3.0), (3, -6.0))
NANS = says((3, math.nan), (1, math.nan))


def refuses(message: Message) -> ToService:
    return Failed(request_id=message.request_id, code="run_failed", message="the graph failed")  # type: ignore[attr-defined]


def check(
    gate: VariantGate,
    plan: ModelPlan,
    answer: Answer,
    *,
    ort_version: str = "1",
    features: tuple[str, ...] = FEATURES,
) -> tuple[str, int]:
    """The reason, and how many questions it took."""
    engine = ScriptedEngine(answer)
    reason = asyncio.run(gate.check(plan, engine, ort_version=ort_version, cpu_features=features))
    return reason, len(engine.sent)


def test_a_variant_that_says_what_its_parent_says_may_stand_in(folder: Path, state: Path) -> None:
    assert check(VariantGate(state), decoder(folder), NEAR) == ("", 1)


@pytest.mark.parametrize("answer", [FAR, NANS], ids=["other tokens", "no numbers"])
def test_one_that_says_something_else_on_this_board_may_not(folder: Path, state: Path, answer: Answer) -> None:
    reason, _ = check(VariantGate(state), decoder(folder), answer)
    assert reason.startswith("on this board: KL")


def test_a_pass_is_kept_over_restarts_and_asks_nothing_again(folder: Path, state: Path) -> None:
    check(VariantGate(state), decoder(folder), NEAR)
    assert check(VariantGate(state), decoder(folder), FAR) == ("", 0)


def test_a_failure_is_looked_at_again_with_the_next_load(folder: Path, state: Path) -> None:
    check(VariantGate(state), decoder(folder), FAR)
    assert check(VariantGate(state), decoder(folder), NEAR) == ("", 1)


@pytest.mark.parametrize(
    ("ort_version", "features", "changed"),
    [
        ("2", FEATURES, {}),
        ("1", ("neon", "dotprod"), {}),
        ("1", FEATURES, {"model_hash": "another"}),
        ("1", FEATURES, {"tolerance": Tolerance(kl_nats=0.5, top1_agreement=0.5, reason="another")}),
    ],
    ids=["runtime", "CPU", "weights", "tolerance"],
)
def test_what_another_verdict_could_depend_on_is_checked_anew(
    folder: Path, state: Path, ort_version: str, features: tuple[str, ...], changed: dict[str, object]
) -> None:
    gate = VariantGate(state)
    check(gate, decoder(folder), NEAR)
    plan = decoder(folder, **changed)
    assert check(gate, plan, NEAR, ort_version=ort_version, features=features) == ("", 1)


def test_a_variant_that_was_outside_at_import_is_not_asked_again(folder: Path, state: Path) -> None:
    assert check(VariantGate(state), decoder(folder, outside="KL 3 nats"), NEAR) == ("KL 3 nats", 0)


def test_one_that_cannot_be_compared_does_not_stand_in(folder: Path, state: Path) -> None:
    reason, _ = check(VariantGate(state), decoder(folder), refuses)
    assert "could not be compared with chat here: the graph failed" in reason
    (folder / "parent.json").unlink()
    reason, asked = check(VariantGate(state), decoder(folder), NEAR)
    assert "missing" in reason
    assert asked == 0


def test_what_another_import_of_the_parent_said_does_not_count(folder: Path, state: Path) -> None:
    reason, _ = check(VariantGate(state), decoder(folder, parent_hash="anew"), NEAR)
    assert "another import of the parent" in reason


@pytest.mark.parametrize(("vector", "passes"), [([0.6, 0.8], True), ([0.8, -0.6], False)])
def test_an_encoder_is_compared_by_its_vectors(folder: Path, state: Path, vector: list[float], passes: bool) -> None:
    def embeds(message: Message) -> ToService:
        assert isinstance(message, Embed)
        data = np.array(vector, dtype="<f4").tobytes()
        return Vectors(request_id=message.request_id, count=1, width=2, data=data, run_s=0.01)

    reason, _ = check(VariantGate(state), of(folder, encoder_plan("e")), embeds)
    assert (reason == "") is passes
