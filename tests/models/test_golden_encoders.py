"""Embedder and cross-encoder graphs against vectors made with Transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from run_graph import open_graph, run_encoder

from magnitude.errors import ImportFailed
from magnitude.models.graphs.build import build_graph
from magnitude.models.sources import open_source

ROUNDING = 1e-5


def stored(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "golden.npz") as arrays:
        return dict(arrays)


def copy_with_pooling(source: Path, target: Path, **modes: bool) -> Path:
    shutil.copytree(source, target)
    (target / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{k}": v for k, v in modes.items()}))
    return target


def test_embeddings_are_those_of_transformers(golden: Path, tmp_path: Path) -> None:
    batch = stored(golden / "bert_embedder")
    result = build_graph(open_source(golden / "bert_embedder"), tmp_path, bits=16)
    assert np.abs(run_encoder(open_graph(tmp_path), batch) - batch["embeddings"]).max() < ROUNDING
    assert result.encoder is not None
    assert (result.encoder.width, result.encoder.output, result.encoder.normalised) == (32, "embeddings", True)


def test_scores_of_a_cross_encoder_are_those_of_transformers(golden: Path, tmp_path: Path) -> None:
    batch = stored(golden / "bert_reranker")
    result = build_graph(open_source(golden / "bert_reranker"), tmp_path, bits=16)
    assert np.abs(run_encoder(open_graph(tmp_path), batch) - batch["scores"]).max() < ROUNDING
    assert result.encoder is not None
    assert (result.encoder.width, result.encoder.output, result.encoder.normalised) == (1, "scores", False)


@pytest.mark.parametrize("name", ["bert_embedder", "bert_reranker"])
def test_padding_changes_no_row(golden: Path, tmp_path: Path, name: str) -> None:
    batch = {k: v for k, v in stored(golden / name).items() if v.dtype == np.int64}
    build_graph(open_source(golden / name), tmp_path, bits=16)
    session = open_graph(tmp_path)
    together = run_encoder(session, batch)
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone = run_encoder(session, {k: v[row : row + 1, :length] for k, v in batch.items()})
        assert np.abs(alone[0] - together[row]).max() < ROUNDING


def test_cls_pooling_takes_the_first_token(golden: Path, tmp_path: Path) -> None:
    folder = copy_with_pooling(golden / "bert_embedder", tmp_path / "model", cls_token=True, mean_tokens=False)
    (tmp_path / "out").mkdir()
    build_graph(open_source(folder), tmp_path / "out", bits=16)
    batch = stored(folder)
    first = batch["first_token"] / np.linalg.norm(batch["first_token"], axis=-1, keepdims=True)
    assert np.abs(run_encoder(open_graph(tmp_path / "out"), batch) - first).max() < ROUNDING


def test_other_pooling_is_refused_by_its_name(golden: Path, tmp_path: Path) -> None:
    folder = copy_with_pooling(golden / "bert_embedder", tmp_path / "model", max_tokens=True)
    with pytest.raises(ImportFailed, match="max_tokens"):
        open_source(folder)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_encoders_point_in_the_same_direction(golden: Path, tmp_path: Path, bits: int) -> None:
    batch = stored(golden / "bert_embedder")
    build_graph(open_source(golden / "bert_embedder"), tmp_path, bits=bits)  # type: ignore[arg-type]
    cosines = (run_encoder(open_graph(tmp_path), batch) * batch["embeddings"]).sum(-1)
    assert cosines.min() > (0.998 if bits == 8 else 0.95)
