"""The operators in ONNX Runtime: they do what the C interface does, in place where memory is bound, and say no."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import attention_cases
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from kernel_library import Library
from onnx import TensorProto, helper
from product_cases import KINDS, Weights, random_weights

DOMAIN = "ai.magnitude"
FLOAT, INT8, INT64 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT64
HEADS, KV_HEADS, HEAD_SIZE = 6, 2, 64
CACHE = (3, KV_HEADS, 200, HEAD_SIZE)
SCALES = CACHE[:3]
OPEN = (3, KV_HEADS, "positions", HEAD_SIZE)  # as a graph has it


def session(operators: Path, graph: onnx.GraphProto, folder: Path | None = None) -> ort.InferenceSession:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(operators))
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what a test provokes need not stand in its output
    if folder is None:
        return ort.InferenceSession(model.SerializeToString(), options)
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return ort.InferenceSession(path, options)


def product_graph(packed: np.ndarray, shape: list[str | int], n: int) -> onnx.GraphProto:
    node = helper.make_node("Product", ["x", "packed"], ["y"], domain=DOMAIN, n=n)
    return helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(packed, "packed")],
    )


def pack(library: Library, weights: Weights) -> np.ndarray:
    return library.pack(weights.kind, weights.n, weights.k, weights.values, weights.scales, weights.minima)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("leading", [(2, 5), (1,), (0,), (1, 1, 3), ()])
def test_a_product_in_a_graph_has_the_bits_of_the_c_interface(
    operators: Path, library: Library, kind: int, leading: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(71)
    weights = random_weights(rng, kind, 21, 100)
    packed = pack(library, weights)
    running = session(operators, product_graph(packed, [*(f"d{i}" for i in range(len(leading))), 100], 21))
    x = rng.standard_normal((*leading, 100)).astype(np.float32)
    (y,) = running.run(None, {"x": x})
    assert y.shape == (*leading, 21)
    assert y.tobytes() == library.product(packed, x.reshape(-1, 100), 21).tobytes()


def test_weights_can_stay_in_a_file_beside_the_model(operators: Path, library: Library, tmp_path: Path) -> None:
    rng = np.random.default_rng(72)
    weights = random_weights(rng, KINDS["int4"], 64, 128)
    packed = pack(library, weights)
    running = session(operators, product_graph(packed, ["m", 128], 64), tmp_path)
    assert (tmp_path / "weights.bin").stat().st_size >= packed.nbytes
    x = rng.standard_normal((4, 128)).astype(np.float32)
    assert running.run(None, {"x": x})[0].tobytes() == library.product(packed, x, 64).tobytes()


def test_operators_run_on_the_pool_of_the_c_interface(operators: Path, library: Library) -> None:
    rng = np.random.default_rng(73)
    weights = random_weights(rng, KINDS["int4"], 800, 512)
    packed = pack(library, weights)
    running = session(operators, product_graph(packed, ["m", 512], 800))
    x = rng.standard_normal((3, 512)).astype(np.float32)
    library.set_pool(3)
    library.reset_counters()
    assert running.run(None, {"x": x})[0].tobytes() == library.product(packed, x, 800).tobytes()
    assert library.counters()["product"]["calls"] == 2


def test_a_product_that_does_not_fit_its_weights_is_an_error(operators: Path, library: Library) -> None:
    weights = random_weights(np.random.default_rng(74), KINDS["int4"], 21, 100)
    packed = pack(library, weights)
    with pytest.raises(Exception, match=r"weights are \[21, 100\], x ends in 99"):
        session(operators, product_graph(packed, ["m", 99], 21)).run(None, {"x": np.zeros((1, 99), np.float32)})
    x = {"x": np.zeros((1, 100), np.float32)}
    with pytest.raises(Exception, match="n is 22"):
        session(operators, product_graph(packed, ["m", 100], 22)).run(None, x)
    with pytest.raises(Exception, match="packed weights have"):
        session(operators, product_graph(packed[:-1], ["m", 100], 21)).run(None, x)
    graph = product_graph(packed, ["m", 100], 21)
    del graph.node[0].attribute[:]
    with pytest.raises(Exception, match="n"):
        session(operators, graph)


def test_the_library_and_its_pool_outlive_a_session(operators: Path) -> None:
    """ONNX Runtime closes the libraries of a session that is gone; in a process of its own nobody else holds it."""
    program = """
