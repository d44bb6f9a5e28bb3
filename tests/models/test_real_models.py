"""The two embedded models, checked against independent computations of the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy_llama import logits as numpy_logits
from run_graph import open_graph, run_decoder, run_encoder

from magnitude.models.graphs.build import build_graph
from magnitude.models.sources import open_source

pytestmark = pytest.mark.models

# "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
QUESTION = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


def test_smollm2_in_float_equals_a_plain_numpy_forward_pass(embedded_gguf: Path, tmp_path: Path) -> None:
    source = open_source(embedded_gguf)
    build_graph(source, tmp_path, bits=16)
    ours, _ = run_decoder(open_graph(tmp_path), np.array([QUESTION], np.int64))
    error = np.abs(ours[0] - numpy_logits(source, QUESTION)).max()
    print(f"largest error of a logit: {error:.2e}")
    assert error < 1e-3


def test_smollm2_is_repacked_without_loss_and_answers_like_the_float_model(
    embedded_gguf: Path, tmp_path: Path
) -> None:
    source = open_source(embedded_gguf)
    result = build_graph(source, tmp_path, bits=4)
    assert all(stored.lossless for stored in result.weights)
    session = open_graph(tmp_path)
    logits, past = run_decoder(session, np.array([QUESTION], np.int64))
    answer = [int(logits[0, -1].argmax())]
    while len(answer) < 8:
        length = len(QUESTION) + len(answer) - 1
        logits, past = run_decoder(session, np.array([answer[-1:]], np.int64), past, length)
        answer.append(int(logits[0, -1].argmax()))
    assert answer == [504, 3575, 282, 4649, 314, 7042, 30, 2]  # "The capital of France is Paris.<|im_end|>"


def test_smollm2_without_loss_means_equal_logits_with_float_activations(embedded_gguf: Path, tmp_path: Path) -> None:
    source = open_source(embedded_gguf)
    ids = np.array([QUESTION], np.int64)
    logits = []
    for name, bits, level in (("floats", 16, 0), ("blocks", 4, 0)):
        (tmp_path / name).mkdir()
        build_graph(source, tmp_path / name, bits=bits, accuracy_level=level)  # type: ignore[arg-type]
        logits.append(run_decoder(open_graph(tmp_path / name), ids)[0])
    assert np.abs(logits[0] - logits[1]).max() < 1e-3


def test_minilm_points_where_the_reference_implementation_does(
    embedded_encoder: Path, golden: Path, tmp_path: Path
) -> None:
    build_graph(open_source(embedded_encoder), tmp_path, bits=16)
    with np.load(golden / "minilm_reference.npz") as stored:
        reference = dict(stored)
    cosines = (run_encoder(open_graph(tmp_path), reference) * reference["embeddings"]).sum(-1)
    print(f"smallest cosine: {cosines.min():.7f}")
    assert cosines.min() > 0.9999
