"""The kernel plan: the serving graph's products by our own operators, over the same data file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from tiny_gguf import VOCAB, write
from tiny_sources import decoder_folder

from magnitude.kernels.library import KernelLibrary
from magnitude.models.description import (
    KERNEL_GRAPH_FILE,
    KERNEL_KV8_GRAPH_FILE,
    KERNEL_PRODUCTS,
    DecoderShape,
)
from magnitude.models.golden import agreement, merged
from magnitude.models.graphs.build import build_graph
from magnitude.models.graphs.decoder_graph import KvScales
from magnitude.models.graphs.graph import DATA_FILE, SERVING_GRAPH_FILE
from magnitude.models.graphs.kernel_plan import write_kernel_plan
from magnitude.models.graphs.linear import Bits
from magnitude.models.importing.golden_texts import golden_ids
from magnitude.models.importing.graph_runner import DecoderRunner
from magnitude.models.manifest import read_manifest
from magnitude.models.sources import open_source

TEXTS = [[int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, 24)] for seed in range(3)]
WIDE = {f"layers.0.{part}.in": (5, 17, 200) for part in ("attention", "mlp")}


def build(folder: Path, kind: Kind, *, bits: Bits = 4, **options: Any) -> DecoderShape:
    folder.mkdir(exist_ok=True)
    source = open_source(write(folder / "tiny.gguf", kind, kinds=options.pop("kinds", None)))
    shape = build_graph(source, folder, bits=bits, **options).decoder
    assert shape is not None
    return shape


def plan_of(folder: Path) -> Path:
    path = folder / KERNEL_GRAPH_FILE
    assert write_kernel_plan(folder / SERVING_GRAPH_FILE, path)
    return path


def nodes_of(path: Path) -> list[onnx.NodeProto]:
    return list(onnx.load(str(path), load_external_data=False).graph.node)


@pytest.mark.parametrize(
    ("kind", "bits"), [(Kind.Q4_0, 4), (Kind.Q4_1, 4), (Kind.Q8_0, 8), (Kind.F32, 4), (Kind.F32, 8)]
)
def test_it_computes_what_the_serving_graph_does_but_for_rounding(
    kernels_here: KernelLibrary, tmp_path: Path, kind: Kind, bits: Bits
) -> None:
    shape = build(tmp_path, kind, bits=bits)
    own, other = DecoderRunner(tmp_path / SERVING_GRAPH_FILE, shape), DecoderRunner(plan_of(tmp_path), shape)
    found = merged([agreement(own.logits(ids), other.logits(ids)) for ids in TEXTS])
    assert found.kl_nats < 0.003


@pytest.mark.parametrize("name", ["llama_tied", "qwen2", "qwen3"])
def test_families_with_biases_and_norms_of_heads_have_it_too(
    kernels_here: KernelLibrary, golden: Path, tmp_path: Path, name: str
) -> None:
    source = open_source(decoder_folder(golden, tmp_path / "source", name))
    shape = build_graph(source, tmp_path, bits=4).decoder
    assert shape is not None
    own, other = DecoderRunner(tmp_path / SERVING_GRAPH_FILE, shape), DecoderRunner(plan_of(tmp_path), shape)
    ids = [1, 5, 9, 2, 7, 11, 3, 3, 8]
    assert agreement(own.logits(ids), other.logits(ids)).kl_nats < 0.003


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_wide_channels_are_multiplied_in_float(kernels_here: KernelLibrary, tmp_path: Path, kind: Kind) -> None:
    bits: Bits = 8 if kind == Kind.Q8_0 else 4
    shape = build(tmp_path, kind, bits=bits, wide_channels=WIDE)
    own, other = DecoderRunner(tmp_path / SERVING_GRAPH_FILE, shape), DecoderRunner(plan_of(tmp_path), shape)
    found = merged([agreement(own.logits(ids), other.logits(ids)) for ids in TEXTS])
    assert found.kl_nats < 0.003
    wide = [[list(a.ints) for a in node.attribute if a.name == "wide"] for node in nodes_of(other.path)]
    assert [channels for channels in wide if channels] == [[list(WIDE["layers.0.attention.in"])]] * 2


def test_nothing_is_left_of_what_products_took_before(tmp_path: Path) -> None:
    build(tmp_path, Kind.Q4_1, wide_channels=WIDE)
    left = {node.op_type for node in nodes_of(plan_of(tmp_path)) if not node.name.startswith("rows.")}
    assert left <= {"Product", "Attention", "GatherBlockQuantized", "Gather", "Reshape"}
    assert {"Product", "Attention"} <= left


def test_a_layer_is_five_operators(tmp_path: Path) -> None:
    build(tmp_path, Kind.Q4_1, wide_channels=WIDE)
    of_layers = [node for node in nodes_of(plan_of(tmp_path)) if node.name.startswith("layers.0")]
    assert [node.op_type for node in of_layers] == ["Product", "Attention", "Product", "Product", "Product"]
    gains = [bool(node.input[4]) if len(node.input) > 4 else False for node in of_layers if node.op_type == "Product"]
    assert gains == [True, False, True, False]
    residuals = [len(node.input) > 6 for node in of_layers if node.op_type == "Product"]
    assert residuals == [False, True, False, True]


def test_its_weights_are_the_serving_graph_s(tmp_path: Path) -> None:
    build(tmp_path, Kind.Q4_1, wide_channels=WIDE)
    before = (tmp_path / DATA_FILE).read_bytes()
    places = [
        {entry.key: entry.value for entry in tensor.external_data}
        for tensor in onnx.load(str(plan_of(tmp_path)), load_external_data=False).graph.initializer
    ]
    assert (tmp_path / DATA_FILE).read_bytes() == before
    assert {place["location"] for place in places if place} == {DATA_FILE}
    assert plan_of(tmp_path).stat().st_size < len(before) / 4


def test_it_says_where_the_weights_of_its_products_lie(tmp_path: Path) -> None:
    build(tmp_path, Kind.Q4_1, wide_channels=WIDE)
    model = onnx.load(str(plan_of(tmp_path)), load_external_data=False)
    said = json.loads({entry.key: entry.value for entry in model.metadata_props}[KERNEL_PRODUCTS])
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "Product"]
    assert set(said) == {node.input[1] for node in products}
    for node in products:
        places = [
            {e.key: int(e.value) for e in tensors[n].external_data if e.key != "location"}
            for n in node.input[1:4]
            if n
        ]
        spans = [[place["offset"], place["length"]] for place in places]
        assert said[node.input[1]]["spans"] == spans[: 2 if said[node.input[1]]["bits"] == 8 else 3]


@pytest.mark.parametrize(
    ("kind", "bits"),
    [(Kind.F32, 16), (Kind.Q5_1, 8), (Kind.Q6_K, 8)],
    ids=["float", "8 bits and minima", "blocks of 16"],
)
def test_a_graph_with_other_products_has_none(tmp_path: Path, kind: Kind, bits: Bits) -> None:
    build(tmp_path, kind, bits=bits)
    assert not write_kernel_plan(tmp_path / SERVING_GRAPH_FILE, tmp_path / KERNEL_GRAPH_FILE)
    assert not (tmp_path / KERNEL_GRAPH_FILE).exists()


def test_one_product_that_is_left_is_enough_to_have_none(tmp_path: Path) -> None:
    build(tmp_path, Kind.Q4_0, kinds={"blk.0.ffn_down": Kind.Q6_K})
    assert not write_kernel_plan(tmp_path / SERVING_GRAPH_FILE, tmp_path / KERNEL_GRAPH_FILE)


class Steps:
    """A graph run by a caller that keeps the KV, on one thread of ONNX Runtime's own."""

    def __init__(self, path: Path, shape: DecoderShape, library: KernelLibrary) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.register_custom_ops_library(str(library.path))
        self._session = onnxruntime.InferenceSession(str(path), options)
        self._shape = shape

    def empty(self, batch: int) -> dict[str, NDArray[Any]]:
        shape = self._shape
        names = [p % layer for layer in range(shape.layers) for p in (shape.past_key, shape.past_value)]
        return {name: np.zeros((batch, shape.kv_heads, 0, shape.head_dim), np.float32) for name in names}

    def run(self, rows: list[list[int]], past: dict[str, NDArray[Any]]) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Logits `[rows, tokens, vocabulary]` and the KV afterwards."""
        ids = np.array(rows, np.int64)
        done = next(iter(past.values())).shape[2]
        feed = past | {
            "input_ids": ids,
            "attention_mask": np.ones((len(rows), done + ids.shape[1]), np.int64),
            "logit_rows": np.arange(ids.size),
        }
        names = [output.name for output in self._session.get_outputs()]
        results = dict(zip(names, self._session.run(names, feed), strict=True))
        logits = results.pop("logits").reshape(*ids.shape, -1)
        return logits, {name.replace("present.", "past_key_values."): array for name, array in results.items()}


def check_invariance(steps: Steps, library: KernelLibrary, texts: list[list[int]]) -> None:
    """A row's logits are the same to the bit alone and in a batch, on any threads, for a prompt and in each step."""
    begun = [text[:5] for text in texts]
    library.use_threads(3)
    together, past = steps.run(begun, steps.empty(len(texts)))
    library.use_threads(1)
    logits, alone = steps.run(begun[-1:], steps.empty(1))
    assert together[-1].tobytes() == logits[0].tobytes()
    for position in range(5, len(texts[0])):
        library.use_threads(1 + position % 3)
        together, past = steps.run([[text[position]] for text in texts], past)
        library.use_threads(1 + position % 2)
        logits, alone = steps.run([[texts[-1][position]]], alone)
        assert together[-1].tobytes() == logits[0].tobytes()


