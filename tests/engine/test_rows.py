from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from engine_driver import KvFile
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoder import HEAD_DIM, KV_HEADS, LAYERS

from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import ALIGN_BYTES, KvLayout
from magnitude.engine.rows import RowWindow
from magnitude.errors import EngineError
from magnitude.models.description import ModelDescription

OPEN = Path("/proc/self/fd")
NewKv = Callable[..., KvFile]
LAYOUT = KvLayout(layers=LAYERS, slots=4, kv_heads=KV_HEADS, max_len=100, head_dim=HEAD_DIM, kv_type="float32")


def first_byte(window: RowWindow, row: int, layer: int = 0, *, value: bool = False) -> int:
    return ctypes.c_ubyte.from_address(window.address(layer, value=value, row=row)).value


@given(
    heads=st.integers(1, 9),
    width=st.sampled_from([16, 48, 64, 80, 128]),
    max_len=st.integers(1, 9000),
    kv_type=st.sampled_from(["float32", "float16", "int8"]),
)
def test_every_slot_can_be_mapped_by_itself(heads: int, width: int, max_len: int, kv_type: str):
    layout = KvLayout(layers=2, slots=3, kv_heads=heads, max_len=max_len, head_dim=width, kv_type=kv_type)
    assert layout.padded_len >= max_len
    offsets = [
        layout.tensor_offset(layer, value, slot) for layer in (0, 1) for value in (False, True) for slot in range(3)
    ]
    assert all(offset % ALIGN_BYTES == 0 for offset in offsets)
    assert np.diff(offsets).min() >= layout.slot_bytes
    assert offsets[-1] + layout.slot_bytes == layout.total_bytes


@settings(max_examples=20)
@given(shown=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=20))
def test_a_row_is_the_slot_that_was_shown_last(shown: list[tuple[int, int]]):
    file = KvFile(LAYOUT)
    kv, window = KvMemory(file.fd, LAYOUT), RowWindow(file.fd, LAYOUT, 3)
    for slot in range(4):
        for layer in range(LAYERS):
            for value in (False, True):
                kv.slot_bytes(layer, value=value, slot=slot)[:] = 10 * slot + 2 * layer + value
    now: dict[int, int] = {}
    for row, slot in shown:
        window.show(row, slot)
        now[row] = slot
    for row, slot in now.items():
        for layer in range(LAYERS):
            for value in (False, True):
                assert first_byte(window, row, layer, value=value) == 10 * slot + 2 * layer + value
    window.close()
    kv.close()
    file.close()


def test_what_is_written_in_a_row_is_in_the_slot(tiny: ModelDescription, new_kv: NewKv):
    file = new_kv(tiny)
    kv, window = file.keep(KvMemory(file.fd, file.layout)), file.keep(RowWindow(file.fd, file.layout, 2))
    window.show(1, 0)
    ctypes.c_ubyte.from_address(window.address(1, value=True, row=1)).value = 77
    assert kv.slot_bytes(1, value=True, slot=0)[0, 0, 0] == 77


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
