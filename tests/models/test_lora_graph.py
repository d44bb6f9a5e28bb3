"""The graph with adapter inputs against weights into which the adapter is merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy_llama import logits as numpy_logits
from run_graph import open_graph

from magnitude.errors import ImportFailed
from magnitude.models.description import ModelDescription
from magnitude.models.graphs.build import build_graph
from magnitude.models.graphs.linear import Bits, WideChannels
from magnitude.models.graphs.lora import LORA_GRAPH_FILE, shrunk_channels, write_lora
from magnitude.models.importing.adapter_job import Base, packed
from magnitude.models.sources import open_source
from magnitude.models.sources.peft import read_peft
from tiny_adapters import ATTENTION, Merged, Pairs, random_pairs, write_peft

# float32 against float64 with the terms of its sums in another order.
ROUNDING = 1e-4
FAMILIES = ["llama_tied", "llama_untied", "qwen2", "qwen3"]
IDS = [3, 17, 42, 8, 8, 61, 5]


def build(
    golden: Path, folder: Path, name: str, bits: Bits = 16, wide: WideChannels | None = None
) -> ModelDescription:
    source = open_source(golden / name)
    folder.mkdir(exist_ok=True)
    built = build_graph(source, folder, bits=bits, wide_channels=wide)
    assert built.decoder is not None
    write_lora(folder / built.graph_file, folder / LORA_GRAPH_FILE, built.decoder.layers)
    return ModelDescription(
        name=name,
        kind="decoder",
        family=source.family,
        folder=str(folder),
        graph_file=built.graph_file,
        model_hash="ab" * 32,
        weight_bytes=1,
        decoder=built.decoder,
        lora_graph_file=LORA_GRAPH_FILE,
    )


def run(model: ModelDescription, arrays: dict[str, np.ndarray], graph: str = LORA_GRAPH_FILE) -> np.ndarray:
    session = open_graph(Path(model.folder), graph)
    feeds: dict[str, Any] = {
        "input_ids": np.array([IDS]),
        "attention_mask": np.ones((1, len(IDS)), np.int64),
        "logit_rows": np.arange(len(IDS)),
    }
    for value in session.get_inputs():
        if value.name.startswith("past_key_values."):
            feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        elif value.name.startswith("lora."):
            shape = [size if isinstance(size, int) else 0 for size in value.shape]
            feeds[value.name] = arrays.get(value.name, np.zeros(shape, np.float32))
    return session.run(["logits"], feeds)[0]


def adapted(golden: Path, folder: Path, model: ModelDescription, pairs: Pairs, **config: Any) -> np.ndarray:
    weights = read_peft(write_peft(folder, pairs, **config))
    return run(model, packed(Base(model), weights.pairs))


# llama_untied has Llama 3's rotation, which the NumPy reference does not.
@pytest.mark.parametrize("name", ["llama_tied", "qwen2", "qwen3"])
def test_an_adapter_gives_the_logits_of_weights_it_is_merged_into(golden: Path, tmp_path: Path, name: str) -> None:
    model, source = build(golden, tmp_path / "base", name), open_source(golden / name)
    pairs = random_pairs(source)
    ours = adapted(golden, tmp_path / "adapter", model, pairs, alpha=8, rank=4)
    expected = numpy_logits(Merged(source, pairs, 2.0), IDS)
    assert np.abs(ours - expected).max() < ROUNDING
    assert np.abs(ours - run(model, {})).max() > 0.1


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("bits", [4, 16])
def test_rank_zero_gives_the_bits_of_the_plain_graph(golden: Path, tmp_path: Path, name: str, bits: Bits) -> None:
    model = build(golden, tmp_path / "base", name, bits)
    assert np.array_equal(run(model, {}), run(model, {}, model.graph_file))


def test_layers_without_a_pair_are_left_alone_within_a_shared_product(golden: Path, tmp_path: Path) -> None:
    model, source = build(golden, tmp_path / "base", "llama_tied"), open_source(golden / "llama_tied")
    pairs = random_pairs(source, ("self_attn.v_proj", "mlp.up_proj"))
    ours = adapted(golden, tmp_path / "adapter", model, pairs, alpha=4, rank=4)
    assert np.abs(ours - numpy_logits(Merged(source, pairs, 1.0), IDS)).max() < ROUNDING


def test_layers_of_one_product_may_have_ranks_of_their_own(golden: Path, tmp_path: Path) -> None:
    model, source = build(golden, tmp_path / "base", "llama_tied"), open_source(golden / "llama_tied")
    ranks = {"self_attn.q_proj": 2, "self_attn.v_proj": 5}
    pairs = random_pairs(source, ATTENTION, ranks=ranks)
    patterns = {"rank_pattern": {"q_proj": 2, "v_proj": 5}, "alpha_pattern": {"q_proj": 4, "v_proj": 10}}
    ours = adapted(golden, tmp_path / "adapter", model, pairs, alpha=8, rank=4, **patterns)
    assert np.abs(ours - numpy_logits(Merged(source, pairs, 2.0), IDS)).max() < ROUNDING


def test_a_rank_stabilised_adapter_is_scaled_by_the_root_of_its_rank(golden: Path, tmp_path: Path) -> None:
    model, source = build(golden, tmp_path / "base", "llama_tied"), open_source(golden / "llama_tied")
    pairs = random_pairs(source)
    ours = adapted(golden, tmp_path / "adapter", model, pairs, alpha=3, rank=4, use_rslora=True)
    assert np.abs(ours - numpy_logits(Merged(source, pairs, 1.5), IDS)).max() < ROUNDING


def test_quantised_weights_keep_their_adapter_in_float(golden: Path, tmp_path: Path) -> None:
    model, source = build(golden, tmp_path / "base", "llama_tied", 8), open_source(golden / "llama_tied")
    pairs = random_pairs(source)
    ours = adapted(golden, tmp_path / "adapter", model, pairs)
    assert np.corrcoef(ours.ravel(), numpy_logits(Merged(source, pairs, 2.0), IDS).ravel())[0, 1] > 0.99


def test_channels_that_the_graph_made_smaller_are_made_up_for_in_the_adapter(golden: Path, tmp_path: Path) -> None:
    source = open_source(golden / "llama_tied")
    pairs = random_pairs(source)
    expected = numpy_logits(Merged(source, pairs, 2.0), IDS)
    wide = {"layers.1.attention.in": (3, 7), "layers.0.mlp.in": (5,)}
    model = build(golden, tmp_path / "base", "llama_tied", wide=wide)
    channels = {"lora.1.qkv": [3, 7], "lora.0.gate_up": [5]}
    assert shrunk_channels(tmp_path / "base" / LORA_GRAPH_FILE) == (channels, 4096)
    assert np.abs(adapted(golden, tmp_path / "adapter", model, pairs) - expected).max() < ROUNDING


def test_both_graphs_read_one_data_file(golden: Path, tmp_path: Path) -> None:
    build(golden, tmp_path / "base", "llama_tied", 4)
    plain, lora = (
        onnx.load(str(tmp_path / "base" / name), load_external_data=False).graph.initializer
        for name in ("serving.onnx", LORA_GRAPH_FILE)
    )
    assert list(plain) == list(lora)


def test_a_graph_of_somebody_else_is_refused_by_the_layers_it_lacks(golden: Path, tmp_path: Path) -> None:
    with pytest.raises(ImportFailed, match=r"layer 0 has no product for mlp\.down_proj"):
        write_lora(golden / "genai_tiny_llama" / "model.onnx", tmp_path / "lora.onnx", 2)
