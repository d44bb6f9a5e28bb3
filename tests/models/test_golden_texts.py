"""The texts by which sessions of a model are compared."""

from __future__ import annotations

from pathlib import Path

import msgspec

from magnitude.models.description import DecoderShape, ModelDescription
from magnitude.models.golden import Golden, GoldenPrompt, GoldenVector, write_golden
from magnitude.models.golden_texts import GOLDEN_FILE, GOLDEN_VERSION, golden_texts


def model(folder: Path, **changes: object) -> ModelDescription:
    described = ModelDescription(
        name="m",
        kind="embedder",
        family="bert",
        folder=str(folder),
        graph_file="model.onnx",
        model_hash="abc",
        weight_bytes=1,
    )
    return msgspec.structs.replace(described, **changes)


def write(folder: Path, *, model_hash: str = "abc") -> None:
    golden = Golden(
        version=GOLDEN_VERSION,
        model_hash=model_hash,
        prompts=[GoldenPrompt(ids=[1, 2, 3], top=[4], logits=[9.0])],
        vectors=[GoldenVector(ids=[5, 6], vector=[1.0])],
    )
    write_golden(folder, golden)


def test_they_are_those_of_the_golden_set_cut_to_what_fits(tmp_path: Path) -> None:
    write(tmp_path)
    assert golden_texts(model(tmp_path), 99) == [[1, 2, 3], [5, 6]]
    assert golden_texts(model(tmp_path), 2) == [[1, 2], [5, 6]]


def test_without_a_golden_set_of_the_very_model_others_stand_in(tmp_path: Path) -> None:
    stand_in = golden_texts(model(tmp_path), 64)
    assert [len(text) for text in stand_in] == [5, 33, 64]
    write(tmp_path, model_hash="another")
    assert golden_texts(model(tmp_path), 64) == stand_in
    (tmp_path / GOLDEN_FILE).write_bytes(b"{torn")
    assert golden_texts(model(tmp_path), 64) == stand_in


def test_ids_that_stand_in_are_in_a_small_vocabulary_too(tmp_path: Path) -> None:
    shape = DecoderShape(layers=1, kv_heads=1, head_dim=2, vocab_size=16, hidden_size=8, context_length=64)
    texts = golden_texts(model(tmp_path, kind="decoder", decoder=shape), 64)
    assert all(0 <= token < 16 for text in texts for token in text)
