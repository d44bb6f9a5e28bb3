"""The engine's graph and the one that ONNX Runtime GenAI reads, over the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from run_graph import open_graph, run_decoder

from magnitude.models.graphs.build import build_graph
from magnitude.models.graphs.decoder_graph import rotation_frequencies
from magnitude.models.sources import open_source
from magnitude.models.sources.source import Rope


@pytest.fixture
def built(golden: Path, tmp_path: Path) -> Path:
    build_graph(open_source(golden / "llama_tied"), tmp_path, bits=4)
    return tmp_path


def feeds(
    session: onnxruntime.InferenceSession, ids: np.ndarray, rows: list[int] | None = None
) -> dict[str, np.ndarray]:
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            given[value.name] = np.zeros((len(ids), value.shape[1], 0, value.shape[3]), np.float32)
    if rows is not None:
        given["logit_rows"] = np.array(rows, np.int64)
    return given


def test_only_the_rows_asked_for_get_logits_in_their_order(built: Path) -> None:
    session = open_graph(built)
    ids = np.arange(3, 23).reshape(2, 10)
    everything, _ = run_decoder(session, ids)
    rows = [19, 3, 3, 11]
    (picked,) = session.run(["logits"], feeds(session, ids, rows))
    assert np.array_equal(picked, everything.reshape(20, -1)[rows])


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (1, 7), (3, 1), (2, 5)])
def test_the_graph_beside_it_gives_each_row_s_last_token(built: Path, batch: int, tokens: int) -> None:
    ids = np.arange(3, 3 + batch * tokens).reshape(batch, tokens)
    last = onnxruntime.InferenceSession(str(built / "model.onnx"), providers=["CPUExecutionProvider"])
    assert "logit_rows" not in {value.name for value in last.get_inputs()}
    (logits,) = last.run(["logits"], feeds(last, ids))
    everything, _ = run_decoder(open_graph(built), ids)
    assert logits.shape == (batch, 1, everything.shape[-1])
    assert np.array_equal(logits[:, 0], everything[:, -1])


def test_a_lone_token_is_computed_as_a_row_of_many(built: Path) -> None:
    session = open_graph(built)
    alone, kv = run_decoder(session, np.array([[9]]))
    assert alone.shape[:2] == (1, 1)
    assert all(past.shape[0] == 1 for past in kv.values())
    beside, _ = run_decoder(session, np.array([[9], [30], [4]]))
    assert np.array_equal(alone[0], beside[0])


def test_the_description_says_how_far_keys_turn(golden: Path, tmp_path: Path) -> None:
    source = open_source(golden / "llama_tied")
    shape = build_graph(source, tmp_path, bits=4).decoder
    assert shape is not None
    half = source.config.head_dim // 2
    assert len(shape.rope_frequencies) == half
    expected = source.config.rope.theta ** (-np.arange(half) / half)
    assert shape.rope_frequencies == pytest.approx(expected)
    stretched = rotation_frequencies(Rope(kind="linear", factor=4.0), 16)
    assert stretched == pytest.approx(rotation_frequencies(Rope(), 16) / 4)
