from __future__ import annotations

import errno
import logging
import mmap
import os
import resource
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnitude.board.boot import EARLIEST_S
from magnitude.board.roots import HostRoots
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.slot_header import HEADER_BYTES, SlotHeader, SlotState, trusted_length, unpack_header
from magnitude.models.description import KvPart, KvType
from magnitude.schedule.kv_memory import KvMemory
from magnitude.schedule.saved_slot import PRELUDE, SavedSlot, SavedSlotRefused
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_files import SlotFiles, SlotNotSaved

IDS = list(range(100, 140))
DAY_S = 86400.0
NOW_S = EARLIEST_S + 100 * DAY_S


def layout_of(kv_type: KvType = "float32", *, max_len: int = 64, slots: int = 3) -> KvLayout:
    return KvLayout(layers=2, slots=slots, kv_heads=2, max_len=max_len, head_dim=8, kv_type=kv_type)


def scope_of(layout: KvLayout, *, owner: str = "kitchen", model: str = "tiny") -> Scope:
    return Scope(
        model=model, model_hash="ab" * 32, layout_id=layout.layout_id, plan="p", adapter="polite", owner=owner
    )


class Memory:
    """A KV memory whose slots can be filled and read like an engine does."""

    def __init__(self, layout: KvLayout) -> None:
        self.kv = KvMemory("test", layout)
        self.layout = layout
        self._map = mmap.mmap(self.kv.fd, layout.total_bytes)

    def tensor(self, layer: int, part: KvPart, slot: int) -> np.ndarray:
        """`[kv_heads, positions, bytes of a row]` of a slot."""
        layout, at = self.layout, self.layout.tensor_offset(layer, part.name, slot)
        data = np.frombuffer(self._map, np.uint8, layout.slot_bytes(part.name), at)
        return data.reshape(layout.kv_heads, -1, part.row_bytes)

    def tensors(self, slot: int) -> Iterator[np.ndarray]:
        for layer in range(self.layout.layers):
            for part in self.layout.parts:
                yield self.tensor(layer, part, slot)

    def fill(self, slot: int, ids: list[int], *, seed: int = 1) -> None:
        """Random numbers everywhere, also behind the conversation, and a header for `ids`."""
        rng = np.random.default_rng(seed)
        for tensor in self.tensors(slot):
            tensor[:] = rng.integers(0, 256, tensor.shape, np.uint8)
        self.state(slot).begin(ids)

    def state(self, slot: int) -> SlotState:
        return SlotState(self._map, self.layout.header_offset(slot), "ab" * 32, self.layout.layout_id)

    def positions(self, slot: int, count: int) -> list[bytes]:
        return [tensor[:, :count].tobytes() for tensor in self.tensors(slot)]

    def header(self, slot: int) -> SlotHeader | None:
        at = self.layout.header_offset(slot)
        return unpack_header(self._map[at : at + HEADER_BYTES])

    def trusted(self, slot: int, ids: list[int]) -> int:
        return trusted_length(self.header(slot), "ab" * 32, self.layout.layout_id, ids)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(layout_of())
    yield made
    made.kv.close()


@pytest.fixture
def files(tmp_path: Path) -> SlotFiles:
    made = SlotFiles(tmp_path / "kv", reserve_bytes=0)
    made.scan()
    return made


def saved_one(files: SlotFiles, memory: Memory, *, owner: str = "kitchen", seed: int = 1) -> SavedSlot:
    memory.fill(0, IDS, seed=seed)
    return files.save(memory.kv, 0, scope_of(memory.layout, owner=owner), IDS, "talk-1")


def path_of(files: SlotFiles, saved: SavedSlot) -> Path:
    return files.folder / f"{saved.saved_id}.kv"