import gc, sys
import onnxruntime as ort
for _ in range(3):
    options = ort.SessionOptions()
    options.register_custom_ops_library(sys.argv[1])
    del options
    gc.collect()
import ctypes
library = ctypes.CDLL(sys.argv[1])
assert library.mk_pool_set(3, None, None) == 0
del library
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[1])
assert ctypes.CDLL(sys.argv[1]).mk_pool_threads() == 3
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(operators)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


class Attention:
    """A graph of one attention node over one cache, in float or in bytes."""

    def __init__(
        self, operators: Path, *, over_bytes: bool, packed: bool = False, turned: int = 0, **attributes: Any
    ) -> None:
        """`packed`: query has keys and values beside it. `turned`: positions of the tables for the rotation."""
        self.names = ["key", "value"] + (["key_scales", "value_scales"] if over_bytes else [])
        stored = INT8 if over_bytes else FLOAT
        caches = [(name, FLOAT, OPEN[:3]) if name.endswith("scales") else (name, stored, OPEN) for name in self.names]
        rows = [
            ("query", FLOAT, ("m", HEADS * HEAD_SIZE)),
            ("key", FLOAT, ("m", KV_HEADS * HEAD_SIZE)),
            ("value", FLOAT, ("m", KV_HEADS * HEAD_SIZE)),
            ("slots", INT64, ("m",)),
            ("positions", INT64, ("m",)),
        ]
        if packed:
            rows = [("query", FLOAT, ("m", (HEADS + 2 * KV_HEADS) * HEAD_SIZE)), ("", 0, ()), ("", 0, ()), *rows[3:]]
        inputs = rows + [(f"past_{name}", *rest) for name, *rest in caches]
        if turned:
            inputs += [(name, FLOAT, (turned, f"half of {name}")) for name in ("cos", "sin")]
        outputs = [("y", FLOAT, None)] + [(f"present_{name}", kind, None) for name, kind, _ in caches]
        node = helper.make_node(
            "AttentionOverBytes" if over_bytes else "Attention",
            *([name for name, *_ in inputs], [name for name, *_ in outputs]),
            **({"domain": DOMAIN, "heads": HEADS, "kv_heads": KV_HEADS} | attributes),
        )
        self.session = session(
            operators,
            helper.make_graph(
                [node],
                "attention",
                [helper.make_tensor_value_info(*each) for each in inputs if each[0]],
                [helper.make_tensor_value_info(*each) for each in outputs],
            ),
        )
        element = np.int8 if over_bytes else np.float32
        self.caches = {
            name: np.zeros(SCALES, np.float32) if name.endswith("scales") else np.zeros(CACHE, element)
            for name in self.names
        }

    def run(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        """One run by copies: the caches that come out are those of the next run."""
        given = rows | {f"past_{name}": array for name, array in self.caches.items()}
        y, *present = self.session.run(None, given)
        self.caches = dict(zip(self.names, present, strict=True))
        return np.asarray(y)

    def bind(self) -> Any:
        """The caches as memory of their own, bound as past and present: written in place."""
        self.held = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in self.caches.items()}
        binding = self.session.io_binding()
        for name, held in self.held.items():
            binding.bind_ortvalue_input(f"past_{name}", held)
            binding.bind_ortvalue_output(f"present_{name}", held)
        return binding


