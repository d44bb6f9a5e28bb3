"""A power cut at any moment leaves what was there before or what was being written, and the service reads it."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from disk_marks import DISK_BYTES, FILE_SYSTEM_BYTES
from guest_session import Guests
from power_cut import Cut, Request, power_cuts, read_log, take_out
from state_writers import SCOPE, Slot, State, ids_of, learned_of, record_file, row_of, slot_files, state_file

from magnitude.feedback import record_table
from magnitude.feedback.record_file import reading
from magnitude.policy.dumps import Dumps

pytestmark = pytest.mark.system

HERE = Path(__file__).resolve().parent
# Of all writers; six seconds on a quiet machine. More moments than CUTS come of them, however slow the machine is.
ROUNDS = 15
CUTS = 120
WRITING_S = 600  # patience


class Recording(NamedTuple):
    """A disk before anything was written to it, and what was."""

    base: Path
    requests: list[Request]


@pytest.fixture(scope="module")
def recording(guests: Guests, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("recording")
    base, disk, log = (folder / name for name in ("base.img", "disk.img", "log.img"))
    for path, size in ((base, DISK_BYTES), (log, 4 << 30)):
        with path.open("wb") as file:
            file.truncate(size)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", base, str(FILE_SYSTEM_BYTES >> 10)], check=True)
    shutil.copy(base, disk)
    with guests.restored("serving") as guest:
        guest.control("blockdev-add", driver="raw", node_name="data", file=_file(disk))
        guest.control(
            "blockdev-add",
            driver="blklogwrites",
            node_name="recorded",
            file="data",
            log=_file(log),
            log_sector_size=512,
        )
        guest.control("device_add", driver="virtio-blk-pci", id="data", drive="recorded", bus="free-port")
        guest.until("test -b /dev/vdb")
        files = {f"/opt/test/{name}": (HERE / name).read_bytes() for name in ("disk_marks.py", "state_writers.py")}
        guest.check("mkdir /srv/data && mount /dev/vdb /srv/data", files=files)
        write = f"/opt/magnitude/bin/python /opt/test/state_writers.py /srv/data /dev/vdb {ROUNDS} && sync"
        guest.check(write, timeout_s=WRITING_S)
        guest.control("quit")
    return Recording(base, read_log(log))


def _file(path: Path) -> dict[str, str]:
    return {"driver": "file", "filename": str(path)}


class Aftermath(NamedTuple):
    """A power cut, and the folder with the files that it left."""

    cut: Cut
    files: Path


@pytest.fixture(scope="module")
def aftermaths(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> list[Aftermath]:
    folder = tmp_path_factory.mktemp("cuts")
    found = []
    for cut in power_cuts(recording.base, recording.requests, CUTS, random.Random(1), folder):
        files = folder / f"files-{cut.number}"
        take_out(cut.disk, files)
        found.append(Aftermath(cut, files))
    return found


def test_state_is_the_last_that_was_saved_or_the_one_being_saved(aftermaths: list[Aftermath]) -> None:
    for cut, files in aftermaths:
        file = state_file(files)
        state = file.load(lambda: State.of(0))
        assert cut.done.get("state", 0) <= state.generation <= cut.begun["state"], cut
        assert state == State.of(state.generation)
        assert file.source == ("file" if state.generation else "default")  # no need for the previous generation
        assert file.save(State.of(state.generation + 1))  # and it goes on from there
    # The power went in the middle of a save, and not only beside it.
    assert any(cut.begun["state"] > cut.done.get("state", 0) for cut, _ in aftermaths)


def test_a_saved_conversation_is_whole_and_a_deleted_one_stays_away(aftermaths: list[Aftermath]) -> None:
    slot = Slot()
    restored = 0
    for cut, files in aftermaths:
        folder = slot_files(files)
        found = {saved.conversation: saved for saved in folder.scan()}
        for conversation, saved in found.items():
            generation = int(conversation.removeprefix("talk-"))
            assert cut.done.get("deletion", 0) < generation <= cut.begun["conversation"], cut
            slot.fill(generation)
            expected = slot.positions()
            slot.fill(0)
            assert folder.restore(slot.kv, 0, saved) == len(ids_of(generation))
            assert slot.positions() == expected
            restored += 1
        kept = cut.done.get("conversation", 0)
        if kept > cut.begun.get("deletion", 0):
            assert f"talk-{kept}" in found, cut
        assert all(saved.scope == SCOPE for saved in found.values())
    assert restored


def test_records_that_were_reported_written_are_there_and_none_is_half_there(aftermaths: list[Aftermath]) -> None:
    for cut, files in aftermaths:
        records = record_file(files)
        with reading(records.path) as connection:
            rows = record_table.recent(connection, cut.begun.get("records", 0) + 1)
        records.append([row_of(len(rows) + 1)])  # and it goes on from there
        records.close()
        assert sorted(row.task.new_tokens for row in rows) == list(range(1, len(rows) + 1)), cut
        assert cut.done.get("records", 0) <= len(rows) <= cut.begun.get("records", 0), cut
        assert not list(files.glob("records.db.*"))  # nothing was set aside


def test_learned_strategies_are_the_last_that_were_saved_also_while_others_are_retired(
    aftermaths: list[Aftermath],
) -> None:
    retiring = 0
    for cut, files in aftermaths:
        done, begun = cut.done.get("strategies", 0), cut.begun.get("strategies", 0)
        if not begun:
            continue
        found = Dumps(files).load(learned_of(begun).binding)
        if found.learned is not None:
            samples = found.learned.samples
        elif done:
            assert found.prior is not None, cut  # what another runtime has learned is a hint
            retiring += 1
            earlier = Dumps(files).load(learned_of(done).binding).learned
            samples = earlier.samples if earlier is not None else 0
        else:
            samples = 0
        assert done <= samples <= begun, cut
        assert Dumps(files).save(learned_of(begun + 1))  # and it goes on from there
        assert not list(files.rglob("*.broken-*")), cut
    assert any(cut.begun.get("strategies", 0) > cut.done.get("strategies", 0) for cut, _ in aftermaths)
    assert retiring


def test_the_simulator_finds_a_file_torn_that_is_written_in_place(aftermaths: list[Aftermath]) -> None:
    torn = 0
    for cut, files in aftermaths:
        expected = [State.of(generations.get("in_place", 0)) for generations in (cut.done, cut.begun)]
        path = files / "in_place.json"
        torn += path.exists() and state_in(path) not in expected
    assert torn


def state_in(path: Path) -> State | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
