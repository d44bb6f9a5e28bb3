"""The project's own writers at work: numbered generations of what a service keeps on its storage.

Runs in the guest (`python state_writers.py FOLDER DEVICE ROUNDS`) while its disk is recorded; the test reads with
the same classes what a power cut would have left.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from disk_marks import Mark, Marks

from magnitude.board.boot import Stamp
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.slot_header import SlotState
from magnitude.feedback.record_file import RecordFile, RecordLimits
from magnitude.feedback.records import TaskRecord, TaskRow
from magnitude.persist import StateFile
from magnitude.policy.dumps import Dumps
from magnitude.policy.learned import Binding, Choice, Entry, Learned
from magnitude.schedule.kv_memory import KvMemory
from magnitude.schedule.saved_slot import SavedSlot, slot_pieces
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_files import SlotFiles

LAYOUT = KvLayout(layers=2, slots=1, kv_heads=2, max_len=128, head_dim=16, kv_type="float32")
SCOPE = Scope(model="tiny", model_hash="ab" * 32, layout_id=LAYOUT.layout_id, plan="", adapter="", owner="kitchen")
# Larger than a page, so that a torn file is possible.
STATE_TEXT_BYTES = 20_000


class State(msgspec.Struct, frozen=True):
    generation: int
    text: str

    @classmethod
    def of(cls, generation: int) -> State:
        return cls(generation, f"{generation:08}" * (STATE_TEXT_BYTES // 8))


def state_file(folder: Path) -> StateFile[State]:
    return StateFile(folder / "state.json", State, schema=1)


def slot_files(folder: Path) -> SlotFiles:
    return SlotFiles(folder / "kv", reserve_bytes=0)


def record_file(folder: Path) -> RecordFile:
    return RecordFile(folder / "records.db", RecordLimits(reserve_bytes=0))


def learned_of(generation: int) -> Learned:
    """The number says which one it is; every third one is by another runtime, which retires those before."""
    binding = Binding(
        board="board",
        model="tiny",
        model_hash="ab" * 32,
        ort_version=f"1.{generation // 3}.0",
        cpu_features=("avx2",),
    )
    entries = tuple(Entry(part="decode", key=f"rows={rows}", chosen=Choice()) for rows in range(1, 200))
    return Learned(binding=binding, entries=entries, samples=generation)


def row_of(generation: int) -> TaskRow:
    """The row says which one it is by its number of new tokens."""
    stamp = Stamp(wall_s=1.8e9 + generation, at_s=float(generation), boot_id="of the writers")
    return TaskRow(stamp=stamp, task=TaskRecord(kind="generate", model="tiny", outcome="ok", new_tokens=generation))


def ids_of(generation: int) -> list[int]:
    return [generation, *range(1, 100)]


class Slot:
    """The one slot of a KV memory, with content that follows from a number."""

    def __init__(self) -> None:
        self.kv = KvMemory("writers", LAYOUT)
        self._map = mmap.mmap(self.kv.fd, LAYOUT.total_bytes)

    def fill(self, generation: int) -> None:
        begin = LAYOUT.tensor_offset(0, "key", 0)
        self._map[begin:] = random.Random(generation).randbytes(LAYOUT.total_bytes - begin)
        SlotState(self._map, LAYOUT.header_offset(0), SCOPE.model_hash, LAYOUT.layout_id).begin(ids_of(generation))

    def positions(self) -> bytes:
        """What a saved conversation keeps of it."""
        with memoryview(self._map) as memory:
            return b"".join(slot_pieces(memory, LAYOUT, 0, len(ids_of(0))))


class Writers:
    """One method a writer: it brings `generation` to the storage and returns when it is said to be there."""

    def __init__(self, folder: Path) -> None:
        self._state = state_file(folder)
        self._files, self._slot = slot_files(folder), Slot()
        self._files.scan()
        self._saved: SavedSlot | None = None
        self._records = record_file(folder)
        self._in_place = folder / "in_place.json"
        self._folder = folder

    def state(self, generation: int) -> None:
        assert self._state.save(State.of(generation))

    def conversation(self, generation: int) -> None:
        self._slot.fill(generation)
        self._saved = self._files.save(self._slot.kv, 0, SCOPE, ids_of(generation), f"talk-{generation}")

    def deletion(self, generation: int) -> None:
        """Delete the conversation that was saved last."""
        assert self._saved and self._saved.conversation == f"talk-{generation}"
        assert self._files.delete(self._saved.saved_id)

    def records(self, generation: int) -> None:
        self._records.append([row_of(generation)])

    def strategies(self, generation: int) -> None:
        """As one run of the service after another does it."""
        dumps, learned = Dumps(self._folder), learned_of(generation)
        dumps.load(learned.binding)
        assert dumps.save(learned), dumps.off

    def in_place(self, generation: int) -> None:
        """How not to do it: the test must find this one broken, or it would find nothing."""
        with self._in_place.open("r+b" if self._in_place.exists() else "wb") as file:
            file.write(msgspec.json.encode(State.of(generation)))
            file.flush()
            os.fsync(file.fileno())


def run(folder: Path, device: str, rounds: int) -> None:
    writers, marks = Writers(folder), Marks(device)
    steps: tuple[tuple[str, Callable[[int], None]], ...] = (
        ("state", writers.state),
        ("conversation", writers.conversation),
        ("in_place", writers.in_place),
        ("deletion", writers.deletion),
        ("records", writers.records),
        ("strategies", writers.strategies),
    )
    for generation in range(1, rounds + 1):
        for name, write in steps:
            marks.leave(Mark(name, generation, False))
            write(generation)
            marks.leave(Mark(name, generation, True))


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