def refused(files: SlotFiles, memory: Memory, saved: SavedSlot) -> str:
    """Restoring is refused, claims nothing and leaves no file; the reason."""
    with pytest.raises(SavedSlotRefused) as caught:
        files.restore(memory.kv, 2, saved)
    assert memory.header(2) is None
    assert not path_of(files, saved).is_symlink()
    assert not path_of(files, saved).exists()
    assert files.saved() == []
    return caught.value.message


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kv_type=st.sampled_from(["float32", "float16", "int8", "int8_per_token"]),
    slot=st.integers(0, 2),
    target=st.integers(0, 2),
    ids=st.lists(st.integers(0, 2**31), min_size=1, max_size=64),
    seed=st.integers(0, 99),
)
def test_a_conversation_comes_back_bit_by_bit_in_any_slot(
    tmp_path: Path, kv_type: KvType, slot: int, target: int, ids: list[int], seed: int
) -> None:
    memory, files = Memory(layout_of(kv_type)), SlotFiles(tmp_path, reserve_bytes=0)
    memory.fill(slot, ids, seed=seed)
    was = memory.positions(slot, len(ids))
    saved = files.save(memory.kv, slot, scope_of(memory.layout), ids, "")
    memory.fill(target, [1, 2, 3], seed=seed + 1)
    assert files.restore(memory.kv, target, saved) == len(ids)
    assert memory.positions(target, len(ids)) == was
    assert memory.trusted(target, ids) == len(ids)
    files.delete(saved.saved_id)
    memory.kv.close()


def test_a_file_holds_the_conversations_positions_and_no_more(files: SlotFiles, memory: Memory) -> None:
    saved = saved_one(files, memory)
    size = path_of(files, saved).stat().st_size
    assert size == saved.size_bytes
    assert size - len(IDS) * memory.layout.layers * 2 * 2 * 8 * 4 < 1000
    assert b"".join(memory.positions(0, len(IDS))) in path_of(files, saved).read_bytes()


def test_restoring_leaves_other_slots_alone_and_holds_no_page_behind_the_conversation(files: SlotFiles) -> None:
    memory = Memory(layout_of(max_len=4000))
    saved = saved_one(files, memory)
    memory.fill(1, [1, 2], seed=3)
    memory.fill(2, [3, 4], seed=4)
    neighbour, full = memory.positions(1, 4000), memory.kv.resident_bytes()
    files.restore(memory.kv, 2, saved)
    assert memory.positions(1, 4000) == neighbour
    assert memory.trusted(1, [1, 2]) == 2
    assert memory.kv.resident_bytes() < full - memory.layout.slot_bytes("key")
    memory.kv.close()


def test_files_and_folder_are_for_the_services_user_only(files: SlotFiles, memory: Memory) -> None:
    files.folder.chmod(0o755)
    old = os.umask(0)
    try:
        saved = saved_one(files, memory)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path_of(files, saved).stat().st_mode) == 0o600
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700


def test_what_was_saved_is_found_again_after_a_restart(files: SlotFiles, memory: Memory) -> None:
    first, second = saved_one(files, memory), saved_one(files, memory, owner="garage", seed=2)
    was = memory.positions(0, len(IDS))
    later = SlotFiles(files.folder, reserve_bytes=0)
    assert later.scan() == [first, second]
    assert first.scope == scope_of(memory.layout)
    assert (first.conversation, first.tokens) == ("talk-1", len(IDS))
    assert later.restore(memory.kv, 1, second) == len(IDS)
    assert memory.positions(1, len(IDS)) == was
    assert saved_one(later, memory).serial > second.serial


def test_a_slot_that_holds_something_else_is_not_saved(files: SlotFiles, memory: Memory) -> None:
    scope = scope_of(memory.layout)
    with pytest.raises(SlotNotSaved):  # never written
        files.save(memory.kv, 1, scope, IDS, "")
    memory.fill(0, IDS)
    with pytest.raises(SlotNotSaved):  # another text
        files.save(memory.kv, 0, scope, [*IDS[:-1], 7], "")
    with pytest.raises(SlotNotSaved):  # holds more, and begins otherwise
        files.save(memory.kv, 0, scope, [*IDS[:-2], 7], "")
    other_model = msgspec.structs.replace(scope, model_hash="cd" * 32)
    with pytest.raises(SlotNotSaved):
        files.save(memory.kv, 0, other_model, IDS, "")
    other_layout = msgspec.structs.replace(scope, layout_id="v1-int8-l2-h2-d8-m64")
    with pytest.raises(SlotNotSaved):
        files.save(memory.kv, 0, other_layout, IDS, "")
    assert list(files.folder.iterdir()) == []
    # Its engine may have been lost before it told all; what is on record is there.
    assert files.save(memory.kv, 0, scope, IDS[:-1], "").ids == tuple(IDS[:-1])


