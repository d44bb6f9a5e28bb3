from __future__ import annotations

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parcels import Asked
from partition_tables import IMAGE_BYTES, LAYOUT, MIB, as_text, script, table

from magnitude.board.roots import HostRoots
from magnitude.firstboot.data_partition import Grow, Leave, decide
from magnitude.firstboot.grow import GrowFailed, grow_data, grow_table

CARD_BYTES = 32 * 10**9
labels = pytest.mark.parametrize("label", ["gpt", "dos"])


def applied(partition_table: dict[str, Any], grow: Grow) -> dict[str, Any]:
    done = copy.deepcopy(partition_table)
    done["partitions"][grow.number - 1]["size"] = grow.size_sectors
    return done


@labels
@pytest.mark.parametrize("device", ["/dev/mmcblk0", "/dev/sda", "/dev/nvme0n1", "/dev/loop7"])
def test_data_gets_the_rest_of_the_card_and_then_stays(label: str, device: str) -> None:
    found = table(label, device=device)
    grow = decide(as_text(found), CARD_BYTES)
    assert isinstance(grow, Grow)
    assert grow.number == 4
    assert grow.relocate == (label == "gpt")
    end = found["partitions"][3]["start"] + grow.size_sectors
    assert end % MIB == 0
    assert CARD_BYTES // 512 - 2 * MIB < end <= CARD_BYTES // 512
    again = decide(as_text(applied(found, grow)), CARD_BYTES)
    assert isinstance(again, Leave) and not again.refused


@labels
@given(st.integers(min_value=0, max_value=1 << 45))
def test_a_partition_never_shrinks_nor_reaches_beyond_the_disk(label: str, more_bytes: int) -> None:
    disk_bytes = IMAGE_BYTES + more_bytes // 512 * 512
    found = table(label)
    decision = decide(as_text(found), disk_bytes)
    if isinstance(decision, Grow):
        assert decision.size_sectors > found["partitions"][3]["size"]
        end = found["partitions"][3]["start"] + decision.size_sectors
        assert end <= disk_bytes // 512 - (33 if label == "gpt" else 0)
        if label == "dos":
            assert end < 1 << 32


def test_sectors_of_4_kib_are_counted_as_such() -> None:
    found = table("gpt", sectorsize=4096)
    for part in found["partitions"]:
        part["start"] //= 8
        part["size"] //= 8
    grow = decide(as_text(found), CARD_BYTES)
    assert isinstance(grow, Grow)
    assert (found["partitions"][3]["start"] + grow.size_sectors) * 4096 <= CARD_BYTES - 5 * 4096
    assert (found["partitions"][3]["start"] + grow.size_sectors) * 4096 % (1 << 20) == 0


def changed(change: str, label: str) -> dict[str, Any]:
    found = table(label)
    parts = found["partitions"]
    if change == "another disk":
        found["id"] = "0x12345678"
        for part in parts:
            part["uuid"] = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
    elif change == "a partition more":
        parts.append({**parts[3], "node": "/dev/mmcblk0p5", "start": 3000 * MIB, "size": MIB})
    elif change == "a partition less":
        parts.pop(1)
    elif change == "data is not the last":
        parts[2]["start"], parts[3]["start"] = 5000 * MIB, parts[2]["start"]
    elif change == "overlap":
        parts[2]["size"] += 100 * MIB
    elif change == "beyond the end":
        parts[3]["size"] = CARD_BYTES // 512
    elif change == "no size":
        parts[0]["size"] = 0
    elif change == "names of another disk":
        for part in parts:
            part["node"] = part["node"].replace("mmcblk0", "mmcblk1")
    elif change == "another kind":
        found["label"] = "sun"
    elif change == "odd sectors":
        found["sectorsize"] = 2048
    return found


@labels
@pytest.mark.parametrize(
    "change",
    [
        "another disk",
        "a partition more",
        "a partition less",
        "data is not the last",
        "overlap",
        "beyond the end",
        "no size",
        "names of another disk",
        "another kind",
        "odd sectors",
    ],
)
def test_a_table_that_is_not_that_of_our_images_is_refused(label: str, change: str) -> None:
    decision = decide(as_text(changed(change, label)), CARD_BYTES)
    assert isinstance(decision, Leave) and decision.refused, change


@given(st.text())
def test_what_is_no_table_is_refused(text: str) -> None:
    decision = decide(text, CARD_BYTES)
    assert isinstance(decision, Leave) and decision.refused


needs_sfdisk = pytest.mark.skipif(
    shutil.which("sfdisk", path="/usr/sbin:/sbin:/usr/bin") is None,
    reason="sfdisk is not installed on this machine (Debian: the package fdisk)",
)


