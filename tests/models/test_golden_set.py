"""The golden set: what passes, what does not, and how the accuracy level follows from figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from magnitude.errors import ModelError
from magnitude.models.golden import (
    Golden,
    GoldenVector,
    agreement,
    check,
    golden_prompt,
    read_golden,
    write_golden,
)

ROW = np.array([0.0, 9.0, 1.0, 2.0, -3.0, 0.5, 0.25, 0.125, 0.1, 0.2], np.float32)


def golden_of(row: np.ndarray) -> Golden:
    prompt = golden_prompt([1, 2, 3], row)
    assert prompt is not None
    return Golden(version=1, model_hash="m", prompts=[prompt])


def test_the_same_logits_pass() -> None:
    assert check(lambda _: ROW, golden_of(ROW)).passed


def test_rounding_of_another_kernel_passes() -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, len(ROW))
    assert check(lambda _: ROW + noise, golden_of(ROW)).passed


def test_another_first_token_fails_and_says_so() -> None:
    result = check(lambda _: ROW[::-1].copy(), golden_of(ROW))
    assert not result.passed
    assert "another first token" in result.reason


def test_the_right_token_with_saturated_logits_fails() -> None:
    result = check(lambda _: np.clip(ROW * 3, -8, 8) + np.eye(len(ROW))[1], golden_of(ROW))
    assert result.top1_agreement == 1.0
    assert not result.passed


def test_logits_that_are_no_numbers_fail() -> None:
    assert not check(lambda _: np.full(len(ROW), np.nan), golden_of(ROW)).passed


def test_a_prompt_whose_best_tokens_are_close_is_not_golden() -> None:
    assert golden_prompt([1], np.array([5.0, 4.9, 0.0])) is None


def test_a_vector_that_points_elsewhere_fails() -> None:
    golden = Golden(version=1, model_hash="m", vectors=[GoldenVector(ids=[1], vector=[1.0, 0.0])])
    assert check(lambda _: np.array([2.0, 0.0]), golden).passed
    assert "cosine" in check(lambda _: np.array([0.0, 1.0]), golden).reason


def test_a_vector_without_numbers_fails_wherever_it_stands() -> None:
    vectors = [GoldenVector(ids=[n], vector=[1.0, 0.0]) for n in range(3)]
    golden = Golden(version=1, model_hash="m", vectors=vectors)
    for bad in range(3):
        result = check(lambda ids, bad=bad: np.array([np.nan if ids == [bad] else 1.0, 0.0]), golden)
        assert not result.passed


def test_a_single_score_is_compared_as_a_number() -> None:
    golden = Golden(version=1, model_hash="m", vectors=[GoldenVector(ids=[1], vector=[0.5])])
    assert check(lambda _: np.array([0.6]), golden).passed
    assert not check(lambda _: np.array([-4.0]), golden).passed


@given(arrays(np.float32, (4, 12), elements=st.floats(-30, 30, width=32)), st.floats(-50, 50))
def test_a_graph_agrees_wholly_with_itself_shifted(logits: np.ndarray, shift: float) -> None:
    same = agreement(logits, logits)
    assert (same.top1, same.kl_nats) == (1.0, 0.0)
    assert agreement(logits, logits + np.float32(shift)).kl_nats == pytest.approx(0, abs=1e-3)


def test_kl_is_that_of_its_definition() -> None:
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    expected = float((p * np.log(p / q)).sum())
    found = agreement(np.log(p)[None].astype(np.float32), np.log(q)[None].astype(np.float32))
    assert found.kl_nats == pytest.approx(expected, abs=1e-6)


def test_an_outlier_among_the_activations_makes_the_int8_product_wrong_and_the_figures_see_it() -> None:
    """A block of activations with one of 3000 gets steps of 24, in which all others vanish."""
    generator = np.random.default_rng(1)
    weights, x = generator.normal(0, 1, (64, 50)), generator.normal(0, 1, (20, 64))
    x[:, 5] = 3000
    weights[5] = 0
    scale = np.abs(x.reshape(20, 2, 32)).max(-1, keepdims=True) / 127
    quantised = (np.round(x.reshape(20, 2, 32) / scale) * scale).reshape(20, 64)
    reference = (x @ weights).astype(np.float32)
    found = agreement(reference, (quantised @ weights).astype(np.float32))
    assert found.kl_nats > 1
    assert found.top1 < 0.5


def test_a_stored_set_reads_back_and_belongs_to_one_model(tmp_path: Path) -> None:
    write_golden(tmp_path, golden_of(ROW))
    assert read_golden(tmp_path, "m") == golden_of(ROW)
    with pytest.raises(ModelError, match="another model"):
        read_golden(tmp_path, "other")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", bytes(4096), b'{"version": 99, "model_hash": "m"}'])
def test_a_damaged_set_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "golden.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"golden\.json"):
        read_golden(tmp_path, "m")