def test_rows_do_not_depend_on_batch_and_threads(kernels_here: KernelLibrary, tmp_path: Path) -> None:
    shape = build(tmp_path, Kind.Q4_1, wide_channels=WIDE)
    check_invariance(Steps(plan_of(tmp_path), shape, kernels_here), kernels_here, TEXTS)


def test_a_cache_goes_on_from_one_graph_to_the_other(kernels_here: KernelLibrary, tmp_path: Path) -> None:
    """Both graphs of a model have one memory, so each must find there what it would have written itself."""
    shape = build(tmp_path, Kind.Q4_1)
    serving = Steps(tmp_path / SERVING_GRAPH_FILE, shape, kernels_here)
    ours = Steps(plan_of(tmp_path), shape, kernels_here)
    found = []
    for text in TEXTS:
        _, past = serving.run([text[:20]], serving.empty(1))
        right, kept = serving.run([text[20:]], past)
        logits, present = ours.run([text[20:]], past)
        for name, array in kept.items():
            assert np.abs(present[name] - array).max() < 0.05 * np.abs(array).max(), name
        found.append(agreement(right[0], logits[0]))
    assert merged(found).kl_nats < 0.003


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1])
def test_over_bytes_it_computes_nearly_the_same(kernels_here: KernelLibrary, tmp_path: Path, kind: Kind) -> None:
    shape = build(tmp_path, kind)
    over_bytes = tmp_path / KERNEL_KV8_GRAPH_FILE
    assert write_kernel_plan(tmp_path / SERVING_GRAPH_FILE, over_bytes, over_bytes=True)
    own = DecoderRunner(plan_of(tmp_path), shape)
    other = DecoderRunner(over_bytes, msgspec.structs.replace(shape, kv_type="int8_per_token"))
    found = merged([agreement(own.logits(ids), other.logits(ids)) for ids in TEXTS])
    assert 0 < found.kl_nats < 0.003


