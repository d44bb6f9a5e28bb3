"""Weights as graphs store them: packed by a call or when a session is made, they are the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from kernel_driver import Refused
from kernel_library import Library
from onnx import TensorProto, helper
from product_cases import KINDS
from test_kernel_operators import session

DOMAIN = "ai.magnitude"


class Blocks:
    """Random weights [n, 32 · blocks]: scales and minima are float16's numbers, as in files of such formats."""

    def __init__(self, bits: int, n: int, blocks: int, *, corrected: bool = False) -> None:
        rng = np.random.default_rng(81)
        self.bits, self.n, self.blocks = bits, n, blocks
        self.codes = rng.integers(0, 256, (n, blocks, 4 * bits), np.uint8)
        self.scales = (rng.standard_normal((n, blocks)) / 100).astype(np.float16).astype(np.float32)
        self.minima = (rng.standard_normal((n, blocks)) / 10).astype(np.float16).astype(np.float32)
        self.correction = np.ascontiguousarray((self.minima + 8 * self.scales).T) if corrected else None

    def floats(self) -> np.ndarray:
        if self.bits == 8:
            codes = self.codes - 128.0
        else:
            codes = np.stack([self.codes & 15, self.codes >> 4], -1).reshape(self.n, self.blocks, 32) - 8.0
        weights = codes * self.scales[..., None]
        if self.correction is not None:
            weights = weights + self.correction.T[..., None]
        return weights.reshape(self.n, -1)

    def wide_rows(self, wide: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(83).standard_normal((len(wide), self.n)).astype(np.float32)

    def packed_by_kind(self, library: Library) -> np.ndarray:
        """By the call that takes minima and signed bytes."""
        n, k = self.n, 32 * self.blocks
        if self.bits == 8:
            return library.pack(KINDS["int8"], n, k, (self.codes ^ 0x80).view(np.int8), self.scales)
        if self.correction is not None:
            return library.pack(KINDS["int4_minimum"], n, k, self.codes, self.scales, self.minima)
        return library.pack(KINDS["int4"], n, k, self.codes, self.scales)

    def packed(self, library: Library) -> np.ndarray:
        return library.pack_blocks(self.bits, self.codes, self.scales, self.correction)

    def graph(self, *, wide: tuple[int, ...] = (), inputs: int = 4, **attributes: int) -> onnx.GraphProto:
        """One product of `x`, of which some channels are multiplied in float by what `wide_rows` gives."""
        tensors = {"codes": self.codes, "scales": self.scales}
        parts = [] if self.correction is None else [self.correction]
        parts += [self.wide_rows(wide)] if wide else []
        given: dict[str, object] = {"n": self.n, "minima": int(self.correction is not None)} | attributes
        if parts:
            tensors["correction"] = np.concatenate(parts)
        if wide:
            given["wide"] = wide
        return helper.make_graph(
            [helper.make_node("Product", ["x", *tensors][:inputs], ["y"], domain=DOMAIN, **given)],
            "product",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", 32 * self.blocks])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()],
        )


CASES = {
    "int4": Blocks(4, 21, 3),
    "int4_corrected": Blocks(4, 21, 3, corrected=True),
    "int8": Blocks(8, 21, 3),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def blocks(request: pytest.FixtureRequest) -> Blocks:
    found = request.param
    assert isinstance(found, Blocks)
    return found


def activations(blocks: Blocks, rows: int = 5) -> np.ndarray:
    return np.random.default_rng(82).standard_normal((rows, 32 * blocks.blocks)).astype(np.float32)


def test_blocks_are_packed_to_the_same_bytes_as_values_and_minima(library: Library, blocks: Blocks) -> None:
    assert blocks.packed(library).tobytes() == blocks.packed_by_kind(library).tobytes()


def test_a_product_with_them_is_near_that_of_their_floats(library: Library, blocks: Blocks) -> None:
    x = activations(blocks)
    right = x.astype(np.float64) @ blocks.floats().T
    y = library.product(blocks.packed(library), x, blocks.n)
    steps = np.abs(x).reshape(len(x), blocks.blocks, 32).max(-1) / 127
    bound = 0.501 * steps @ np.abs(blocks.floats()).reshape(blocks.n, blocks.blocks, 32).sum(-1).T
    assert (np.abs(y - right) <= bound + 1e-4).all()


def test_blocks_that_do_not_fit_are_refused(library: Library) -> None:
    four, eight = CASES["int4_corrected"], CASES["int8"]
    with pytest.raises(Refused, match="4 or 8 bits, not 5"):
        library.pack_blocks(5, four.codes, four.scales)
    with pytest.raises(Refused, match="no correction"):
        library.pack_blocks(8, eight.codes, eight.scales, np.zeros((3, 21), np.float32))
    with pytest.raises(Refused, match="codes have"):
        library.pack_blocks(4, four.codes[:-1], four.scales)
    with pytest.raises(Refused, match="0 blocks"):
        library.pack_blocks(4, four.codes[:, :0], four.scales[:, :0])
    with pytest.raises(Refused, match="float16 cannot hold"):
        library.pack_blocks(4, four.codes, four.scales, np.full((3, 21), 1e6, np.float32))


def test_a_session_packs_what_its_graph_has(operators: Path, library: Library, blocks: Blocks) -> None:
    x = activations(blocks)
    y = session(operators, blocks.graph()).run(None, {"x": x})[0]
    assert y.tobytes() == library.product(blocks.packed(library), x, blocks.n).tobytes()


def test_wide_channels_are_added_in_float_one_after_the_other(
    operators: Path, library: Library, blocks: Blocks
) -> None:
    x, wide = activations(blocks), (70, 3, 41)
    right = library.product(blocks.packed(library), x, blocks.n)
    for channel, row in zip(wide, blocks.wide_rows(wide), strict=True):
        right = right + x[:, channel, None] * row
    running = session(operators, blocks.graph(wide=wide))
    assert running.run(None, {"x": x})[0].tobytes() == right.tobytes()
    library.set_pool(3)
    assert running.run(None, {"x": x[:1]})[0].tobytes() == right[:1].tobytes()


def test_wide_channels_of_many_outputs_and_rows_are_shared_among_threads(operators: Path, library: Library) -> None:
    many, wide = Blocks(4, 2000, 4, corrected=True), tuple(range(0, 64, 4))
    x = activations(many, rows=40)
    running = session(operators, many.graph(wide=wide))
    alone = running.run(None, {"x": x})[0]
    library.set_pool(3)
    assert running.run(None, {"x": x})[0].tobytes() == alone.tobytes()
    rows = [running.run(None, {"x": x[row : row + 1]})[0] for row in range(len(x))]
    assert np.concatenate(rows).tobytes() == alone.tobytes()


def test_packed_weights_given_to_a_session_take_the_place_of_codes(
    operators: Path, library: Library, blocks: Blocks, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(blocks.graph(wide=(7,)), opset_imports=opsets, ir_version=10), path)
    packed = blocks.packed(library)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(operators))
    given = ort.OrtValue.ortvalue_from_numpy(packed)
    options.add_initializer("codes", given)
    running = ort.InferenceSession(path, options)
    x = activations(blocks)
    right = library.product(packed, x, blocks.n) + x[:, 7, None] * blocks.wide_rows((7,))
    assert running.run(None, {"x": x})[0].tobytes() == right.tobytes()
    packed[:8] = 0  # it is this memory and no copy of it
    with pytest.raises(Exception, match="no packed weights"):
        running.run(None, {"x": x})


def test_a_graph_whose_tensors_do_not_fit_is_refused(operators: Path) -> None:
    blocks = CASES["int4_corrected"]
    with pytest.raises(Exception, match="scales are no initializer"):
        session(operators, blocks.graph(inputs=2))
    graph = blocks.graph()
    graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(blocks.codes[..., :-1], "codes"))
    with pytest.raises(Exception, match="neither packed nor codes"):
        session(operators, graph)
    with pytest.raises(Exception, match="correction is no initializer"):
        session(operators, blocks.graph(inputs=3))
    with pytest.raises(Exception, match="correction is no initializer"):
        session(operators, CASES["int4"].graph(minima=1))
    graph = blocks.graph(wide=(5,))
    graph.initializer[2].CopyFrom(onnx.numpy_helper.from_array(blocks.correction, "correction"))
    with pytest.raises(Exception, match=r"correction is no initializer \[4, 21\]"):
        session(operators, graph)
    with pytest.raises(Exception, match="negative"):
        session(operators, blocks.graph(wide=(5, -1)))
    with pytest.raises(Exception, match="beyond x"):
        session(operators, blocks.graph(wide=(5, 96))).run(None, {"x": activations(blocks)})