@pytest.fixture(params=[False, True], ids=["float", "bytes"])
def over_bytes(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def prompt(length: int, slot: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(75)
    return {
        "query": rng.standard_normal((length, HEADS * HEAD_SIZE)).astype(np.float32),
        "key": rng.standard_normal((length, KV_HEADS * HEAD_SIZE)).astype(np.float32),
        "value": rng.standard_normal((length, KV_HEADS * HEAD_SIZE)).astype(np.float32),
        "slots": np.full(length, slot, np.int64),
        "positions": np.arange(length, dtype=np.int64),
    }


def turned(x: np.ndarray, tables: dict[str, np.ndarray], positions: np.ndarray) -> np.ndarray:
    """Heads side by side in each row of x, turned as the contract says, one float32 operation at a time."""
    cos, sin = (tables[name][positions][:, None] for name in ("cos", "sin"))
    heads = x.reshape(len(x), -1, HEAD_SIZE)
    first, second = heads[..., : HEAD_SIZE // 2], heads[..., HEAD_SIZE // 2 :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1).reshape(x.shape)


def tables(positions: int) -> dict[str, np.ndarray]:
    angles = np.arange(positions)[:, None] / 10000 ** (np.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2))
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


def part(rows: dict[str, np.ndarray], begin: int, end: int) -> dict[str, np.ndarray]:
    return {name: array[begin:end] for name, array in rows.items()}


@pytest.mark.parametrize("window", [0, 50])
def test_attention_in_a_graph_is_the_contract_in_float64(operators: Path, over_bytes: bool, window: int) -> None:
    attention = Attention(operators, over_bytes=over_bytes, window=window)
    rows = prompt(140)
    y = attention.run(rows)
    names = {"key": "keys", "value": "values"}
    cache = attention_cases.Cache(**{names.get(name, name): array for name, array in attention.caches.items()})
    queries = rows["query"].reshape(140, HEADS, HEAD_SIZE)
    call = attention_cases.Call(
        cache, rows["slots"], rows["positions"], queries, window=window, scale=HEAD_SIZE**-0.5
    )
    right, bound = attention_cases.expected(call)
    assert (np.abs(y.reshape(right.shape) - right) <= bound).all()


def test_prefill_and_decode_in_place_and_by_copies_give_the_same_bits(operators: Path, over_bytes: bool) -> None:
    rows = prompt(140)
    whole = Attention(operators, over_bytes=over_bytes)
    y = whole.run(rows)
    decoding = Attention(operators, over_bytes=over_bytes)
    binding = decoding.bind()
    parts = []
    for begin, end in [(0, 100), (100, 137), (137, 138), (138, 139), (139, 140)]:
        for name, array in part(rows, begin, end).items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("y")  # anew, as it has another length now
        decoding.session.run_with_iobinding(binding)
        parts.append(binding.get_outputs()[-1].numpy())
    assert np.concatenate(parts).tobytes() == y.tobytes()
    for name, held in decoding.held.items():
        assert held.numpy().tobytes() == whole.caches[name].tobytes(), name


def test_a_scale_of_its_own_replaces_the_usual_one(operators: Path, over_bytes: bool) -> None:
    rows = prompt(20)
    usual = Attention(operators, over_bytes=over_bytes).run(rows)
    assert Attention(operators, over_bytes=over_bytes, scale=HEAD_SIZE**-0.5).run(rows).tobytes() == usual.tobytes()
    assert Attention(operators, over_bytes=over_bytes, scale=0.5).run(rows).tobytes() != usual.tobytes()


def test_rows_that_do_not_fit_are_errors(operators: Path, over_bytes: bool) -> None:
    attention = Attention(operators, over_bytes=over_bytes)
    rows = prompt(4)
    with pytest.raises(Exception, match="slot"):
        attention.run(rows | {"slots": np.array([0, 1, 3, 0])})
    with pytest.raises(Exception, match="position 204"):
        attention.run(rows | {"positions": np.array([0, 1, 2, 204])})
    with pytest.raises(Exception, match="position"):
        attention.run(rows | {"positions": np.array([0, 1, 2, 2**62])})
    with pytest.raises(Exception, match="3 positions for 4 slots"):
        attention.run(rows | {"positions": np.array([0, 1, 2])})
    with pytest.raises(Exception, match="input 1 is not 4 rows of 128"):
        attention.run(rows | {"key": rows["key"][:3]})
    with pytest.raises(Exception, match="6 heads cannot share 4"):
        Attention(operators, over_bytes=over_bytes, kv_heads=4)


def test_memory_of_the_caller_s_is_never_written_beyond_its_end(operators: Path, over_bytes: bool) -> None:
    """A cache that is bound as past and present cannot grow."""
    attention = Attention(operators, over_bytes=over_bytes)
    attention.caches = {name: cache[:, :, :150].copy() for name, cache in attention.caches.items()}
    binding = attention.bind()
    for name, array in (prompt(4) | {"positions": np.array([147, 148, 149, 150])}).items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    with pytest.raises(Exception, match=r"(?i)shape"):
        attention.session.run_with_iobinding(binding)
    assert not any(held.numpy().any() for held in attention.held.values())


def test_no_rows_are_no_error(operators: Path, over_bytes: bool) -> None:
    assert Attention(operators, over_bytes=over_bytes).run(prompt(0)).shape == (0, HEADS * HEAD_SIZE)


def packed(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    beside = np.concatenate([rows["query"], rows["key"], rows["value"]], -1)
    return {"query": beside, "slots": rows["slots"], "positions": rows["positions"]}


def test_queries_keys_and_values_in_one_row_give_the_same_bits(operators: Path, over_bytes: bool) -> None:
    rows = prompt(20)
    apart = Attention(operators, over_bytes=over_bytes)
    y = apart.run(rows)
    beside = Attention(operators, over_bytes=over_bytes, packed=True)
    assert beside.run(packed(rows)).tobytes() == y.tobytes()
    for name, cache in apart.caches.items():
        assert beside.caches[name].tobytes() == cache.tobytes(), name


@pytest.mark.parametrize("in_one_row", [False, True])
def test_a_rotation_turns_queries_and_keys_before_all_else(
    operators: Path, library: Library, over_bytes: bool, in_one_row: bool
) -> None:
    rows, angles = prompt(140), tables(150)
    before = {name: turned(rows[name], angles, rows["positions"]) for name in ("query", "key")}
    apart = Attention(operators, over_bytes=over_bytes)
    y = apart.run(rows | before)
    for isa in library.isas():
        library.use(isa)
        for threads in (1, 3):
            library.set_pool(threads)
            other = Attention(operators, over_bytes=over_bytes, packed=in_one_row, turned=150)
            given = packed(rows) if in_one_row else rows
            parts = [other.run(part(given, *ends) | angles) for ends in ((0, 100), (100, 139), (139, 140))]
            assert np.concatenate(parts).tobytes() == y.tobytes(), (isa, threads)
            for name, cache in apart.caches.items():
                assert other.caches[name].tobytes() == cache.tobytes(), name


def test_rotations_that_do_not_fit_are_errors_and_write_nothing(operators: Path, over_bytes: bool) -> None:
    rows, angles = prompt(20), tables(10)
    attention = Attention(operators, over_bytes=over_bytes, turned=10)
    binding = attention.bind()
    for name, array in (rows | angles).items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    with pytest.raises(Exception, match="position 10, and the rotation has 10"):
        attention.session.run_with_iobinding(binding)
    assert not any(held.numpy().any() for held in attention.held.values())
    attention.run(part(rows, 0, 10) | angles)
    padded = Attention(operators, over_bytes=over_bytes, turned=10)
    y = padded.run(part(rows, 0, 2) | angles | {"positions": np.array([-1, -1])})
    assert not y.any()
    assert not any(cache.any() for cache in padded.caches.values())


def test_a_cache_that_is_no_memory_of_the_caller_grows_by_the_rows(operators: Path, over_bytes: bool) -> None:
    rows = prompt(12)
    whole = Attention(operators, over_bytes=over_bytes)
    y = whole.run(rows)
    growing = Attention(operators, over_bytes=over_bytes)
    growing.caches = {name: cache[:, :, :0].copy() for name, cache in growing.caches.items()}
    parts = [growing.run(part(rows, *ends)) for ends in ((0, 5), (5, 6), (6, 12))]
    assert np.concatenate(parts).tobytes() == y.tobytes()
    for name, cache in growing.caches.items():
        assert cache.shape[2] == 12
        assert cache.tobytes() == whole.caches[name][:, :, :12].tobytes(), name


def test_one_of_two_that_belong_together_is_an_error(operators: Path, over_bytes: bool) -> None:
    attention = Attention(operators, over_bytes=over_bytes, turned=150)
    with pytest.raises(Exception, match="cos and sin are not both"):
        attention.run(prompt(2) | tables(150) | {"sin": np.zeros((150, 31), np.float32)})