def test_there_is_no_plan_over_bytes_beside_fixed_scales(tmp_path: Path) -> None:
    build(tmp_path, Kind.Q4_0, kv_type="int8", kv_scales=(KvScales(key=(0.1,), value=(0.1,)),))
    target = tmp_path / KERNEL_KV8_GRAPH_FILE
    assert not write_kernel_plan(tmp_path / SERVING_GRAPH_FILE, target, over_bytes=True)
    assert not target.exists()


def test_a_cache_in_bytes_with_fixed_scales_stays_with_onnx_runtime(tmp_path: Path) -> None:
    build(tmp_path, Kind.Q4_0, kv_type="int8", kv_scales=(KvScales(key=(0.1,), value=(0.1,)),))
    kinds = [node.op_type for node in nodes_of(plan_of(tmp_path))]
    assert "Attention" not in kinds
    assert "GroupQueryAttention" in kinds


@pytest.fixture
def smollm2(magnitude_home: Path, tmp_path: Path) -> tuple[Path, DecoderShape]:
    """The embedded decoder with its kernel plan, in a folder of links."""

    folder = magnitude_home / "models" / "smollm2-135m-instruct"
    for file in folder.iterdir():
        if file.name != KERNEL_GRAPH_FILE:
            (tmp_path / file.name).symlink_to(file)
    plan_of(tmp_path)
    # ONNX Runtime follows no links out of a model's folder.
    (tmp_path / DATA_FILE).unlink()
    (tmp_path / DATA_FILE).write_bytes((folder / DATA_FILE).read_bytes())
    shape = read_manifest(folder).decoder
    assert shape is not None
    return tmp_path, shape


@pytest.mark.models
def test_the_embedded_model_is_as_near_to_float_activations_as_by_its_serving_graph(
    kernels_here: KernelLibrary, smollm2: tuple[Path, DecoderShape]
) -> None:

    folder, shape = smollm2
    texts = [ids[:48] for ids in golden_ids((folder / "tokenizer.json").read_text())]
    kernels_here.use_threads(2)
    rows = {
        name: [DecoderRunner(folder / name, shape).logits(ids) for ids in texts]
        for name in ("fallback.onnx", SERVING_GRAPH_FILE, KERNEL_GRAPH_FILE)
    }
    distance = {
        name: merged([agreement(*pair) for pair in zip(rows["fallback.onnx"], found, strict=True)]).kl_nats
        for name, found in rows.items()
    }
    print(distance)
    assert distance[KERNEL_GRAPH_FILE] <= distance[SERVING_GRAPH_FILE] + 0.0005


@pytest.mark.models
def test_rows_of_the_embedded_model_do_not_depend_on_batch_and_threads(
    kernels_here: KernelLibrary, smollm2: tuple[Path, DecoderShape]
) -> None:
    folder, shape = smollm2
    texts = [[int(token) for token in np.random.default_rng(seed).integers(0, 49152, 20)] for seed in range(3)]
    check_invariance(Steps(folder / KERNEL_GRAPH_FILE, shape, kernels_here), kernels_here, texts)
