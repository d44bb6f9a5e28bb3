"""A batch of embeddings and a generation, side by side in one engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from engine_driver import EngineDriver, KvFile
from tiny_decoder import write_encoder

from magnitude.engine.protocol import Embed, Finished, Tokens, Vectors
from magnitude.models.description import ModelDescription

TEXTS = [[n % 200 + 1] * 60 for n in range(200)]


def test_tokens_keep_coming_between_the_runs_of_a_long_list_and_nobodys_answer_changes(
    engine: EngineDriver, tiny: ModelDescription, new_kv: Callable[..., KvFile], folder: Path
):
    encoder = write_encoder(folder)
    engine.load(tiny, new_kv(tiny))
    engine.load(encoder)
    alone, _ = engine.generate([1, 2, 3], max_new_tokens=60)
    rows_alone = embed(engine, encoder.name)

    generation = engine.start([1, 2, 3], max_new_tokens=60)
    first = engine.wait(Tokens, generation)
    ids = list(first.ids)
    request_id = engine.new_id()
    engine.send(Embed(request_id=request_id, model=encoder.name, inputs=TEXTS))
    rows, before_the_vectors = b"", 0
    finished = False
    while not (rows and finished):
        message = engine.next()
        if isinstance(message, Tokens):
            ids += message.ids
            before_the_vectors += not rows
        elif isinstance(message, Vectors):
            rows = message.data
        elif isinstance(message, Finished):
            finished = True
    assert ids == alone
    # Other runs, other sums: they agree to the last bits of a float32.
    assert np.allclose(floats(rows), floats(rows_alone), atol=1e-5)
    # At most 4 of the texts fit a run, so there are 50 runs, and a token was made in each turn.
    assert before_the_vectors >= 40


def embed(engine: EngineDriver, model: str) -> bytes:
    request_id = engine.new_id()
    engine.send(Embed(request_id=request_id, model=model, inputs=TEXTS))
    return engine.wait(Vectors, request_id).data


def floats(rows: bytes) -> np.ndarray:
    return np.frombuffer(rows, "<f4")
