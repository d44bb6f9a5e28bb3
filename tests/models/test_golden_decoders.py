"""Each family's graph against logits made with Transformers, and one folder of ONNX Runtime GenAI's builder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy_llama import logits as numpy_logits
from run_graph import open_graph, run_decoder

from magnitude.errors import ImportFailed
from magnitude.models.description import KvType
from magnitude.models.graphs.build import KvScales, build_graph
from magnitude.models.sources import open_source

FAMILIES = ["llama_tied", "llama_untied", "qwen2", "qwen3"]
# float32 against float32 with the terms of its sums in another order.
ROUNDING = 1e-4


def expected(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / "golden.npz") as stored:
        return stored["input_ids"], stored["logits"]


@pytest.mark.parametrize("name", FAMILIES)
def test_float_graphs_give_the_logits_of_transformers(golden: Path, tmp_path: Path, name: str) -> None:
    ids, logits = expected(golden / name)
    result = build_graph(open_source(golden / name), tmp_path, bits=16)
    ours, _ = run_decoder(open_graph(tmp_path), ids)
    assert np.abs(ours - logits).max() < ROUNDING
    assert result.decoder is not None and result.decoder.logit_rows == "logit_rows"
    assert all(w.lossless for w in result.weights)


@pytest.mark.parametrize("name", FAMILIES)
def test_decoding_token_by_token_gives_the_last_logits_of_the_whole(golden: Path, tmp_path: Path, name: str) -> None:
    ids, logits = expected(golden / name)
    build_graph(open_source(golden / name), tmp_path, bits=16)
    session = open_graph(tmp_path)
    ours, past = run_decoder(session, ids[:, :4])
    assert np.abs(ours[:, -1] - logits[:, 3]).max() < ROUNDING
    for at in range(4, ids.shape[1]):
        ours, past = run_decoder(session, ids[:, at : at + 1], past, at)
        assert np.abs(ours[:, 0] - logits[:, at]).max() < ROUNDING


@pytest.mark.parametrize("name", ["llama_tied", "qwen2", "qwen3"])
def test_the_numpy_reference_agrees_with_transformers(golden: Path, name: str) -> None:
    ids, logits = expected(golden / name)
    assert np.abs(numpy_logits(open_source(golden / name), ids[0].tolist()) - logits[0]).max() < ROUNDING


@pytest.mark.parametrize("name", FAMILIES)
def test_eight_bit_graphs_stay_near_the_float_logits(golden: Path, tmp_path: Path, name: str) -> None:
    ids, logits = expected(golden / name)
    result = build_graph(open_source(golden / name), tmp_path, bits=8, accuracy_level=0)
    ours, _ = run_decoder(open_graph(tmp_path), ids)
    assert np.corrcoef(ours.ravel(), logits.ravel())[0, 1] > 0.999
    assert all(not w.lossless and w.stored_format == "int8/32" for w in result.weights)


@pytest.mark.parametrize("name", FAMILIES)
def test_four_bit_graphs_keep_embedding_and_output_layer_at_eight_bits(
    golden: Path, tmp_path: Path, name: str
) -> None:
    ids, logits = expected(golden / name)
    result = build_graph(open_source(golden / name), tmp_path, bits=4)
    ours, _ = run_decoder(open_graph(tmp_path), ids)
    assert np.corrcoef(ours.ravel(), logits.ravel())[0, 1] > 0.97
    for stored in result.weights:
        outer = stored.tensors[0] in ("model.embed_tokens.weight", "lm_head.weight")
        assert stored.stored_format == ("int8/32" if outer else "int4/32+minimum")


@pytest.mark.parametrize("by_channel", [False, True])
def test_an_int8_kv_cache_stays_near_the_float_logits(golden: Path, tmp_path: Path, by_channel: bool) -> None:
    ids, logits = expected(golden / "llama_tied")
    source = open_source(golden / "llama_tied")
    floats, quantised = tmp_path / "floats", tmp_path / "quantised"
    floats.mkdir()
    quantised.mkdir()
    build_graph(source, floats, bits=16)
    _, present = run_decoder(open_graph(floats), ids)

    def scale(name: str) -> tuple[float, ...]:
        largest = np.abs(present[f"past_key_values.{name}"]).max((0, 2)).ravel() / 127
        return tuple(largest.tolist()) if by_channel else (float(largest.max()),)

    scales = tuple(KvScales(key=scale(f"{i}.key"), value=scale(f"{i}.value")) for i in range(2))
    result = build_graph(source, quantised, bits=16, kv_type="int8", kv_scales=scales)
    assert result.decoder is not None and result.decoder.kv_type == "int8"
    ours, kv = run_decoder(open_graph(quantised), ids)
    assert kv["past_key_values.0.key"].dtype == np.int8
    assert np.abs(ours - logits).max() < 0.05 * np.abs(logits).max()


@pytest.mark.parametrize(
    ("kv_type", "scales"),
    [
        ("int8", None),
        ("float32", (KvScales(key=(1.0,), value=(1.0,)),) * 2),
        ("int8", (KvScales(key=(1.0,), value=(1.0,)),)),
        ("int8", (KvScales(key=(1.0,) * 32, value=(1.0,)),) * 2),
        ("float16", None),
    ],
)
def test_kv_scales_that_do_not_fit_the_cache_are_refused(
    golden: Path, tmp_path: Path, kv_type: KvType, scales: tuple[KvScales, ...] | None
) -> None:
    with pytest.raises(ImportFailed):
        build_graph(open_source(golden / "llama_tied"), tmp_path, bits=16, kv_type=kv_type, kv_scales=scales)


def test_a_folder_of_genai_s_own_builder_gives_the_logits_of_transformers(golden: Path) -> None:
    ids, logits = expected(golden / "genai_tiny_llama")
    ours, _ = run_decoder(open_graph(golden / "genai_tiny_llama"), ids)
    assert np.abs(ours - logits).max() < ROUNDING
