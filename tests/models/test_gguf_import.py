"""Weights from GGUF: each block format is carried over exactly, and the graph computes with those very weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_gguf
from gguf import GGMLQuantizationType as Kind
from numpy_llama import logits as numpy_logits
from run_graph import open_graph, run_decoder

from magnitude.models.graphs.build import build_graph
from magnitude.models.sources import open_source
from magnitude.models.sources.gguf import rotary_rows

BLOCKS = [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K]
FLOATS = [Kind.F32, Kind.F16, Kind.BF16]
IDS = np.array([[5, 9, 60, 33, 2, 17, 17, 40]], np.int64)


def names(kind: Kind) -> str:
    return kind.name


@pytest.mark.parametrize("kind", BLOCKS, ids=names)
def test_unpacked_blocks_are_what_the_gguf_library_dequantises(tmp_path: Path, kind: Kind) -> None:
    source = open_source(tiny_gguf.write(tmp_path / "m.gguf", kind))
    raw = tiny_gguf.encode(tiny_gguf.random_weights()["blk.0.ffn_down"], kind)
    matrix = source.blocks("model.layers.0.mlp.down_proj.weight")
    assert matrix is not None and matrix.format == kind.name
    np.testing.assert_array_equal(matrix.floats(), gguf.quants.dequantize(raw, kind))


@pytest.mark.parametrize("kind", BLOCKS, ids=names)
@pytest.mark.parametrize("module", ["q_proj", "k_proj", "v_proj"])
def test_blocks_and_floats_of_a_tensor_agree_row_by_row(tmp_path: Path, kind: Kind, module: str) -> None:
    source = open_source(tiny_gguf.write(tmp_path / "m.gguf", kind))
    name = f"model.layers.0.self_attn.{module}.weight"
    matrix = source.blocks(name)
    assert matrix is not None
    np.testing.assert_array_equal(matrix.floats(), source.floats(name))


@pytest.mark.parametrize("kind", FLOATS + BLOCKS, ids=names)
def test_a_float_graph_computes_with_the_file_s_weights(tmp_path: Path, kind: Kind) -> None:
    source = open_source(tiny_gguf.write(tmp_path / "m.gguf", kind))
    build_graph(source, tmp_path, bits=16)
    ours, _ = run_decoder(open_graph(tmp_path), IDS)
    assert np.abs(ours[0] - numpy_logits(source, IDS[0].tolist())).max() < 1e-4


@pytest.mark.parametrize("kind", BLOCKS, ids=names)
def test_repacked_blocks_give_the_logits_of_the_dequantised_weights(tmp_path: Path, kind: Kind) -> None:
    # The look-up table cannot have minima, so it has another format where `kind` has them.
    table = kind if kind in (Kind.Q8_0, Kind.Q4_0, Kind.Q5_0, Kind.Q6_K) else Kind.Q8_0
    path = tiny_gguf.write(tmp_path / "m.gguf", kind, kinds={"token_embd": table})
    source = open_source(path)
    result = build_graph(source, tmp_path, bits=8, accuracy_level=0)
    ours, _ = run_decoder(open_graph(tmp_path), IDS)
    assert np.abs(ours[0] - numpy_logits(source, IDS[0].tolist())).max() < 1e-4
    assert all(stored.lossless for stored in result.weights)


def test_layers_in_mixed_formats_are_built_without_loss(tmp_path: Path) -> None:
    mixed = {"blk.0.attn_v": Kind.Q6_K, "blk.0.ffn_down": Kind.Q6_K, "token_embd": Kind.Q6_K}
    source = open_source(tiny_gguf.write(tmp_path / "m.gguf", Kind.Q4_K, kinds=mixed))
    result = build_graph(source, tmp_path, bits=4, accuracy_level=0)
    ours, _ = run_decoder(open_graph(tmp_path), IDS)
    assert np.abs(ours[0] - numpy_logits(source, IDS[0].tolist())).max() < 1e-4
    assert all(stored.lossless for stored in result.weights)


def test_whole_bytes_are_quantised_again_only_when_four_bits_are_asked_for(tmp_path: Path) -> None:
    source = open_source(tiny_gguf.write(tmp_path / "m.gguf", Kind.Q8_0))
    result = build_graph(source, tmp_path, bits=4)
    account = {stored.tensors[0]: stored for stored in result.weights}
    down = account["model.layers.0.mlp.down_proj.weight"]
    assert (down.source_format, down.stored_format, down.lossless) == ("Q8_0", "int4/32+minimum", False)
    assert account["model.embed_tokens.weight"].lossless


def test_the_rotary_order_of_a_llama_file_is_undone() -> None:
    rows = np.arange(16)
    heads = 2
    written = rows.reshape(heads, 2, 4).swapaxes(1, 2).reshape(-1)  # what the converter does to the rows
    np.testing.assert_array_equal(written[rotary_rows(16, heads)], rows)


def test_a_tied_embedding_is_stored_once(tmp_path: Path) -> None:
    source = open_source(tiny_gguf.write(tmp_path / "m.gguf", Kind.Q8_0))
    for bits in (8, 16):
        build_graph(source, tmp_path, bits=bits)  # type: ignore[arg-type]
        data = (tmp_path / "model.onnx.data").read_bytes()
        table = source.floats("model.embed_tokens.weight")
        if bits == 8:
            matrix = source.blocks("model.embed_tokens.weight")
            assert matrix is not None
            assert data.count(matrix.codes.tobytes()) == 1
        else:
            assert data.count(table.tobytes()) == 1
            assert data.count(table.T.tobytes()) == 0


def test_metadata_keeps_licence_and_tokenizer_fields(tmp_path: Path) -> None:
    template = {"tokenizer.chat_template": "{{ messages }}"}
    metadata = open_source(tiny_gguf.write(tmp_path / "m.gguf", Kind.F32, fields=template)).metadata
    assert metadata["licence"] == "apache-2.0"
    assert metadata["chat_template"] == "{{ messages }}"
    assert metadata["gguf"]["tokenizer.ggml.tokens"][3] == "t3"


def test_a_look_up_table_with_minima_is_quantised_again_and_says_so(tmp_path: Path) -> None:
    source = open_source(tiny_gguf.write(tmp_path / "m.gguf", Kind.Q4_1))
    result = build_graph(source, tmp_path, bits=4, accuracy_level=0)
    assert [s.tensors[0] for s in result.weights if not s.lossless] == ["model.embed_tokens.weight"]
    ours, _ = run_decoder(open_graph(tmp_path), IDS)
    exact = numpy_logits(source, IDS[0].tolist())
    assert np.corrcoef(ours[0].ravel(), exact.ravel())[0, 1] > 0.999
