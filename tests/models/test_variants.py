"""Which folders are variants of which model, and when figures are within a tolerance."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.models.description import DecoderShape, KvType, ModelDescription
from magnitude.models.golden import GoldenVector, log_softmax
from magnitude.models.parent_golden import (
    PARENT_GOLDEN_VERSION,
    ParentGolden,
    compare_prompts,
    compare_vectors,
    parent_prompt,
    vectors_beside,
)
from magnitude.models.tolerance import (
    DECODER_TOLERANCE,
    ENCODER_TOLERANCE,
    Nearness,
    Tolerance,
    completed,
    default_tolerance,
    outside,
    told,
)
from magnitude.models.variants import as_its_own, misfit, smaller_first, smaller_than, strays, variants_of


def model(
    name: str, *, variant_of: str = "", model_hash: str = "", weight_bytes: int = 1, kv: KvType = "float32"
) -> ModelDescription:
    return ModelDescription(
        name=name,
        kind="decoder",
        family="llama",
        folder="/nowhere",
        graph_file="model.onnx",
        model_hash=model_hash or name,
        weight_bytes=weight_bytes,
        decoder=DecoderShape(
            layers=1, kv_heads=1, head_dim=16, vocab_size=8, hidden_size=16, context_length=64, kv_type=kv
        ),
        variant_of=variant_of,
        parent_hash=variant_of,
    )


CHAT, SMALL, OTHER = model("chat"), model("small", variant_of="chat"), model("other")


def test_variants_are_found_by_their_parent_s_name() -> None:
    assert variants_of(CHAT, [OTHER, SMALL, CHAT]) == [SMALL]
    assert variants_of(OTHER, [OTHER, SMALL, CHAT]) == []


def test_a_variant_whose_parent_was_imported_anew_is_none_of_it() -> None:
    anew = model("chat", model_hash="anew")
    assert variants_of(anew, [anew, SMALL]) == []
    assert "another import of chat" in strays([anew, SMALL])["small"]


def test_a_variant_without_its_parent_is_a_stray() -> None:
    assert strays([SMALL, OTHER]) == {"small": "it is a variant of chat, which is not there"}
    assert strays([SMALL, CHAT]) == {}


def test_variants_do_not_nest() -> None:
    nested = model("nested", variant_of="small")
    assert "itself a variant" in misfit(nested, SMALL)
    assert variants_of(SMALL, [CHAT, SMALL, nested]) == []


def test_a_variant_that_is_served_by_itself_is_a_model_like_any_other() -> None:
    alone = as_its_own(msgspec.structs.replace(SMALL, outside="far"))
    assert (alone.variant_of, alone.outside) == ("", "")
    assert strays([alone]) == {}


def test_the_smallest_weights_come_first_then_the_smallest_cache() -> None:
    large, small = model("a", weight_bytes=9), model("b", weight_bytes=3)
    lean = model("c", weight_bytes=3, kv="int8")
    assert smaller_first([large, small, lean]) == [lean, small, large]


def test_only_what_takes_less_relieves_a_board() -> None:
    parent = model("chat", weight_bytes=1000)
    variants = [
        model("lean", variant_of="chat", weight_bytes=1001, kv="int8"),
        model("small", variant_of="chat", weight_bytes=500),
        model("same", variant_of="chat", weight_bytes=1000),
        model("wide", variant_of="chat", weight_bytes=2000, kv="int8"),
    ]
    assert [found.name for found in smaller_than(parent, variants)] == ["small", "lean"]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Nearness(top1_agreement=0.97, kl_nats=0.01), ""),
        (Nearness(top1_agreement=0.97, kl_nats=0.3), "KL 0.3000 nats (at most 0.02)"),
        (Nearness(top1_agreement=0.5, kl_nats=0.01), "top-1 0.5000 (at least 0.93)"),
        (
            Nearness(top1_agreement=math.nan, kl_nats=math.nan),
            "KL nan nats (at most 0.02), top-1 nan (at least 0.93)",
        ),
        (Nearness(), "KL not measured (at most 0.02), top-1 not measured (at least 0.93)"),
    ],
    ids=["within", "diverges", "other tokens", "no numbers", "not measured"],
)
def test_figures_are_within_a_tolerance_only_if_each_of_them_is(found: Nearness, says: str) -> None:
    assert outside(DECODER_TOLERANCE, found) == says


def test_an_encoder_is_judged_by_its_cosine() -> None:
    tolerance = default_tolerance("embedder")
    assert tolerance == ENCODER_TOLERANCE
    assert outside(tolerance, Nearness(cosine=0.9994)) == ""
    assert "lowest cosine 0.9636" in outside(tolerance, Nearness(cosine=0.9636))


def test_what_is_not_stated_of_a_tolerance_is_as_usual() -> None:
    stated = completed(Tolerance(kl_nats=0.1, reason="stated"), DECODER_TOLERANCE)
    assert (stated.kl_nats, stated.top1_agreement, stated.reason) == (0.1, 0.93, "stated")
    assert completed(None, DECODER_TOLERANCE) == DECODER_TOLERANCE
    assert told(stated) == "KL at most 0.1 nats, top-1 at least 0.93 (stated)"


logits = st.lists(st.floats(-20, 20, width=32), min_size=40, max_size=40)


def golden(*rows: list[float]) -> ParentGolden:
    prompts = [parent_prompt([n], np.array(row, np.float32)) for n, row in enumerate(rows)]
    return ParentGolden(version=PARENT_GOLDEN_VERSION, parent_hash="h", prompts=prompts)


def logprobs(row: list[float]) -> dict[int, float]:
    return dict(enumerate(log_softmax(np.array(row, np.float32)).tolist()))


@given(logits)
def test_a_graph_is_as_near_as_can_be_to_itself(row: list[float]) -> None:
    found = compare_prompts(golden(row), lambda _: logprobs(row))
    assert found.top1_agreement == 1.0 or row.count(max(row)) > 1  # equal ones have no order
    assert found.kl_nats is not None
    assert found.kl_nats < 1e-3


@given(logits, logits)
def test_joined_tokens_never_diverge_more_than_all_of_them(parent: list[float], variant: list[float]) -> None:
    found = compare_prompts(golden(parent), lambda _: logprobs(variant))
    p, q = log_softmax(np.array(parent, np.float32)), log_softmax(np.array(variant, np.float32))
    whole = float(np.exp(p) @ (p - q))
    assert found.kl_nats is not None
    assert found.kl_nats <= whole + 1e-3


def test_a_variant_that_talks_nonsense_is_far_away() -> None:
    parent, variant = [9.0, *([0.0] * 39)], [*([0.0] * 39), 9.0]
    found = compare_prompts(golden(parent), lambda _: dict(list(logprobs(variant).items())[-8:]))
    assert found.top1_agreement == 0.0
    assert outside(DECODER_TOLERANCE, found)


def test_logprobs_that_are_no_numbers_are_outside() -> None:
    found = compare_prompts(golden([9.0, *([0.0] * 39)]), lambda _: dict.fromkeys(range(40), math.nan))
    assert outside(DECODER_TOLERANCE, found)


def test_vectors_are_compared_by_the_lowest_cosine_and_scores_by_their_difference() -> None:
    vectors = [GoldenVector(ids=[1], vector=[1.0, 0.0]), GoldenVector(ids=[2], vector=[0.0, 1.0])]
    whole = ParentGolden(version=PARENT_GOLDEN_VERSION, parent_hash="h", vectors=vectors)
    assert compare_vectors(whole, lambda ids: np.array([1.0, 0.0])).cosine == 0.0
    scores = [GoldenVector(ids=[1], vector=[0.5])]
    score = ParentGolden(version=PARENT_GOLDEN_VERSION, parent_hash="h", vectors=scores)
    assert compare_vectors(score, lambda ids: np.array([0.25])).cosine == 0.75
    broken = [(np.ones(2), np.ones(2)), (np.ones(2), np.array([1.0, math.nan]))]
    assert outside(ENCODER_TOLERANCE, vectors_beside(broken)), "no number is no nearness, wherever it stands"
    empty = ParentGolden(version=PARENT_GOLDEN_VERSION, parent_hash="h")
    assert compare_vectors(empty, lambda ids: np.array([1.0])) == Nearness()
