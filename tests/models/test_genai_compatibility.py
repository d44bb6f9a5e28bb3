"""ONNX Runtime GenAI reads the folders that we write, and computes the same from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime_genai as genai
import pytest
from tokenizers import Tokenizer

from magnitude.models.catalogue import open_folder
from magnitude.models.importing.graph_runner import DecoderRunner

pytestmark = pytest.mark.models

TEXT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def test_an_imported_folder_gives_the_same_ids_logits_and_tokens_in_genai(magnitude_home: Path) -> None:
    folder = magnitude_home / "models" / "smollm2-135m-instruct"
    ours = open_folder(folder)
    assert ours.decoder is not None
    model = genai.Model(str(folder))
    ids = [int(token) for token in genai.Tokenizer(model).encode(TEXT)]
    assert ids == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids
    settings = genai.GeneratorParams(model)
    settings.set_search_options(max_length=len(ids) + 16, do_sample=False)
    generator = genai.Generator(model, settings)
    generator.append_tokens(ids)
    theirs = np.asarray(generator.get_logits()).reshape(-1)
    runner = DecoderRunner(folder / ours.graph_file, ours.decoder)
    assert np.abs(theirs - runner.logits(ids)[-1]).max() < 1e-3
    tokens: list[int] = []
    while not generator.is_done():
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    expected = list(ids)
    for token in tokens[:4]:
        assert token == int(runner.logits(expected)[-1].argmax())
        expected.append(token)
