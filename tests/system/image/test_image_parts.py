"""Parts of the image that need no build: partitions, what is filled in, the boot loader's environment."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image.guest import qemu
from image.guest.debian import CHECKOUT
from image.guest.file_systems import FIRST_ENVIRONMENT, GRUB_MODULES, environment
from image.guest.partitions import DISK_ID, MIB, disk_bytes, layout, offsets, table, uuid_of
from image.guest.tree import FILES, LINKS, MOUNT_POINTS, fill_in, links_to

EDITOR = FILES / "grub-editenv"
YOCTO = CHECKOUT / "yocto/meta-magnitude"
FILLED_IN = {
    "BOOT": "b",
    "ROOT_A": "a",
    "ROOT_B": "b",
    "DATA": "d",
    "ARCHITECTURE": "amd64",
    "KERNEL_OPTIONS": "quiet",
}


def edit(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", EDITOR, file, *words], capture_output=True, text=True, check=False)


@pytest.fixture
def block(tmp_path: Path) -> Path:
    file = tmp_path / "grubenv"
    file.write_bytes(environment(FIRST_ENVIRONMENT))
    return file


def variables(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in edit(file, "list").stdout.splitlines())


def test_the_environment_is_listed_as_rauc_reads_it(block: Path) -> None:
    assert variables(block) == FIRST_ENVIRONMENT


def test_what_is_set_replaces_and_adds_and_the_rest_stays(block: Path) -> None:
    assert edit(block, "set", "B_OK=1", "B_TRY=0", "ORDER=B A", "NEW=x y").returncode == 0
    assert variables(block) == {**FIRST_ENVIRONMENT, "B_OK": "1", "B_TRY": "0", "ORDER": "B A", "NEW": "x y"}


def test_an_update_gets_three_tries_and_a_slot_that_is_confirmed_nine(block: Path) -> None:
    assert edit(block, "set", "A_LEFT=1", "B_LEFT=0", "B_TRY=1").returncode == 0
    assert edit(block, "set", "B_OK=1", "B_TRY=0", "ORDER=B A").returncode == 0
    assert (variables(block)["A_LEFT"], variables(block)["B_LEFT"]) == ("1", "3")
    assert edit(block, "set", "B_OK=1", "B_TRY=0").returncode == 0
    assert (variables(block)["A_LEFT"], variables(block)["B_LEFT"]) == ("1", "9")


def test_a_block_stays_a_block_that_is_written_in_its_place(block: Path) -> None:
    inode = block.stat().st_ino
    with block.open("rb") as held:
        assert edit(block, "set", "ORDER=B A").returncode == 0
        data = held.read()
    assert block.stat().st_ino == inode
    others = {name: value for name, value in FIRST_ENVIRONMENT.items() if name != "ORDER"}
    assert data == environment({**others, "ORDER": "B A"})


def test_what_does_not_fit_into_one_sector_is_refused_and_nothing_is_changed(block: Path) -> None:
    before = block.read_bytes()
    done = edit(block, "set", "LONG=" + "x" * 500)
    assert done.returncode == 1
    assert "512" in done.stderr
    assert block.read_bytes() == before


def test_an_unknown_action_is_refused(block: Path) -> None:
    assert edit(block, "unset", "ORDER").returncode == 64


@given(slot=st.integers(1, 4096), data=st.integers(1, 1 << 20))
def test_partitions_follow_each_other_and_end_before_the_second_table(slot: int, data: int) -> None:
    partitions = layout(slot * MIB, data * MIB)
    begin = offsets(partitions)
    ends = [begin[one.name] + one.size_bytes for one in partitions]
    assert [begin[one.name] for one in partitions] == [MIB, *ends[:-1]]
    assert disk_bytes(partitions) - ends[-1] >= 33 * 512
    assert all(at % MIB == 0 for at in begin.values())
    lines = [dict(re.findall(r"(\w+)=([^,]+)", line)) for line in table(partitions).splitlines() if "start=" in line]
    assert [int(line["start"]) * 512 for line in lines] == list(begin.values())
    assert [line["uuid"] for line in lines] == [uuid_of(number) for number in (1, 2, 3, 4)]


def test_partitions_have_the_fixed_ids_of_all_images() -> None:
    """The Yocto layer's file is the one that says them."""
    text = (YOCTO / "conf/distro/include/magnitude-partitions.inc").read_text()
    disk = re.search(r'(?m)^MAGNITUDE_DISK_ID = "(\w+)"', text)
    assert disk
    (gpt,) = re.findall(r'return "(%s-[^"]{9,})" % \(disk, number\)', text)
    assert [uuid_of(number) for number in (1, 2, 3, 4)] == [gpt % (disk[1], number) for number in (1, 2, 3, 4)]
    assert gpt % (disk[1], 0) == DISK_ID


