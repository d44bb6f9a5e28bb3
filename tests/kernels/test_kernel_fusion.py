"""A product with what stands around it, in one node of a graph: the contract in float64, and the same bits always."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from kernel_library import Library
from onnx import TensorProto, helper
from product_cases import KINDS, Weights, random_weights, rounded_rows

DOMAIN = "ai.magnitude"
FLOAT = TensorProto.FLOAT
K, N = 96, 40
EPSILON = 1e-5


def open_product(
    operators: Path, library: Library, weights: Weights, given: dict[str, np.ndarray], **attributes: Any
) -> ort.InferenceSession:
    """A session of one product, with `gain`, `bias` and `correction` as initializers and `residual` as an input."""
    packed = library.pack(weights.kind, weights.n, weights.k, weights.values, weights.scales, weights.minima)
    names = ["x", "packed", "", *(name if name in given else "" for name in ("correction", "gain", "bias"))]
    if "residual" in given:
        names.append("residual")
    node = helper.make_node("Product", names, ["y"], domain=DOMAIN, n=weights.n, **attributes)
    constants = {"packed": packed} | {name: array for name, array in given.items() if name != "residual"}
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["m", weights.k])]
    if "residual" in given:
        inputs.append(helper.make_tensor_value_info("residual", FLOAT, None))
    graph = helper.make_graph(
        [node],
        "fused",
        inputs,
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(operators))
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), options)


def parts(rng: np.random.Generator, m: int, width: int) -> dict[str, np.ndarray]:
    shapes = {"gain": (K,), "bias": (N,), "residual": (m, width)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def expected(weights: Weights, x: np.ndarray, given: dict[str, np.ndarray], *, gated: bool) -> np.ndarray:
    """The contract in float64, with rows rounded as the product sees them."""
    rows = x.astype(np.float64)
    if "gain" in given:
        rows = rows / np.sqrt(np.mean(rows**2, -1, keepdims=True) + EPSILON) * given["gain"]
    y = rounded_rows(rows.astype(np.float32)) @ weights.dequantised().T
    if "bias" in given:
        y = y + given["bias"]
    if gated:
        gate, up = np.split(y, 2, -1)
        y = gate / (1 + np.exp(-np.maximum(gate, -700))) * up
    return y + given["residual"] if "residual" in given else y


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("names", [("gain",), ("bias",), ("residual",), ("gain", "bias", "residual")], ids="-".join)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_a_fused_product_is_the_contract_in_float64(
    operators: Path, library: Library, kind: int, names: tuple[str, ...], gated: bool
) -> None:
    rng = np.random.default_rng(81)
    weights = random_weights(rng, kind, N, K)
    given = {name: array for name, array in parts(rng, 5, N // 2 if gated else N).items() if name in names}
    x = rng.standard_normal((5, K)).astype(np.float32)
    running = open_product(operators, library, weights, given, gated=int(gated), epsilon=EPSILON)
    feed = {"x": x} | ({"residual": given["residual"]} if "residual" in given else {})
    (y,) = running.run(None, feed)
    right = expected(weights, x, given, gated=gated)
    # A normed value that lies between two of the 255 steps may be rounded to the other one: one step of a weight's
    # column. Everything else is float32 rounding.
    step = np.abs(weights.dequantised()).max() * np.abs(x).max() / 127 * (3 if "gain" in given else 0)
    scale = np.abs(right).max() + 1
    assert np.abs(y - right).max() <= (step * scale if gated else step) + 1e-4 * scale


def test_bits_depend_neither_on_rows_nor_on_threads_nor_on_the_path(operators: Path, library: Library) -> None:
    rng = np.random.default_rng(82)
    weights = random_weights(rng, KINDS["int4_minimum"], N, K)
    given = parts(rng, 9, N // 2)
    x = rng.standard_normal((9, K)).astype(np.float32)
    running = open_product(operators, library, weights, given, gated=1, epsilon=EPSILON)
    (whole,) = running.run(None, {"x": x, "residual": given["residual"]})
    for isa in library.isas():
        library.use(isa)
        for threads in (1, 3):
            library.set_pool(threads)
            rows = [
                running.run(None, {"x": x[at : at + 1], "residual": given["residual"][at : at + 1]})[0]
                for at in range(len(x))
            ]
            assert np.concatenate(rows).tobytes() == whole.tobytes(), (isa, threads)


def test_a_residual_is_added_last_and_to_the_bit(operators: Path, library: Library) -> None:
    rng = np.random.default_rng(83)
    weights = random_weights(rng, KINDS["int4"], N, K)
    given = {"residual": rng.standard_normal((3, N)).astype(np.float32)}
    x = rng.standard_normal((3, K)).astype(np.float32)
    (y,) = open_product(operators, library, weights, given).run(None, {"x": x} | given)
    (alone,) = open_product(operators, library, weights, {}).run(None, {"x": x})
    assert y.tobytes() == (alone + given["residual"]).tobytes()


def test_wide_channels_are_those_of_the_normed_row(operators: Path, library: Library) -> None:
    rng = np.random.default_rng(84)
    weights = random_weights(rng, KINDS["int8"], N, K)
    gain = rng.standard_normal(K).astype(np.float32)
    wide = rng.standard_normal((2, N)).astype(np.float32)
    x = rng.standard_normal((3, K)).astype(np.float32)
    normed = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, -1, keepdims=True) + EPSILON) * gain
    with_wide = {"gain": gain, "correction": wide}
    (y,) = open_product(operators, library, weights, with_wide, wide=[3, 40], epsilon=EPSILON).run(None, {"x": x})
    (without,) = open_product(operators, library, weights, {"gain": gain}, epsilon=EPSILON).run(None, {"x": x})
    assert np.allclose(y - without, normed[:, [3, 40]] @ wide, rtol=1e-3, atol=1e-3 * np.abs(y).max())


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("gain", (K - 1,), "gain has 95 numbers, not 96"),
        ("bias", (N + 1,), "bias has 41 numbers, not 40"),
        ("residual", (4, N), "residual has 160 numbers, not 120"),
    ],
)
def test_parts_that_do_not_fit_are_errors(
    operators: Path, library: Library, name: str, shape: tuple[int, ...], said: str
) -> None:
    weights = random_weights(np.random.default_rng(85), KINDS["int4"], N, K)
    given = {name: np.ones(shape, np.float32)}
    feed = {"x": np.ones((3, K), np.float32)} | ({"residual": given[name]} if name == "residual" else {})
    with pytest.raises(Exception, match=said):
        open_product(operators, library, weights, given).run(None, feed)


def test_gates_need_an_even_number_of_outputs(operators: Path, library: Library) -> None:
    weights = random_weights(np.random.default_rng(86), KINDS["int4"], 21, K)
    with pytest.raises(Exception, match="half of the outputs are gates"):
        open_product(operators, library, weights, {}, gated=1)


def test_no_rows_are_no_error(operators: Path, library: Library) -> None:
    weights = random_weights(np.random.default_rng(87), KINDS["int4"], N, K)
    given = {"gain": np.ones(K, np.float32)}
    running = open_product(operators, library, weights, given, gated=1, epsilon=EPSILON)
    assert running.run(None, {"x": np.zeros((0, K), np.float32)})[0].shape == (0, N // 2)
