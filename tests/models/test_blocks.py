"""Quantising, packing and correcting blocks, as properties of arbitrary matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as shapes

from magnitude.models.graphs import blocks

MATRICES = shapes.arrays(
    np.float32, st.tuples(st.integers(1, 5), st.sampled_from([32, 64, 96])), elements=st.floats(-8, 8, width=32)
)


@given(MATRICES)
def test_eight_bits_are_never_further_off_than_a_step(weights: np.ndarray) -> None:
    matrix = blocks.quantise(weights, 8)
    step = np.repeat(np.abs(matrix.scale), blocks.BLOCK, axis=1)
    # The code furthest from zero on the side of the smaller weights is missing: there it may be a whole step.
    assert (np.abs(matrix.floats() - weights) <= 1.001 * step + 1e-6).all()


@given(MATRICES)
def test_four_bits_with_a_minimum_are_at_most_as_far_off_as_plain_rounding(weights: np.ndarray) -> None:
    grouped = weights.reshape(weights.shape[0], -1, blocks.BLOCK)
    low, high = grouped.min(-1, keepdims=True), grouped.max(-1, keepdims=True)
    step = (high - low) / 15
    step = np.where(step == 0, 1, step)  # also where the range is so small that its fifteenth is no number any more
    plain = np.rint((grouped - low) / step) * step + low
    error = ((blocks.quantise(weights, 4).floats().reshape(grouped.shape) - grouped) ** 2).sum(-1)
    assert (error <= ((plain - grouped) ** 2).sum(-1) * 1.01 + 1e-5).all()


@given(MATRICES, st.integers(0, 2**31))
def test_symmetric_codes_and_the_correction_make_the_exact_product(weights: np.ndarray, seed: int) -> None:
    matrix = blocks.quantise(weights, 4)
    x = np.random.default_rng(seed).normal(size=weights.shape[1])
    symmetric = matrix.scale[..., None].astype(np.float64) * (matrix.codes.astype(np.float64) - matrix.zero)
    sums = x.reshape(-1, blocks.BLOCK).sum(-1)
    ours = symmetric.reshape(weights.shape) @ x + sums @ blocks.correction(matrix)
    np.testing.assert_allclose(ours, matrix.floats().astype(np.float64) @ x, atol=1e-3)


@given(MATRICES)
def test_packing_puts_the_first_of_two_codes_low(weights: np.ndarray) -> None:
    matrix = blocks.quantise(weights, 4)
    packed = blocks.pack(matrix)
    assert packed.shape == (*matrix.codes.shape[:2], blocks.BLOCK // 2)
    np.testing.assert_array_equal(packed & 15, matrix.codes[..., 0::2])
    np.testing.assert_array_equal(packed >> 4, matrix.codes[..., 1::2])


@pytest.mark.parametrize("bits", [4, 8])
def test_a_matrix_of_zeros_stays_zero(bits: int) -> None:
    assert not blocks.quantise(np.zeros((2, 64), np.float32), bits).floats().any()  # type: ignore[arg-type]


def test_stacking_keeps_each_matrix_s_values() -> None:
    generator = np.random.default_rng(1)
    with_minimum = blocks.quantise(generator.normal(size=(3, 64)).astype(np.float32), 4)
    plain = blocks.BlockMatrix(with_minimum.codes, with_minimum.scale, None, 4, "Q4_0")
    stacked = blocks.stack([plain, with_minimum])
    assert stacked is not None
    np.testing.assert_allclose(stacked.floats(), np.concatenate([plain.floats(), with_minimum.floats()]), atol=1e-6)


def test_unlike_blocks_are_not_stacked() -> None:
    weights = np.ones((2, 64), np.float32)
    assert blocks.stack([blocks.quantise(weights, 4), blocks.quantise(weights, 8)]) is None
