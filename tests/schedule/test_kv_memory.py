import itertools
import mmap
import os

import numpy as np
import pytest

from magnitude.engine.kv_layout import ALIGN_BYTES, KvLayout
from magnitude.schedule.kv_memory import KvMemory

# One slot of a tensor is 2 * 512 * 16 * 4 = 64 KiB.
LAYOUT = KvLayout(layers=2, slots=3, kv_heads=2, max_len=512, head_dim=16, kv_type="float32")
# Here scales have the fewer bytes: 2 * 8192 * 4 = 64 KiB.
IN_BYTES = KvLayout(layers=2, slots=3, kv_heads=2, max_len=512, head_dim=16, kv_type="int8_per_token")


@pytest.fixture
def memory():
    kv = KvMemory("test", LAYOUT)
    yield kv
    kv.close()


def fill(kv: KvMemory, slot: int, value: int) -> None:
    layout = kv.layout
    with mmap.mmap(kv.fd, layout.total_bytes) as view:
        for layer in range(layout.layers):
            for part in layout.parts:
                start, size = layout.tensor_offset(layer, part.name, slot), layout.slot_bytes(part.name)
                view[start : start + size] = bytes([value]) * size


def read(kv: KvMemory, slot: int) -> set[int]:
    layout = kv.layout
    with mmap.mmap(kv.fd, layout.total_bytes) as view:
        return {
            byte
            for layer in range(layout.layers)
            for part in layout.parts
            for start in [layout.tensor_offset(layer, part.name, slot)]
            for byte in set(view[start : start + layout.slot_bytes(part.name)])
        }


def test_untouched_memory_costs_nothing(memory: KvMemory) -> None:
    assert memory.resident_bytes() == 0


@pytest.mark.parametrize("layout", [LAYOUT, IN_BYTES], ids=["float32", "bytes"])
def test_a_released_slot_gives_its_pages_back_and_leaves_its_neighbours_alone(layout: KvLayout) -> None:
    memory = KvMemory("test", layout)
    for slot in range(3):
        fill(memory, slot, slot + 1)
    full = memory.resident_bytes()
    memory.release_slot(1)
    assert memory.resident_bytes() == full - layout.padded_len * layout.token_bytes
    assert [read(memory, slot) for slot in range(3)] == [{1}, {0}, {3}]
    memory.close()


def test_slots_whose_borders_are_no_page_borders_keep_their_neighbours_whole() -> None:
    layout = KvLayout(layers=1, slots=3, kv_heads=1, max_len=100, head_dim=8, kv_type="int8")
    kv = KvMemory("odd", layout)
    os.pwrite(kv.fd, b"\x07" * layout.tensor_bytes("key"), layout.tensor_offset(0, "key"))
    kv.release_slot(1)
    for slot in (0, 2):
        data = os.pread(kv.fd, layout.slot_bytes("key"), layout.tensor_offset(0, "key", slot))
        assert data == b"\x07" * layout.slot_bytes("key")
    kv.close()


def test_the_memory_outlives_the_mapping_of_another_process(memory: KvMemory) -> None:
    child = os.fork()
    if child == 0:
        with mmap.mmap(memory.fd, LAYOUT.total_bytes) as view:
            view[0:4] = b"kept"
        os._exit(0)
    os.waitpid(child, 0)
    assert os.pread(memory.fd, 4, 0) == b"kept"


@pytest.mark.parametrize("layout", [LAYOUT, IN_BYTES], ids=["float32", "bytes"])
def test_tensors_never_overlap_and_start_on_large_page_borders(layout: KvLayout) -> None:
    edges = [(layout.header_offset(slot), ALIGN_BYTES) for slot in range(layout.slots)]
    for layer in range(layout.layers):
        for part in layout.parts:
            offset = layout.tensor_offset(layer, part.name)
            assert offset % ALIGN_BYTES == 0
            edges.append((offset, layout.tensor_bytes(part.name)))
            # A batch over slots is one contiguous tensor.
            as_numpy = np.arange(layout.slots) * layout.slot_bytes(part.name) + offset
            slots = [layout.tensor_offset(layer, part.name, slot) for slot in range(layout.slots)]
            assert slots == as_numpy.tolist()
    edges.sort()
    assert all(start + size <= following for (start, size), (following, _) in itertools.pairwise(edges))
    assert edges[-1][0] + edges[-1][1] <= layout.total_bytes


def test_memory_that_was_closed_or_handed_on_leaves_descriptors_of_others_alone():
    closed, handed_on = KvMemory("closed", LAYOUT), KvMemory("handed-on", LAYOUT)
    closed.close()
    fd = handed_on.release()
    others = os.memfd_create("others")  # takes the number of the closed one
    closed.close()
    handed_on.close()
    os.close(others)
    os.close(fd)
