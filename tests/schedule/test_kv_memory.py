import itertools
import mmap
import os

import numpy as np
import pytest

from magnitude.engine.kv_layout import ALIGN_BYTES, KvLayout
from magnitude.schedule.kv_memory import KvMemory

# One slot of a tensor is 2 * 512 * 16 * 4 = 64 KiB.
LAYOUT = KvLayout(layers=2, slots=3, kv_heads=2, max_len=512, head_dim=16, kv_type="float32")


@pytest.fixture
def memory():
    kv = KvMemory("test", LAYOUT)
    yield kv
    kv.close()


def fill(kv: KvMemory, slot: int, value: int) -> None:
    with mmap.mmap(kv.fd, LAYOUT.total_bytes) as view:
        for layer in range(LAYOUT.layers):
            for is_value in (False, True):
                start = LAYOUT.tensor_offset(layer, is_value, slot)
                view[start : start + LAYOUT.slot_bytes] = bytes([value]) * LAYOUT.slot_bytes


def read(kv: KvMemory, slot: int) -> set[int]:
    with mmap.mmap(kv.fd, LAYOUT.total_bytes) as view:
        return {
            byte
            for layer in range(LAYOUT.layers)
            for is_value in (False, True)
            for byte in set(
                view[
                    LAYOUT.tensor_offset(layer, is_value, slot) : LAYOUT.tensor_offset(layer, is_value, slot)
                    + LAYOUT.slot_bytes
                ]
            )
        }


def test_untouched_memory_costs_nothing(memory: KvMemory) -> None:
    assert memory.resident_bytes() == 0


def test_a_released_slot_gives_its_pages_back_and_leaves_its_neighbours_alone(memory: KvMemory) -> None:
    for slot in range(3):
        fill(memory, slot, slot + 1)
    full = memory.resident_bytes()
    memory.release_slot(1)
    assert memory.resident_bytes() == full - 2 * LAYOUT.layers * LAYOUT.slot_bytes
    assert [read(memory, slot) for slot in range(3)] == [{1}, {0}, {3}]


def test_slots_whose_borders_are_no_page_borders_keep_their_neighbours_whole() -> None:
    layout = KvLayout(layers=1, slots=3, kv_heads=1, max_len=100, head_dim=8, kv_type="int8")
    kv = KvMemory("odd", layout)
    os.pwrite(kv.fd, b"\x07" * layout.tensor_bytes, layout.tensor_offset(0, False))
    kv.release_slot(1)
    for slot in (0, 2):
        data = os.pread(kv.fd, layout.slot_bytes, layout.tensor_offset(0, False, slot))
        assert data == b"\x07" * layout.slot_bytes
    kv.close()


def test_the_memory_outlives_the_mapping_of_another_process(memory: KvMemory) -> None:
    child = os.fork()
    if child == 0:
        with mmap.mmap(memory.fd, LAYOUT.total_bytes) as view:
            view[0:4] = b"kept"
        os._exit(0)
    os.waitpid(child, 0)
    assert os.pread(memory.fd, 4, 0) == b"kept"


def test_tensors_never_overlap_and_start_on_large_page_borders() -> None:
    edges = [(LAYOUT.header_offset(slot), ALIGN_BYTES) for slot in range(LAYOUT.slots)]
    for layer in range(LAYOUT.layers):
        for is_value in (False, True):
            offset = LAYOUT.tensor_offset(layer, is_value)
            assert offset % ALIGN_BYTES == 0
            edges.append((offset, LAYOUT.slots * LAYOUT.slot_bytes))
    edges.sort()
    assert all(start + size <= following for (start, size), (following, _) in itertools.pairwise(edges))
    assert edges[-1][0] + edges[-1][1] <= LAYOUT.total_bytes
    # A batch over slots is one contiguous tensor.
    as_numpy = np.arange(LAYOUT.slots) * LAYOUT.slot_bytes + LAYOUT.tensor_offset(1, True)
    assert [LAYOUT.tensor_offset(1, True, slot) for slot in range(LAYOUT.slots)] == as_numpy.tolist()


def test_memory_that_was_closed_or_handed_on_leaves_descriptors_of_others_alone():
    closed, handed_on = KvMemory("closed", LAYOUT), KvMemory("handed-on", LAYOUT)
    closed.close()
    fd = handed_on.release()
    others = os.memfd_create("others")  # takes the number of the closed one
    closed.close()
    handed_on.close()
    os.close(others)
    os.close(fd)
