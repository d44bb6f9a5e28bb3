from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from magnitude.engine.kv_bytes import dequantise, quantise

F32 = NDArray[np.float32]


def in_bytes(rows: F32) -> tuple[NDArray[np.int8], F32]:
    codes, scales = np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32)
    quantise(rows.copy(), codes, scales)
    return codes, scales


def back(codes: NDArray[np.int8], scales: F32) -> F32:
    out = np.empty(codes.shape, np.float32)
    dequantise(codes, scales, out)
    return out


@given(
    rows=st.integers(0, 9),
    width=st.sampled_from([8, 64, 256]),
    exponent=st.integers(-30, 30),
    outlier=st.sampled_from([1.0, 1e4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_value_is_off_by_half_a_step_of_its_own_row(
    rows: int, width: int, exponent: int, outlier: float, seed: int
):
    rng = np.random.default_rng(seed)
    given_rows = (rng.standard_normal((rows, width)) * 2.0**exponent).astype(np.float32)
    given_rows[: rows // 2, 0] *= np.float32(outlier)
    codes, scales = in_bytes(given_rows)
    exact = np.abs(given_rows).max(axis=1, initial=0).astype(np.float64) / 127
    assert np.allclose(scales, exact, rtol=1e-7, atol=0)
    assert codes.min(initial=0) >= -127
    assert (np.abs(back(codes, scales).astype(np.float64) - given_rows) <= 0.501 * exact[:, None]).all()


def test_what_was_in_bytes_before_is_the_same_bytes_again():
    codes, scales = in_bytes(np.random.default_rng(2).standard_normal((200, 64)).astype(np.float32))
    again, _ = in_bytes(back(codes, scales))
    assert (again == codes).all()


def test_rows_that_are_as_good_as_zero_are_zero():
    codes, scales = in_bytes(np.array([[0.0] * 8, [2.0**-101] * 8, [-0.0] * 8], np.float32))
    assert not codes.any()
    assert not scales.any()


def test_a_row_that_is_no_number_says_so_and_spoils_no_other():
    rows = np.ones((4, 8), np.float32)
    rows[1, 3], rows[2, 0] = np.nan, -np.inf
    codes, scales = in_bytes(rows)
    assert np.isnan(scales).tolist() == [False, True, True, False]
    assert not codes[1:3].any()
    assert (codes[[0, 3]] == 127).all()
