"""The ids that stand behind a slot's header: whoever finds the memory reads what was computed in it."""

from __future__ import annotations

import itertools
import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.kv_layout import ALIGN_BYTES, KvLayout
from magnitude.engine.slide import header_ids
from magnitude.engine.slot_header import SlotState
from magnitude.schedule.kv_memory import KvMemory, MemoryRefused

LAYOUT = KvLayout(layers=1, slots=2, kv_heads=1, max_len=64, head_dim=8, kv_type="float32")
ids_lists = st.lists(st.integers(0, 2**31 - 1), max_size=20)


def state_of(kv: KvMemory, slot: int = 1) -> SlotState:
    view = mmap.mmap(kv.fd, kv.layout.total_bytes)
    return SlotState(view, kv.layout.header_offset(slot), "model", kv.layout.layout_id)


@given(first=ids_lists, pieces=st.lists(ids_lists, max_size=2), again=ids_lists)
def test_the_ids_of_all_positions_can_be_read_back(
    first: list[int], pieces: list[list[int]], again: list[int]
) -> None:
    kv = KvMemory("ids", LAYOUT)
    state = state_of(kv)
    state.begin(first)
    for piece in pieces:
        state.extend(piece, len(piece))
    content = kv.content(1)
    assert content is not None
    assert content.ids.tolist() == [*first, *itertools.chain.from_iterable(pieces)]
    assert kv.held_tokens(1, "model", [*content.ids, 5]) == len(content.ids)
    state.begin(again)  # shorter or longer: what was behind it is not read any more
    assert (content := kv.content(1)) is not None
    assert content.ids.tolist() == again
    kv.close()


def test_a_slot_that_was_slid_says_nothing_that_can_be_read() -> None:
    kv = KvMemory("slid", LAYOUT)
    state = state_of(kv)
    state.begin(header_ids(list(range(40)), 8), 8)
    assert kv.content(1) is None
    state.extend([7], 1)
    assert kv.content(1) is None
    kv.close()


def test_a_torn_header_and_ids_of_others_are_not_read() -> None:
    kv = KvMemory("torn", LAYOUT)
    assert kv.content(1) is None
    state = state_of(kv)
    state.begin([1, 2, 3])
    with mmap.mmap(kv.fd, LAYOUT.total_bytes) as view:
        ids_at = view.find(b"\x01\0\0\0\x02\0\0\0\x03\0\0\0")
        view[ids_at] = 9
        assert kv.content(1) is None
        view[ids_at] = 1
        assert kv.content(1) is not None
    kv.release_slot(1)
    assert kv.content(1) is None
    kv.close()


def test_every_context_has_room_for_its_ids() -> None:
    for max_len in (64, 16_128, 16_129, 131_072):
        layout = KvLayout(layers=1, slots=2, kv_heads=1, max_len=max_len, head_dim=8, kv_type="int8")
        assert layout.slot_header_bytes % ALIGN_BYTES == 0
        kv = KvMemory("long", layout)
        for slot in (0, 1):
            state_of(kv, slot).begin(list(range(slot, slot + max_len)))
        assert [content.ids[-1] for slot in (0, 1) if (content := kv.content(slot))] == [max_len - 1, max_len]
        with mmap.mmap(kv.fd, layout.total_bytes) as view:
            assert not any(view[layout.tensor_offset(0, "key") :][:ALIGN_BYTES])
        kv.release_slot(0)
        assert kv.content(0) is None
        assert kv.content(1) is not None
        kv.close()


def test_memory_of_another_size_or_kind_is_refused() -> None:
    kv = KvMemory("short", LAYOUT)
    longer = KvLayout(layers=2, slots=2, kv_heads=1, max_len=64, head_dim=8, kv_type="float32")
    with pytest.raises(MemoryRefused, match="bytes"):
        KvMemory("short", longer, kv.fd)
    assert kv.content(0) is None  # and it is still ours
    kv.close()
