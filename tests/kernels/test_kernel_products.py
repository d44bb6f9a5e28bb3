"""Products with block-quantised weights: right by the contract, and equal to the bit whatever the way."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import product_cases
import pytest
from kernel_driver import Refused
from kernel_library import Library
from product_cases import INT4, INT4_MINIMUM, KINDS, Weights, expected, random_weights

# Odd sizes around the tile (8), the block (32) and the vectors of a panel; one output, one input, one row.
SHAPES = [(1, 1, 1), (7, 31, 3), (8, 32, 1), (9, 33, 2), (64, 96, 5), (17, 640, 8), (40, 1000, 13), (3, 5000, 33)]


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def multiply(library: Library, weights: Weights, x: np.ndarray) -> np.ndarray:
    packed = library.pack(weights.kind, weights.n, weights.k, weights.values, weights.scales, weights.minima)
    return library.product(packed, x, weights.n)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_the_contract_in_float64_up_to_float32_rounding(
    library: Library, kind: int, shape: tuple[int, int, int]
) -> None:
    n, k, m = shape
    rng = np.random.default_rng([n, k, m])
    weights = random_weights(rng, kind, n, k)
    x = rng.standard_normal((m, k)).astype(np.float32)
    y, tolerance = expected(weights, x)
    for isa in library.isas():
        library.use(isa)
        assert (np.abs(multiply(library, weights, x) - y) <= tolerance).all(), isa


@pytest.mark.parametrize("shape", SHAPES)
def test_every_instruction_set_gives_the_same_bits(library: Library, kind: int, shape: tuple[int, int, int]) -> None:
    n, k, m = shape
    rng = np.random.default_rng([n, k, m, 1])
    weights = random_weights(rng, kind, n, k)
    x = (rng.standard_normal((m, k)) * 10.0 ** rng.integers(-3, 4, (m, k))).astype(np.float32)
    results = []
    for isa in library.isas():
        library.use(isa)
        results.append(multiply(library, weights, x).tobytes())
    assert len(set(results)) == 1


def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(library: Library, kind: int) -> None:
    rng = np.random.default_rng(2)
    weights = random_weights(rng, kind, 72, 200)
    x = rng.standard_normal((41, 200)).astype(np.float32)
    packed = library.pack(kind, 72, 200, weights.values, weights.scales, weights.minima)
    for isa in library.isas():
        library.use(isa)
        whole = library.product(packed, x, 72)
        cuts = [0, 1, 3, 6, 10, 15, 22, 41]
        parts = [library.product(packed, x[begin:end], 72) for begin, end in pairwise(cuts)]
        assert np.concatenate(parts).tobytes() == whole.tobytes(), isa
        assert library.product(packed, x[::-1], 72)[::-1].tobytes() == whole.tobytes(), isa


def test_a_result_has_the_same_bits_whatever_the_number_of_threads(library: Library, kind: int) -> None:
    rng = np.random.default_rng(3)
    weights = random_weights(rng, kind, 700, 640)
    x = rng.standard_normal((9, 640)).astype(np.float32)
    packed = library.pack(kind, 700, 640, weights.values, weights.scales, weights.minima)
    alone = library.product(packed, x, 700)
    for threads in (2, 3, 5):
        library.set_pool(threads)
        for m in (1, 9):
            assert library.product(packed, x[:m], 700).tobytes() == alone[:m].tobytes()


def test_no_rows_give_no_results(library: Library, kind: int) -> None:
    weights = random_weights(np.random.default_rng(4), kind, 5, 40)
    assert multiply(library, weights, np.empty((0, 40), np.float32)).shape == (0, 5)


def test_outliers_cost_precision_in_their_own_block_and_within_the_stated_bound(library: Library, kind: int) -> None:
    rng = np.random.default_rng(5)
    weights = random_weights(rng, kind, 24, 256)
    x = (rng.standard_normal((6, 256)) * 1e-2).astype(np.float32)
    # The worst row: beside the outlier in the third block, all that rounds to nothing has the sign of its weight.
    x[0, 64:96] = 3.9 * np.sign(weights.dequantised()[0, 64:96])
    x[:, 70] = 1e3
    exact = x.astype(np.float64) @ weights.dequantised().T
    y = multiply(library, weights, x)
    rounding = expected(weights, x)[1]
    assert (np.abs(y - exact) <= product_cases.rounding_bound(weights, x) + rounding).all()
    # The bound is no idle one.
    assert np.abs(y - exact)[0, 0] > 0.5 * product_cases.rounding_bound(weights, x)[0, 0]
    # Without weights in that block the outlier is not there.
    weights.scales[:, 2] = 0
    if weights.minima is not None:
        weights.minima[:, 2] = 0
    without = x.copy()
    without[:, 64:96] = 0
    assert multiply(library, weights, x).tobytes() == multiply(library, weights, without).tobytes()


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-40, 1e-31, 1e-28, 1e30, 3e38])
def test_values_of_any_size_are_multiplied_without_overflow_on_the_way(
    library: Library, kind: int, size: float
) -> None:
    rng = np.random.default_rng(6)
    weights = random_weights(rng, kind, 12, 70)
    weights.scales[:] *= np.float32(1e-3)
    if weights.minima is not None:
        weights.minima[:] *= np.float32(1e-3)
    x = np.clip(rng.standard_normal((3, 70)), -1, 1).astype(np.float32) * np.float32(size)
    y, tolerance = expected(weights, x)
    for isa in library.isas():
        library.use(isa)
        got = multiply(library, weights, x)
        inside = np.abs(y) < 3e38  # what float32 cannot hold may be an infinity
        assert (np.abs(got - y) <= tolerance)[inside].all(), isa
        assert np.isfinite(got[inside]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_number_gives_no_numbers_and_leaves_the_others_alone(
    library: Library, kind: int, bad: float
) -> None:
    rng = np.random.default_rng(7)
    weights = random_weights(rng, kind, 20, 100)
    x = rng.standard_normal((5, 100)).astype(np.float32)
    good = multiply(library, weights, x)
    x[3, 98] = bad
    for isa in library.isas():
        library.use(isa)
        y = multiply(library, weights, x)
        assert np.isnan(y[3]).all(), isa
        assert np.delete(y, 3, axis=0).tobytes() == np.delete(good, 3, axis=0).tobytes(), isa


def test_scales_are_rounded_to_float16_as_numpy_rounds_them(library: Library) -> None:
    """Ties, subnormal numbers and the largest one: a single weight of 1 times a row of 1 gives the scale back."""
    rng = np.random.default_rng(8)
    bits = np.concatenate([rng.integers(0, 2**32, 20_000, dtype=np.uint32), np.arange(0x8000, dtype=np.uint32) << 13])
    numbers = bits.view(np.float32)
    near = np.arange(1, 0x7BFF, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (near[:-1] + near[1:]) / 2
    numbers = np.concatenate([numbers, near, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, 0)])
    numbers = numbers[np.isfinite(numbers) & (np.abs(numbers) < 65520)]
    n = len(numbers)
    q = np.zeros((n, 32), np.int16)
    q[:, 0] = 1
    weights = Weights(product_cases.INT8, n, 1, q, numbers.reshape(n, 1), None)
    x = np.full((1, 1), 127, np.float32)  # a row scale of 1
    for isa in library.isas():
        library.use(isa)
        y = multiply(library, weights, x)[0]
        assert (y == numbers.astype(np.float16).astype(np.float32) * 127).all(), isa


def test_packed_weights_are_the_same_wherever_they_lie_in_memory(library: Library, kind: int) -> None:
    rng = np.random.default_rng(9)
    weights = random_weights(rng, kind, 20, 100)
    x = rng.standard_normal((5, 100)).astype(np.float32)
    packed = library.pack(kind, 20, 100, weights.values, weights.scales, weights.minima)
    y = library.product(packed, x, 20)
    for isa in library.isas():
        library.use(isa)
        for offset in (1, 2, 13):
            moved = np.empty(len(packed) + offset, np.uint8)[offset:]
            moved[:] = packed
            assert library.product(moved, x, 20).tobytes() == y.tobytes()


def test_a_wrong_length_is_an_error(library: Library, kind: int) -> None:
    weights = random_weights(np.random.default_rng(10), kind, 20, 100)
    packed = library.pack(kind, 20, 100, weights.values, weights.scales, weights.minima)
    x = np.zeros((1, 100), np.float32)
    for wrong in (packed[:-1], packed[:63], packed[:0], np.append(packed, np.uint8(0))):
        with pytest.raises(Refused, match="bytes"):
            library.product(wrong, x, 20)
    with pytest.raises(Refused, match=r"\[20, 100\]"):
        library.product(packed, x, 21)
    with pytest.raises(Refused, match=r"\[20, 100\]"):
        library.product(packed, x[:, :99], 20)


def test_a_header_with_any_bit_changed_is_an_error(library: Library) -> None:
    weights = random_weights(np.random.default_rng(11), INT4, 20, 100)
    packed = library.pack(INT4, 20, 100, weights.values, weights.scales)
    x = np.zeros((1, 100), np.float32)
    for bit in range(64 * 8):
        damaged = packed.copy()
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Refused, match="packed"):
            library.product(damaged, x, 20)


@pytest.mark.parametrize(
    ("kind_", "n", "k"),
    [(0, 1, 1), (4, 1, 1), (INT4, 0, 32), (INT4, -1, 32), (INT4, 8, 0), (INT4, 2**62, 32), (INT4, 8, 2**62)],
)
def test_shapes_out_of_bounds_are_errors(library: Library, kind_: int, n: int, k: int) -> None:
    with pytest.raises(Refused, match=r"kind|not within"):
        library.pack_bytes(kind_, n, k)


def test_scales_that_float16_cannot_hold_are_errors(library: Library) -> None:
    weights = random_weights(np.random.default_rng(12), INT4_MINIMUM, 8, 64)
    assert weights.minima is not None
    for name in ("scales", "minima"):
        for number in (65520.0, np.inf, np.nan):
            given = {"scales": weights.scales.copy(), "minima": weights.minima.copy()}
            given[name][3, 1] = number
            packed = np.full(library.pack_bytes(INT4_MINIMUM, 8, 64), 7, np.uint8)
            with pytest.raises(Refused, match=rf"{name}\[7\]"):
                library.pack_into(packed, INT4_MINIMUM, 8, 64, weights.values, **given)
            assert (packed == 7).all()  # nothing was written


def test_values_and_minima_that_do_not_fit_the_shape_are_errors(library: Library, kind: int) -> None:
    weights = random_weights(np.random.default_rng(13), kind, 8, 64)
    packed = np.zeros(library.pack_bytes(kind, 8, 64), np.uint8)
    with pytest.raises(Refused, match="values have"):
        library.pack_into(packed, kind, 8, 64, weights.values[:7], weights.scales, weights.minima)
    with pytest.raises(Refused, match="packed has"):
        library.pack_into(packed[:-1], kind, 8, 64, weights.values, weights.scales, weights.minima)
    other = None if weights.minima is not None else weights.scales
    with pytest.raises(Refused, match="minima"):
        library.pack_into(packed, kind, 8, 64, weights.values, weights.scales, other)


def test_an_instruction_set_that_is_not_there_is_an_error(library: Library) -> None:
    library.use("reference")
    with pytest.raises(Refused, match='"mmx"'):
        library.use("mmx")
    assert library.isa() == "reference"
    library.use(None)
    assert library.isa() == library.isas()[-1]
