from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.buffers import ALIGNMENT, Block, Buffer, plan_buffers

lives = st.tuples(st.integers(0, 5000), st.integers(0, 6), st.integers(0, 6))


@given(st.lists(lives, max_size=20))
def test_buffers_that_live_at_the_same_time_do_not_overlap(found: list[tuple[int, int, int]]):
    buffers = [Buffer(str(n), size, min(a, b), max(a, b)) for n, (size, a, b) in enumerate(found)]
    plan = plan_buffers(buffers)
    for buffer in buffers:
        begin = plan.offsets[buffer.name]
        assert begin % ALIGNMENT == 0
        assert begin + buffer.bytes <= plan.total_bytes
        for other in buffers:
            together = other is not buffer and buffer.first <= other.last and other.first <= buffer.last
            if together and buffer.bytes and other.bytes:
                start = plan.offsets[other.name]
                assert begin + buffer.bytes <= start or start + other.bytes <= begin


def test_a_chain_of_stages_needs_the_memory_of_its_largest_neighbours():
    stages = [Buffer("a", 640, 0, 1), Buffer("b", 320, 1, 2), Buffer("c", 640, 2, 3)]
    plan = plan_buffers(stages)
    assert plan.total_bytes == 960
    assert plan.offsets["a"] == plan.offsets["c"]


def test_no_buffers_need_no_memory():
    assert plan_buffers([]).total_bytes == 0


def test_a_block_gives_aligned_views_of_the_same_memory_and_refuses_what_does_not_fit():
    block = Block(1024)
    ids = block.view(64, np.int64, (2, 4))
    assert not ids.any()
    assert ids.ctypes.data % ALIGNMENT == 0
    ids[:] = 7
    assert (block.view(64, np.int64, (8,)) == 7).all()
    with pytest.raises(ValueError):
        block.view(1000, np.int64, (4,))
