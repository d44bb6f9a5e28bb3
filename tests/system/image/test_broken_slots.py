"""That slots are really broken, on a file system of a few files that nothing boots from."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from broken_slots import BROKEN, IMPATIENCE, IMPATIENT, RUNTIME, WEIGHTS, break_slot, hurry_slot, put_files, read_file

from image.guest.partitions import MIB, layout, offsets
from magnitude.update.boot_check import STEADY_S

SLOT_MIB, DATA_MIB = 16, 1
AT = offsets(layout(SLOT_MIB * MIB, DATA_MIB * MIB))["root-b"]
WHOLE = {
    RUNTIME: bytes(range(256)) * 8192,
    WEIGHTS: bytes(range(256)) * 16,
    "boot/vmlinuz": b"a kernel",
    "etc/fstab": b"a table",
    "usr/bin/python3.13": b"an interpreter",
}

pytestmark = pytest.mark.skipif(
    shutil.which("debugfs") is None or shutil.which("mke2fs") is None, reason="lacks debugfs or mke2fs: e2fsprogs"
)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A disk whose slot B has the files that are broken, and no others."""
    for name, content in WHOLE.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(content)
    slot, made = tmp_path / "slot", tmp_path / "disk"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", tmp_path / "tree", slot, f"{SLOT_MIB}M"], check=True)
    with made.open("wb") as file:
        file.seek(AT)
        file.write(slot.read_bytes())
    return made


def held(disk: Path) -> dict[str, bytes]:
    return {name: read_file(disk, AT, name) for name in WHOLE}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_slot_differs_from_a_whole_one_in_what_was_broken(disk: Path, kind: str) -> None:
    meant = BROKEN[kind](lambda path: WHOLE[path])
    break_slot(disk, kind, SLOT_MIB, DATA_MIB)
    assert held(disk) == {name: meant.get(name, content) for name, content in WHOLE.items()}
    for name, content in {**meant, **IMPATIENCE}.items():
        assert read_file(disk, AT, name) == content
        assert content != WHOLE.get(name)


def test_a_slot_that_is_only_hurried_is_whole(disk: Path) -> None:
    hurry_slot(disk, SLOT_MIB, DATA_MIB)
    assert held(disk) == WHOLE
    assert all(read_file(disk, AT, name) == content for name, content in IMPATIENCE.items())


def test_the_check_of_a_hurried_slot_has_time_to_pass() -> None:
    """It watches a slot for a minute without a break; with no more than that even a whole one fails."""
    (minutes,) = re.findall(rb"--within (\d+)m\n", IMPATIENT)
    assert int(minutes) * 60 > 2 * STEADY_S


def test_breaking_what_is_like_that_already_is_an_error(disk: Path) -> None:
    break_slot(disk, "no-kernel", SLOT_MIB, DATA_MIB)
    with pytest.raises(AssertionError, match="would change nothing"):
        put_files(disk, AT, BROKEN["no-kernel"](lambda path: WHOLE[path]))


def test_breaking_what_is_not_there_is_an_error(disk: Path) -> None:
    with pytest.raises(FileNotFoundError):
        BROKEN["weights-damaged"](lambda path: read_file(disk, AT, f"elsewhere/{path}"))


def test_what_does_not_fit_into_the_slot_is_an_error(disk: Path) -> None:
    with pytest.raises(AssertionError):
        put_files(disk, AT, {"opt/large": bytes(range(1, 256)) * (SLOT_MIB * MIB // 128)})