def test_the_last_token_that_is_not_computed_yet_is_left_out(files: SlotFiles, memory: Memory) -> None:
    memory.fill(0, IDS)
    assert files.save(memory.kv, 0, scope_of(memory.layout), [*IDS, 9], "").ids == tuple(IDS)


def test_ids_may_come_as_an_array(files: SlotFiles, memory: Memory) -> None:
    memory.fill(0, IDS)
    assert files.save(memory.kv, 0, scope_of(memory.layout), np.array(IDS, np.int32), "").ids == tuple(IDS)


def test_a_slot_that_is_used_again_while_it_is_written_leaves_no_file(tmp_path: Path, memory: Memory) -> None:
    files = SlotFiles(tmp_path / "kv", sync=lambda _: memory.state(0).begin([1]), reserve_bytes=0)
    memory.fill(0, IDS)
    with pytest.raises(SlotNotSaved):
        files.save(memory.kv, 0, scope_of(memory.layout), IDS, "")
    assert list(files.folder.iterdir()) == []
    assert files.off == ""


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(4096),
    "cut in the prelude": lambda data: data[:7],
    "cut in the head": lambda data: data[:60],
    "cut in the middle": lambda data: data[: len(data) // 2],
    "last byte missing": lambda data: data[:-1],
    "a byte more": lambda data: data + b"\0",
    "another kind of file": lambda data: b"#!/bin/sh\n" + data,
    "newer format": lambda data: data[:8] + (99).to_bytes(4, "little") + data[12:],
    "a length that would fill the memory": lambda data: data[:12] + b"\xff" * 8 + data[20:],
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_refused_and_removed(files: SlotFiles, memory: Memory, kind: str) -> None:
    saved = saved_one(files, memory)
    path_of(files, saved).write_bytes(DAMAGES[kind](path_of(files, saved).read_bytes()))
    assert saved.saved_id in refused(files, memory, saved)


@pytest.mark.parametrize("kind", DAMAGES.keys() - {"newer format"})
def test_a_damaged_file_is_removed_at_start_with_one_line(
    files: SlotFiles, memory: Memory, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = saved_one(files, memory)
    good = saved_one(files, memory, seed=2)
    path_of(files, bad).write_bytes(DAMAGES[kind](path_of(files, bad).read_bytes()))
    caplog.clear()
    assert SlotFiles(files.folder).scan() == [good]
    (record,) = caplog.records
    assert bad.saved_id in record.getMessage()
    assert [path.name for path in files.folder.iterdir()] == [path_of(files, good).name]


def of_another_version(files: SlotFiles, memory: Memory) -> Path:
    """A file that another version of the program has saved."""
    path = path_of(files, saved_one(files, memory, seed=5))
    path.write_bytes(DAMAGES["newer format"](path.read_bytes()))
    return path


def test_a_file_of_another_version_waits_for_it(files: SlotFiles, memory: Memory) -> None:
    path = of_another_version(files, memory)
    content = path.read_bytes()
    good = saved_one(files, memory, seed=2)
    again = SlotFiles(files.folder, reserve_bytes=0)
    assert again.scan() == [good]
    saved_one(again, memory, seed=3)
    assert path.read_bytes() == content


def test_files_of_another_version_go_first_when_room_is_short(files: SlotFiles, memory: Memory) -> None:
    path = of_another_version(files, memory)
    good = saved_one(files, memory, seed=2)
    full = SlotFiles(files.folder, reserve_bytes=1 << 60)
    assert full.scan() == [good]
    memory.fill(0, IDS)
    with pytest.raises(SlotNotSaved):
        full.save(memory.kv, 0, scope_of(memory.layout), IDS, "")
    assert not path.exists()
    assert path_of(files, good).exists()


def test_deleting_everything_deletes_what_another_version_has_saved(files: SlotFiles, memory: Memory) -> None:
    path = of_another_version(files, memory)
    again = SlotFiles(files.folder, reserve_bytes=0)
    again.scan()
    again.delete_all("somebody")
    assert path.exists()
    again.delete_all(None)
    assert not path.exists()


@pytest.mark.parametrize(("written_s", "stays"), [(NOW_S - DAY_S, True), (NOW_S - 30 * DAY_S, False), (100.0, True)])
def test_a_file_that_no_version_has_come_back_for_goes_in_the_end(
    files: SlotFiles, memory: Memory, written_s: float, stays: bool
) -> None:
    """One from before the clock was set has no age."""
    path = of_another_version(files, memory)
    os.utime(path, (written_s, written_s))
    SlotFiles(files.folder, reserve_bytes=0, wall_clock=lambda: NOW_S).scan()
    assert path.exists() == stays


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_single_flipped_bit_anywhere_is_noticed(tmp_path: Path, at: float, bit: int) -> None:
    memory, files = Memory(layout_of("int8")), SlotFiles(tmp_path, reserve_bytes=0)
    saved = saved_one(files, memory)
    data = bytearray(path_of(files, saved).read_bytes())
    data[int(at * len(data))] ^= 1 << bit
    path_of(files, saved).write_bytes(data)
    refused(files, memory, saved)
    memory.kv.close()


def test_a_file_put_in_the_place_of_another_owners_is_refused(files: SlotFiles, memory: Memory) -> None:
    mine, theirs = saved_one(files, memory), saved_one(files, memory, owner="garage", seed=2)
    path_of(files, theirs).replace(path_of(files, mine))
    with pytest.raises(SavedSlotRefused):
        files.restore(memory.kv, 2, mine)
    assert memory.header(2) is None
    assert not path_of(files, mine).exists()


@pytest.mark.parametrize("field", ["owner", "model_hash", "adapter", "plan", "model"])
def test_a_file_is_restored_only_for_exactly_the_scope_it_was_saved_for(
    files: SlotFiles, memory: Memory, field: str
) -> None:
    saved = saved_one(files, memory)
    scope = msgspec.structs.replace(saved.scope, **{field: "other"})
    with pytest.raises(SavedSlotRefused):
        files.restore(memory.kv, 2, msgspec.structs.replace(saved, scope=scope))
    assert memory.header(2) is None


def test_memory_of_another_layout_is_refused_and_the_file_stays(files: SlotFiles, memory: Memory) -> None:
    saved = saved_one(files, memory)
    for layout in (layout_of("float16"), layout_of(max_len=32)):
        other = Memory(layout)
        with pytest.raises(SavedSlotRefused):
            files.restore(other.kv, 0, saved)
        other.kv.close()
    assert files.restore(memory.kv, 1, saved) == len(IDS)


def test_links_are_never_followed(files: SlotFiles, memory: Memory, tmp_path: Path) -> None:
    saved = saved_one(files, memory)
    outside = tmp_path / "outside"
    path_of(files, saved).replace(outside)
    path_of(files, saved).symlink_to(outside)
    assert SlotFiles(files.folder).scan() == []
    assert outside.exists()
    path_of(files, saved).symlink_to(outside)
    assert "link" in refused(files, memory, saved)
    assert outside.exists()


def test_a_folder_that_is_a_link_is_not_written_to(tmp_path: Path, memory: Memory) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kv").symlink_to(tmp_path / "elsewhere")
    files = SlotFiles(tmp_path / "kv", reserve_bytes=0)
    memory.fill(0, IDS)
    with pytest.raises(SlotNotSaved):
        files.save(memory.kv, 0, scope_of(memory.layout), IDS, "")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_pipes_folders_and_strangers_do_not_stop_a_start(files: SlotFiles, memory: Memory) -> None:
    good = saved_one(files, memory)
    os.mkfifo(files.folder / f"{'0' * 16}.kv")
    (files.folder / f"{'1' * 16}.kv").mkdir()
    (files.folder / "notes.txt").write_text("not ours")
    assert SlotFiles(files.folder).scan() == [good]
    assert (files.folder / "notes.txt").exists()


def test_what_a_killed_service_left_half_written_is_swept_at_start(files: SlotFiles, memory: Memory) -> None:
    child = os.fork()
    if child == 0:
        dying = SlotFiles(files.folder, sync=lambda _: os.kill(os.getpid(), signal.SIGKILL), reserve_bytes=0)
        saved_one(dying, memory)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.suffix for path in files.folder.iterdir()] == [".tmp"]
    assert SlotFiles(files.folder).scan() == []
    assert list(files.folder.iterdir()) == []


def test_storage_that_ends_in_the_middle_of_a_write_costs_one_log_line_and_leaves_nothing(
    files: SlotFiles, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    memory.fill(0, IDS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        for _ in range(3):
            with pytest.raises(SlotNotSaved) as caught:
                files.save(memory.kv, 0, scope_of(memory.layout), IDS, "")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.hint
    assert os.strerror(errno.EFBIG) in files.off
    assert list(files.folder.iterdir()) == []
    assert len(caplog.records) == 1
    with caplog.at_level(logging.INFO):
        saved_one(files, memory)
    assert files.off == ""
    assert "again" in caplog.records[-1].getMessage()


def test_full_storage_is_seen_before_anything_is_written(tmp_path: Path, memory: Memory) -> None:
    files = SlotFiles(tmp_path / "kv", reserve_bytes=1 << 60)
    with pytest.raises(SlotNotSaved):
        saved_one(files, memory)
    assert os.strerror(errno.ENOSPC) in files.off
    assert list(files.folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["in a file system that takes no files", "a file in its place"])
def test_a_folder_that_cannot_be_made_switches_saving_off_with_a_reason(
    tmp_path: Path, memory: Memory, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kv").write_text("")
    files = SlotFiles(tmp_path / "kv" if kind == "a file in its place" else Path("/proc/kv"))
    assert files.scan() == []
    with pytest.raises(SlotNotSaved):
        saved_one(files, memory)
    assert str(files.folder) in files.off
    assert len(caplog.records) == 1


def test_deleting_takes_one_owners_conversations_or_one_models_and_leaves_the_others(
    files: SlotFiles, memory: Memory
) -> None:
    saved_one(files, memory, owner="kitchen")
    other = saved_one(files, memory, owner="garage")
    local = saved_one(files, memory, owner="")
    assert files.delete_all("kitchen") == 1
    assert files.saved() == [other, local]
    assert files.delete_all("garage", model="big") == 0
    assert files.delete_all("") == 1
    assert [path.name for path in files.folder.iterdir()] == [path_of(files, other).name]
    assert files.delete_all(None) == 1
    assert list(files.folder.iterdir()) == []


def test_an_id_cannot_name_a_file_outside_the_folder(files: SlotFiles, tmp_path: Path) -> None:
    (tmp_path / "x.kv").write_text("")
    assert files.delete("../x") is False
    assert (tmp_path / "x.kv").exists()


def test_what_is_deleted_while_it_is_written_does_not_appear(tmp_path: Path, memory: Memory) -> None:
    files = SlotFiles(tmp_path / "kv", sync=lambda _: deleted.append(files.delete_all("kitchen")), reserve_bytes=0)
    deleted: list[int] = []
    with pytest.raises(SlotNotSaved, match="deleted"):
        saved_one(files, memory)
    assert deleted == [0]
    assert list(files.folder.iterdir()) == []
    assert saved_one(files, memory, owner="garage") in files.saved()


def test_ages_come_from_the_boots_own_clock_and_never_go_below_zero(tmp_path: Path, memory: Memory) -> None:
    now = [1000.0]
    files = SlotFiles(tmp_path / "kv", clock=lambda: now[0], wall_clock=lambda: 0.0, reserve_bytes=0)
    saved = saved_one(files, memory)
    now[0] = 1060.0
    assert files.idle_s(saved) == 60
    assert files.written_bytes(3600) == saved.size_bytes
    assert files.written_bytes(30) == 0
    files.restore(memory.kv, 1, saved)
    assert files.idle_s(saved) == 0
    now[0] = 500.0
    assert files.idle_s(saved) == 0

    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("another boot\n")
    rebooted = SlotFiles(files.folder, roots=HostRoots(proc=tmp_path / "proc"), clock=lambda: 20.0)
    (again,) = rebooted.scan()
    assert rebooted.idle_s(again) == 20
    assert rebooted.written_bytes(3600) == 0


def test_the_prelude_has_no_padding() -> None:
    assert PRELUDE.size == 8 + 3 * 4
