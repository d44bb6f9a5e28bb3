from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tiny_decoder import write_encoder

from magnitude.engine.encoder import EncodeJob, Encoder
from magnitude.engine.protocol import Embed, Vectors
from magnitude.engine.sessions import open_session
from magnitude.errors import ContextLengthExceeded, ModelError, RequestError


@pytest.fixture
def encoder(folder: Path) -> Encoder:
    model = write_encoder(folder)
    return Encoder(model, open_session(folder / "model.onnx", 1))


def vectors(encoder: Encoder, inputs: list[list[int]], token_types: list[list[int]] | None = None) -> np.ndarray:
    job = EncodeJob(Embed(request_id=1, model="tiny-encoder", inputs=inputs, token_types=token_types or []), encoder)
    messages = []
    while not job.finished:
        messages += job.advance()
    (answer,) = messages
    assert isinstance(answer, Vectors)
    return np.frombuffer(answer.data, "<f4").reshape(answer.count, answer.width)


def test_a_long_list_gives_the_rows_of_each_text_alone_in_the_order_asked(encoder: Encoder):
    rng = np.random.default_rng(2)
    inputs = [[int(i) for i in rng.integers(0, 250, rng.integers(1, 64))] for _ in range(150)]
    together = vectors(encoder, inputs)
    for index in (0, 1, 77, 149):
        assert np.allclose(together[index], vectors(encoder, [inputs[index]])[0], atol=1e-5)


def test_token_types_reach_the_graph_and_default_to_zero(encoder: Encoder):
    plain = vectors(encoder, [[1, 2, 3]])
    assert np.array_equal(vectors(encoder, [[1, 2, 3]], [[0, 0, 0]]), plain)
    assert not np.allclose(vectors(encoder, [[1, 2, 3]], [[0, 1, 1]]), plain)


def test_an_empty_list_is_answered_with_no_rows(encoder: Encoder):
    assert vectors(encoder, []).shape == (0, 8)


def test_inputs_that_cannot_be_encoded_are_refused(encoder: Encoder):
    with pytest.raises(ContextLengthExceeded):
        vectors(encoder, [[1], [1] * 65])
    for inputs, types in (([[]], None), ([[-1]], None), ([[1, 2]], [[0]]), ([[1]], [[0], [0]])):
        with pytest.raises(RequestError):
            vectors(encoder, inputs, types)


class Ticking:
    """A clock that moves `step_s` at each look."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_a_run_has_as_many_tokens_as_fit_the_time_that_a_decode_step_may_wait(folder: Path):
    model = write_encoder(folder)
    clock = Ticking(0.032)
    encoder = Encoder(model, open_session(folder / "model.onnx", 1), max_run_s=0.1, clock=clock)
    # Nothing is known before the first run, so it is small: 64 tokens, which take 0.032 s by this clock.
    job = EncodeJob(Embed(request_id=1, model="tiny-encoder", inputs=[[1] * 16] * 50), encoder)
    job.advance()
    assert encoder.run_tokens == 200
    runs = 1
    while not job.finished:
        job.advance()
        runs += 1
    # 4 texts, then 12; those took as long, so a token looked cheaper, and the rest went in one run after the next.
    assert runs < 50 / 4


def test_an_encoder_with_other_types_or_names_is_refused(folder: Path):
    model = write_encoder(folder)
    session = open_session(folder / "model.onnx", 1)
    assert model.encoder is not None
    other = msgspec.structs.replace(model, encoder=msgspec.structs.replace(model.encoder, output="scores"))
    with pytest.raises(ModelError):
        Encoder(other, session)
