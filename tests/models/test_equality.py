"""A row's logits do not depend on what is computed beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_sources import decoder_folder

from bench.equality import BATCHES, CHUNKS, WIDTHS, Equality, Rig, comparisons, measure
from magnitude.models.description import KvType
from magnitude.models.graphs.build import KvScales, build_graph
from magnitude.models.importing.parent import import_model
from magnitude.models.sources import open_source


def by_kind(results: tuple[Equality, ...]) -> dict[str, list[Equality]]:
    kinds: dict[str, list[Equality]] = {}
    for result in results:
        kinds.setdefault(result.what.split()[0], []).append(result)
    return kinds


@pytest.mark.parametrize("kv", ["float", "int8"])
def test_rows_of_ragged_batches_equal_themselves_alone(golden: Path, tmp_path: Path, kv: str) -> None:
    import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=tmp_path / "models", kv=kv)  # type: ignore[arg-type]
    kinds = by_kind(measure(tmp_path / "models" / "tiny", threads=2).results)
    assert [result.size for result in kinds["decode"]] == list(BATCHES)
    assert [result.size for result in kinds["verify"]] == list(WIDTHS)
    assert [result.size for result in kinds["prefill"][:-1]] == list(CHUNKS)
    assert all(result.equal for result in kinds["decode"])


def test_what_is_not_equal_is_told_with_its_distance(golden: Path, tmp_path: Path) -> None:
    """A graph whose rows do depend on each other's number: ONNX Runtime GenAI's builder pads nothing."""
    report = measure(golden / "genai_tiny_llama", threads=1)
    for result in report.results:
        assert result.equal == (result.largest_difference == 0)
    assert report.plan == ""


@pytest.mark.models
def test_the_chat_model_s_ragged_batches_and_its_chunks_are_equal_to_the_bit(magnitude_home: Path) -> None:
    report = measure(magnitude_home / "models" / "smollm2-135m-instruct", threads=2)
    kinds = by_kind(report.results)
    assert all(result.equal for result in kinds["decode"])
    assert all(result.equal for result in kinds["prefill"] if result.size in CHUNKS)


@pytest.mark.models
def test_with_an_int8_cache_nothing_depends_on_how_it_is_computed(embedded_gguf: Path, tmp_path: Path) -> None:
    """Batches, chunks, verification and replay. The scales are rough: equality does not ask for good ones."""
    kv_type: KvType = "int8"
    scales = (KvScales(key=(0.25,), value=(0.05,)),) * 30
    built = build_graph(open_source(embedded_gguf), tmp_path, bits=4, kv_type=kv_type, kv_scales=scales)
    assert built.decoder is not None
    rig = Rig(tmp_path, built.graph_file, built.decoder, threads=2, positions=320)
    ids = np.random.default_rng(1).integers(0, 49152, 800)
    whole, pieces = rig.cache(1), rig.cache(1)
    one_more = rig.run(ids[None, :129], [0], whole)  # 128 rows are a group, and one is left
    for start in range(0, 129, 43):
        last = rig.run(ids[None, start : start + 43], [start], pieces)
    assert np.array_equal(one_more, last)
    unequal = [(result.what, result.size) for result in comparisons(rig, ids) if not result.equal]
    assert unequal == []