def mounts(fstab: Path) -> dict[str, tuple[str, str]]:
    """What is mounted where, and how: target → source, options."""
    lines = [line.split() for line in fstab.read_text().splitlines() if line and not line.startswith("#")]
    return {target: (source, options) for source, target, _, options, *_ in lines}


def test_state_lies_in_the_same_places_on_all_images() -> None:
    ours, theirs = mounts(FILES / "fstab"), mounts(YOCTO / "recipes-core/base-files/files/fstab")

    def kept(table: dict[str, tuple[str, str]]) -> dict[str, str]:
        return {target: source for target, (source, _) in table.items() if source.startswith("/data/")}

    assert kept(ours) == kept(theirs)
    for target in ("/boot/firmware", "/data", "/etc/magnitude"):
        assert ours[target][0] == theirs[target][0]
    assert ours["/etc/magnitude"] == theirs["/etc/magnitude"]


def test_everything_is_mounted_on_a_folder_that_the_image_has() -> None:
    made_by_debian = {"/tmp", "/var/tmp"}
    assert {target.lstrip("/") for target in set(mounts(FILES / "fstab")) - made_by_debian} <= set(MOUNT_POINTS)


def test_the_usual_models_have_the_links_that_are_shipped_and_others_have_theirs() -> None:
    shipped = LINKS.read_text()
    names = re.findall(r"(?m)^L /var/lib/magnitude/models/(\S+)", shipped)
    assert links_to(names) == shipped
    other = links_to(["mine"])
    assert "L /var/lib/magnitude/models/mine - - - - /usr/share/magnitude/models/mine\n" in other
    assert not any(name in other for name in names)
    assert "L " not in links_to([])
    assert "d /var/lib/magnitude/models 0750 magnitude magnitude -" in links_to([])


@pytest.mark.parametrize("name", ["fstab", "system.conf", "grub.cfg"])
def test_nothing_is_left_to_be_filled_in(name: str) -> None:
    text = fill_in((FILES / name).read_text(), FILLED_IN)
    assert not re.search(r"@[A-Z_]+@", text)
    with pytest.raises(KeyError):
        fill_in((FILES / name).read_text(), {})


# The module that brings a command of GRUB (its manual, "Commands"); "" for what its kernel, or a script itself, has.
GRUB_COMMANDS = {
    **dict.fromkeys(("set", "for", "done", "fi"), ""),
    **dict.fromkeys(("load_env", "save_env"), "loadenv"),
    **dict.fromkeys(("linux", "initrd"), "linux"),
    **{"[": "test", "boot": "", "source": "configfile"},
    **{name: name for name in ("echo", "reboot", "regexp", "sleep")},
}


def test_the_boot_loader_has_every_command_that_its_script_gives() -> None:
    """One that is missing fails at each boot, and says so to nobody: the script goes on with the next line."""
    text = re.sub(r"(?m)^\s*#.*$", "", (FILES / "grub.cfg").read_text())
    keywords = {"if", "then", "else", "do"}
    lines = [line.split() for line in re.split(r"[;\n]", text) if line.strip()]
    given = {next(word for word in line if word not in keywords) for line in lines if set(line) - keywords}
    assert given <= set(GRUB_COMMANDS)
    assert {"load_env", "regexp", "source", "initrd", "[", "boot", "reboot"} <= given
    assert {GRUB_COMMANDS[name] for name in given} - {""} <= set(GRUB_MODULES)


def test_only_the_boot_partition_may_be_missing() -> None:
    mounts = [line.split() for line in (FILES / "fstab").read_text().splitlines() if not line.startswith("#")]
    assert [target for _, target, _, options, *_ in mounts if "nofail" in options] == ["/boot/firmware"]


def test_the_printed_command_forwards_the_port_on_loopback_only(tmp_path: Path) -> None:
    for architecture in qemu.PROGRAMS:
        command = qemu.command(architecture, tmp_path / "an image.img")
        assert "hostfwd=tcp:127.0.0.1:11500-:11500" in command
        assert f"file={tmp_path}/an image.img" in command
        assert int(re.search(r"-m (\d+)", command)[1]) <= 3 * 1024  # type: ignore[index]
