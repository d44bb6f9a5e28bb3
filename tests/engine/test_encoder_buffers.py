from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_decoder import write_encoder

from magnitude.engine.encoder import Encoder
from magnitude.engine.encoder_buckets import MAX_RUN_TOKENS
from magnitude.engine.encoder_buffers import MAX_BINDINGS, shape_plan
from magnitude.engine.sessions import open_session


@pytest.fixture
def encoder(folder: Path) -> Encoder:
    model = write_encoder(folder)
    return Encoder(model, open_session(folder / "model.onnx", 1))


def test_a_shape_is_bound_once_and_keeps_its_place(encoder: Encoder):
    first = encoder.run([[1, 2], [3]], [], 8)
    address = first.output.ctypes.data
    rows = first.output.copy()
    encoder.run([[9] * 30] * 8, [], 32)
    again = encoder.run([[1, 2], [3]], [], 8)
    assert again is first
    assert again.output.ctypes.data == address
    assert np.array_equal(again.output, rows)


def test_all_shapes_lie_in_one_block_of_the_largest_plan(encoder: Encoder):
    before = encoder.buffers.block_bytes
    outputs = [encoder.run([[1]] * rows, [], padded).output for rows, padded in ((1, 8), (32, 8), (4, 64), (1, 64))]
    assert encoder.buffers.block_bytes == before
    assert before < 4 * MAX_RUN_TOKENS * 8
    roots = {id(output.base.base if output.base.base is not None else output.base) for output in outputs}
    assert len(roots) == 1


def test_more_rows_than_planned_get_a_larger_block(encoder: Encoder):
    before = encoder.buffers.block_bytes
    bound = encoder.run([[n % 200] for n in range(2000)], [], 8)
    assert encoder.buffers.block_bytes > before
    assert np.array_equal(bound.output[7], encoder.run([[7]], [], 8).output[0])


def test_trimming_takes_new_memory_of_the_same_size_and_gives_the_same_numbers(encoder: Encoder):
    first = encoder.run([[1, 2], [3]], [], 8)
    rows, size = first.output.copy(), encoder.buffers.block_bytes
    encoder.buffers.trim()
    again = encoder.run([[1, 2], [3]], [], 8)
    assert again is not first
    assert again.output.ctypes.data != first.output.ctypes.data
    assert np.array_equal(again.output, rows)
    assert encoder.buffers.block_bytes == size


def test_bindings_are_bounded(encoder: Encoder):
    first = encoder.buffers.bound(1, 8)
    for rows in range(2, MAX_BINDINGS + 2):
        encoder.buffers.bound(rows, 8)
    assert encoder.buffers.bound(1, 8) is not first


def test_scores_lie_where_the_inputs_were_and_the_output_lies_apart():
    plan = shape_plan(4, 16, ("input_ids", "attention_mask"), 8)
    assert plan.offsets["scores"] in (plan.offsets["input_ids"], plan.offsets["attention_mask"])
    assert plan.total_bytes == 2 * 4 * 16 * 8 + 4 * 8 * 4
