from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from engine_driver import KvFile
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoder import HEAD_DIM, KV_HEADS, LAYERS

from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import ALIGN_BYTES, KvLayout
from magnitude.engine.rows import RowWindow
from magnitude.errors import EngineError
from magnitude.models.description import KvPartName, KvType, ModelDescription

OPEN = Path("/proc/self/fd")
NewKv = Callable[..., KvFile]
LAYOUT = KvLayout(layers=LAYERS, slots=4, kv_heads=KV_HEADS, max_len=100, head_dim=HEAD_DIM, kv_type="float32")


def first_byte(window: RowWindow, row: int, layer: int, part: KvPartName) -> int:
    return ctypes.c_ubyte.from_address(window.address(layer, part, row)).value


@given(
    heads=st.integers(1, 9),
    width=st.sampled_from([16, 48, 64, 80, 128]),
    max_len=st.integers(1, 9000),
    kv_type=st.sampled_from(["float32", "float16", "int8", "int8_per_token"]),
)
def test_every_slot_can_be_mapped_by_itself(heads: int, width: int, max_len: int, kv_type: KvType):
    layout = KvLayout(layers=2, slots=3, kv_heads=heads, max_len=max_len, head_dim=width, kv_type=kv_type)
    assert layout.padded_len >= max_len
    blocks = [
        (layout.tensor_offset(layer, part.name, slot), layout.slot_bytes(part.name))
        for layer in (0, 1)
        for part in layout.parts
        for slot in range(3)
    ]
    assert all(offset % ALIGN_BYTES == 0 for offset, _ in blocks)
    assert all(offset + size == after for (offset, size), (after, _) in itertools.pairwise(blocks))
    assert blocks[0][0] == layout.header_bytes
    assert sum(blocks[-1]) == layout.total_bytes


def test_layouts_without_scales_lie_as_they_always_did():
    layout = KvLayout(layers=2, slots=3, kv_heads=3, max_len=2048, head_dim=64, kv_type="float32")
    assert layout.layout_id == "v2-float32-l2-h3-d64-m2048"
    assert layout.padded_len == 2048
    assert [layout.tensor_offset(layer, part, 1) for layer in (0, 1) for part in ("key", "value")] == [
        3 * ALIGN_BYTES + (1 + 3 * tensor) * 3 * 2048 * 64 * 4 for tensor in range(4)
    ]


def test_scales_are_counted_with_their_values_and_make_another_layout():
    shape = {"layers": 2, "slots": 3, "kv_heads": 3, "max_len": 2048, "head_dim": 64}
    plain, scaled = KvLayout(**shape, kv_type="int8"), KvLayout(**shape, kv_type="int8_per_token")
    assert scaled.token_bytes == plain.token_bytes + 2 * 2 * 3 * 4
    assert scaled.layout_id != plain.layout_id
    assert len(scaled.layout_id) < 64


@settings(max_examples=20)
@given(
    shown=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=20),
    layout=st.sampled_from([LAYOUT, msgspec.structs.replace(LAYOUT, kv_type="int8_per_token")]),
)
def test_a_row_is_the_slot_that_was_shown_last(shown: list[tuple[int, int]], layout: KvLayout):
    file = KvFile(layout)
    kv, window = KvMemory(file.fd, layout), RowWindow(file.fd, layout, 3)
    names = [part.name for part in layout.parts]
    for slot in range(4):
        for layer in range(LAYERS):
            for index, part in enumerate(names):
                kv.slot_bytes(layer, part, slot)[:, 0] = 10 * slot + 4 * layer + index
    now: dict[int, int] = {}
    for row, slot in shown:
        window.show(row, slot)
        now[row] = slot
    for row, slot in now.items():
        for layer in range(LAYERS):
            for index, part in enumerate(names):
                assert first_byte(window, row, layer, part) == 10 * slot + 4 * layer + index
    window.close()
    kv.close()
    file.close()


def test_what_is_written_in_a_row_is_in_the_slot(tiny: ModelDescription, new_kv: NewKv):
    file = new_kv(tiny)
    kv, window = file.keep(KvMemory(file.fd, file.layout)), file.keep(RowWindow(file.fd, file.layout, 2))
    window.show(1, 0)
    ctypes.c_ubyte.from_address(window.address(1, "value", 1)).value = 77
    assert kv.slot_bytes(1, "value", 0)[0, 0, 0] == 77


def test_a_window_that_the_kernel_does_not_give_is_an_error_with_a_hint(tiny: ModelDescription, new_kv: NewKv):
    file = new_kv(tiny)
    with pytest.raises(EngineError) as caught:
        RowWindow(file.fd, file.layout, 1 << 40)
    assert caught.value.code == "kv_not_mapped"
    assert caught.value.hint


def test_closing_gives_the_descriptor_back_and_may_happen_twice(tiny: ModelDescription, new_kv: NewKv):
    file = new_kv(tiny)
    before = len(list(OPEN.iterdir()))
    window = RowWindow(file.fd, file.layout, 2)
    window.show(0, 1)
    window.close()
    window.close()
    assert len(list(OPEN.iterdir())) == before