@needs_sfdisk
@labels
def test_sfdisk_does_to_a_real_table_what_was_decided(
    label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
    image = tmp_path / "card.img"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["sfdisk", "--quiet", image], input=script(label), text=True, check=True)
    data = b"what lies at the beginning of the data partition"
    with image.open("r+b") as file:
        file.seek(LAYOUT[3][0] << 20)
        file.write(data)
        file.truncate(2 * IMAGE_BYTES)  # the card is larger than the image
    assert isinstance(grow_table(str(image), 2 * IMAGE_BYTES), Grow)
    assert isinstance(grow_table(str(image), 2 * IMAGE_BYTES), Leave)
    subprocess.run(["sfdisk", "--verify", image], check=True)
    with image.open("rb") as file:
        file.seek(LAYOUT[3][0] << 20)
        assert file.read(len(data)) == data


class Sfdisk:
    """Answers with a table, and changes its size of the fourth partition as it is told."""

    def __init__(self, found: dict[str, Any], *, obeys: bool = True) -> None:
        self.found = found
        self.obeys = obeys
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, arguments: Any, text: str) -> str:
        self.asked.append(tuple(arguments))
        if text and self.obeys:
            self.found["partitions"][3]["size"] = int(text.removeprefix("size="))
        return as_text(self.found)


class Plugged:
    """A card below a sysfs root, with its fourth partition mounted at /data."""

    def __init__(self, root: Path, *, number: int = 4) -> None:
        disk = root / "sys/devices/mmc0/block/mmcblk0"
        part = disk / f"mmcblk0p{number}"
        part.mkdir(parents=True)
        (disk / "size").write_text(f"{CARD_BYTES // 512}\n")
        (part / "partition").write_text(f"{number}\n")
        (root / "sys/dev/block").mkdir(parents=True)
        (root / "sys/dev/block/179:4").symlink_to(part)
        self.mountinfo = root / "mountinfo"
        self.mountinfo.write_text("29 1 179:4 / /data rw,relatime - ext4 /dev/mmcblk0p4 rw\n")
        self.roots = HostRoots.under(root)


def test_the_mounted_partition_tells_which_card_is_changed(tmp_path: Path) -> None:
    card, asked, sfdisk = Plugged(tmp_path), Asked(), Sfdisk(table("dos"))
    said = grow_data(run=asked, roots=card.roots, mountinfo=card.mountinfo, sfdisk=sfdisk)
    assert "grown" in said
    assert {arguments[-1] for arguments in sfdisk.asked} == {"/dev/mmcblk0"}
    assert [command[0].rpartition("/")[2] for command in asked.commands] == ["partx", "systemd-growfs"]


def test_a_boot_after_a_cut_still_grows_the_file_system(tmp_path: Path) -> None:
    """The table was changed, the rest was not done."""
    card, found = Plugged(tmp_path), table("dos")
    grow = decide(as_text(found), CARD_BYTES)
    assert isinstance(grow, Grow)
    asked, sfdisk = Asked(), Sfdisk(applied(found, grow))
    grow_data(run=asked, roots=card.roots, mountinfo=card.mountinfo, sfdisk=sfdisk)
    assert sfdisk.asked == [("--json", "/dev/mmcblk0")]
    assert len(asked.commands) == 2


def test_a_card_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    card, asked, sfdisk = Plugged(tmp_path), Asked(), Sfdisk(changed("another disk", "dos"))
    with pytest.raises(GrowFailed, match="left as it is"):
        grow_data(run=asked, roots=card.roots, mountinfo=card.mountinfo, sfdisk=sfdisk)
    assert asked.commands == [] and len(sfdisk.asked) == 1


def test_another_partition_at_the_place_of_data_is_left_alone(tmp_path: Path) -> None:
    card, sfdisk = Plugged(tmp_path, number=2), Sfdisk(table("dos"))
    with pytest.raises(GrowFailed, match="is not partition 4"):
        grow_data(run=Asked(), roots=card.roots, mountinfo=card.mountinfo, sfdisk=sfdisk)
    assert sfdisk.asked == []


def test_a_table_that_does_not_become_what_was_written_is_an_error(tmp_path: Path) -> None:
    card, sfdisk = Plugged(tmp_path), Sfdisk(table("gpt"), obeys=False)
    with pytest.raises(GrowFailed, match="not what was written"):
        grow_data(run=Asked(), roots=card.roots, mountinfo=card.mountinfo, sfdisk=sfdisk)


@pytest.mark.parametrize("program", ["partx", "growfs"])
def test_a_step_that_fails_is_named(tmp_path: Path, program: str) -> None:
    card = Plugged(tmp_path)
    with pytest.raises(GrowFailed, match="device is busy"):
        grow_data(
            run=Asked(**{program: "device is busy"}),
            roots=card.roots,
            mountinfo=card.mountinfo,
            sfdisk=Sfdisk(table()),
        )
