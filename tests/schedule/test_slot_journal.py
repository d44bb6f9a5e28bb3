from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.protocol import SlotContents
from magnitude.engine.slot_header import SlotState
from magnitude.schedule.kv_memory import KvMemory, MemoryRefused, create_memory
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_journal import SlotJournal, borne_out
from magnitude.schedule.slot_terms import SlotRecord

LAYOUT = KvLayout(layers=1, slots=4, kv_heads=1, max_len=64, head_dim=8, kv_type="float32")
SLOTS = 3

names = st.text(max_size=30)
scopes = st.builds(Scope, model=names, model_hash=names, layout_id=names, plan=names, adapter=names, owner=names)
counts = st.integers(0, 2**40)
contents = st.builds(SlotContents, tokens=counts, ids_hash=st.integers(0, 2**64 - 1))
records = st.builds(
    SlotRecord,
    slot=st.just(1),
    state=st.sampled_from(["running", "idle"]),
    scope=scopes,
    conversation=names,
    prompt_tokens=counts,
    contents=contents,
    since_sequence=counts,
    touched_tokens=counts,
    hits=counts,
    used_s=st.floats(0, 1e9),
)
EMPTY = SlotRecord(slot=1, state="empty")


class Dying(mmap.mmap):
    """Memory whose writer is killed when it has written so many more bytes."""

    left: int | None = None

    def __setitem__(self, place: slice, data: bytes) -> None:  # type: ignore[override]
        if self.left is None:
            super().__setitem__(place, data)
            return
        done = min(self.left, len(data))
        super().__setitem__(slice(place.start, place.start + done), data[:done])
        self.left -= done
        if done < len(data):
            raise KeyboardInterrupt


@pytest.fixture
def kv() -> Iterator[KvMemory]:
    memory = KvMemory("test", LAYOUT)
    yield memory
    memory.close()


@pytest.fixture
def journal(kv: KvMemory) -> Iterator[SlotJournal]:
    made = SlotJournal.create("model", kv, SLOTS)
    yield made
    made.close()


def read(journal: SlotJournal, slot: int) -> list[SlotRecord]:
    """The slot's records, as the next service finds them."""
    with closing(SlotJournal.open(os.dup(journal.fd))) as reopened:
        return reopened.records(slot)


@given(
    before=st.lists(st.one_of(records, st.just(EMPTY)), max_size=3),
    new=st.one_of(records, st.just(EMPTY)),
    data=st.data(),
)
def test_a_service_killed_in_mid_write_leaves_the_old_or_the_new_record(
    before: list[SlotRecord], new: SlotRecord, data: st.DataObject
) -> None:
    kv = KvMemory("test", LAYOUT)
    made = SlotJournal.create("model", kv, SLOTS)
    memory: list[Dying] = []

    def mapped(fd: int, size_bytes: int) -> Dying:
        memory.append(Dying(fd, size_bytes))
        return memory[0]

    journal = SlotJournal(os.dup(made.fd), made.head, mapped=mapped)
    for record in before:
        journal.write(record)
    old = read(made, 1)[:1]
    memory[0].left = data.draw(st.integers(0, 700))
    try:
        journal.write(new)
    except KeyboardInterrupt:
        assert read(made, 1)[:1] in (old, [new])
    else:
        assert read(made, 1)[0] == new
    last = msgspec.structs.replace(new, hits=77)
    third = SlotJournal.open(os.dup(made.fd))
    third.write(last)
    assert read(made, 1)[0] == last
    assert read(made, 0) == read(made, 2) == []
    for one in (made, journal, third, kv):
        one.close()


def test_what_was_emptied_is_spoken_for_by_no_earlier_record(journal: SlotJournal, kv: KvMemory) -> None:
    record = idle(kv, 1, [1, 2, 3])
    journal.write(record)
    assert journal.speaking(1, kv.content(1)) == (record, 3)
    journal.write(EMPTY)
    assert journal.speaking(1, kv.content(1)) is None
    assert read(journal, 1) == [EMPTY]


