from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoder import write_encoder

from magnitude.engine.encoder import EncodeJob, Encoder, plan_runs
from magnitude.engine.protocol import Embed, Vectors
from magnitude.engine.sessions import open_session
from magnitude.errors import ContextLengthExceeded, RequestError


@given(lengths=st.lists(st.integers(1, 64), max_size=200), limit=st.integers(1, 512))
def test_every_input_is_in_exactly_one_run_and_runs_are_bounded(lengths: list[int], limit: int):
    plans = plan_runs(lengths, max_tokens=64, max_run_tokens=limit, step=16)
    assert sorted(i for plan in plans for i in plan.indices) == list(range(len(lengths)))
    for plan in plans:
        assert all(lengths[i] <= plan.padded_tokens <= 64 for i in plan.indices)
        assert all(plan.padded_tokens - lengths[i] < 16 for i in plan.indices)
        assert len(plan.indices) * plan.padded_tokens <= limit or len(plan.indices) == 1


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