def test_a_record_that_is_too_long_is_kept_as_an_empty_one(journal: SlotJournal, kv: KvMemory) -> None:
    journal.write(msgspec.structs.replace(idle(kv, 1, [1, 2, 3]), conversation="x" * 4000))
    assert journal.records(1)[0] == EMPTY


def engine(kv: KvMemory, slot: int, model_hash: str = "hash") -> SlotState:
    view = mmap.mmap(kv.fd, kv.layout.total_bytes)
    return SlotState(view, kv.layout.header_offset(slot), model_hash, kv.layout.layout_id)


def idle(kv: KvMemory, slot: int, ids: list[int], owner: str = "ann") -> SlotRecord:
    """Fill the slot as an engine does; the record of what it holds."""
    state = engine(kv, slot)
    state.begin(ids)
    scope = Scope("model", "hash", kv.layout.layout_id, "graph", "", owner)
    held = SlotContents(tokens=len(ids), ids_hash=state.ids_hash)
    return SlotRecord(slot=slot, state="idle", scope=scope, contents=held)


def running(kv: KvMemory, slot: int, owner: str) -> SlotRecord:
    header = kv.header(slot)
    scope = Scope("model", "hash", kv.layout.layout_id, "graph", "", owner)
    since = header.sequence if header is not None else 0
    return SlotRecord(slot=slot, state="running", scope=scope, since_sequence=since)


def test_a_slot_that_went_to_somebody_else_is_the_old_owners_until_the_engine_writes(
    journal: SlotJournal, kv: KvMemory
) -> None:
    first = idle(kv, 0, [1, 2, 3], "ann")
    journal.write(first)
    second = running(kv, 0, "bob")
    journal.write(second)
    assert journal.speaking(0, kv.content(0)) == (first, 3)
    state = engine(kv, 0)
    state.begin([])
    assert journal.speaking(0, kv.content(0)) is None
    state.extend([1, 2], 2)
    assert journal.speaking(0, kv.content(0)) == (second, 2)


def test_an_idle_record_speaks_only_for_the_very_contents(journal: SlotJournal, kv: KvMemory) -> None:
    record = idle(kv, 0, [1, 2, 3])
    assert borne_out(record, kv.content(0)) == 3
    engine(kv, 0).begin([1, 2, 3, 4, 5])  # more than anybody was told before the engine was lost
    assert borne_out(record, kv.content(0)) == 3
    engine(kv, 0).begin([1, 2, 4])
    assert not borne_out(record, kv.content(0))
    engine(kv, 0).begin([1, 2])
    assert not borne_out(record, kv.content(0))
    engine(kv, 0, "another model").begin([1, 2, 3])
    assert not borne_out(record, kv.content(0))
    assert not borne_out(record, None)


def test_what_is_no_table_is_refused(journal: SlotJournal, kv: KvMemory) -> None:
    reader, writer = os.pipe()
    unsealed = os.memfd_create("magnitude-table-model")
    os.ftruncate(unsealed, os.fstat(journal.fd).st_size)
    os.pwrite(unsealed, os.pread(journal.fd, 4096, 0), 0)
    torn = create_memory("magnitude-table-model", os.fstat(journal.fd).st_size)
    head = bytearray(os.pread(journal.fd, 4096, 0))
    head[40] ^= 1
    os.pwrite(torn, head, 0)
    short = create_memory("magnitude-table-model", 4096)
    os.pwrite(short, os.pread(journal.fd, 4096, 0), 0)
    for fd in (reader, writer, unsealed, torn, short, kv.fd):
        with pytest.raises(MemoryRefused):
            SlotJournal.open(fd)
        os.fstat(fd)  # it is still the caller's
    for fd in (reader, writer, unsealed, torn, short):
        os.close(fd)
