"""Which disks may be written, on machines made of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from disk_trees import GB, MMC, SATA, Machine
from hypothesis import given
from hypothesis import strategies as st

from flashing.block_devices import parse_mounts, parse_swaps
from flashing.main import describe, main
from flashing.rules import Wish, candidates, device_named, refusal, to_unmount, uses
from flashing.terms import BlockDevice, Mount, Snapshot

# The user has asked for everything that can be asked for.
ALL = Wish(image_bytes=GB, unmount=True, fixed=True)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def reason(machine: Machine, disk: str, wish: Wish = ALL) -> str:
    error = refusal(machine.snapshot(), disk, wish)
    return f"{error} / {error.hint}" if error else ""


# How a system can lie on sda: each is written on a USB disk that looks just like a card in a reader.


def a_partition(machine: Machine) -> None:
    machine.mount(machine.partition("sda", "sda1"), "/")


def the_whole_disk(machine: Machine) -> None:
    machine.mount("sda", "/")


def only_boot(machine: Machine) -> None:
    machine.mount(machine.partition("sda", "sda1"), "/boot/efi", kind="vfat")


def lvm(machine: Machine) -> None:
    machine.mount(machine.layer("dm-0", [machine.partition("sda", "sda3")], title="vg-root"), "/")


def lvm_in_dm_crypt(machine: Machine) -> None:
    crypt = machine.layer("dm-0", [machine.partition("sda", "sda3")], title="sda3_crypt")
    machine.mount(machine.layer("dm-1", [crypt], title="vg-home"), "/home")


def raid_with_lvm(machine: Machine) -> None:
    machine.disk("sdb", at=SATA)
    array = machine.layer("md127", [machine.partition("sdb", "sdb1"), machine.partition("sda", "sda1")])
    machine.mount(machine.layer("dm-0", [array], title="vg-var"), "/var")


def an_overlay_over_a_read_only_root(machine: Machine) -> None:
    machine.mount(machine.partition("sda", "sda2"), "/media/root-ro", options="ro")
    machine.mount("tmpfs", "/media/root-rw", kind="tmpfs")
    machine.mount(
        "overlay", "/", kind="overlay", options="rw,lowerdir=/media/root-ro,upperdir=/media/root-rw/o,workdir=/w"
    )


def a_live_system(machine: Machine) -> None:
    machine.mount(machine.partition("sda", "sda1"), "/run/stick", kind="iso9660")
    machine.mount(machine.loop("loop0", "/run/stick/live/filesystem.squashfs"), "/run/rootfs", kind="squashfs")
    machine.mount(
        "overlay", "/", kind="overlay", options="rw,lowerdir=/run/rootfs,upperdir=/run/cow,workdir=/run/work"
    )


def the_second_disk_of_a_btrfs(machine: Machine) -> None:
    machine.disk("sdb", at=SATA)
    machine.pool(machine.partition("sdb", "sdb2"), machine.partition("sda", "sda1"))
    machine.mount("/dev/sdb2", "/", kind="btrfs")


def swap_on_a_partition(machine: Machine) -> None:
    machine.swap(f"/dev/{machine.partition('sda', 'sda2')}")


def swap_on_lvm(machine: Machine) -> None:
    machine.layer("dm-3", [machine.partition("sda", "sda2")], title="vg-swap")
    machine.swap("/dev/mapper/vg-swap")


def a_swap_file(machine: Machine) -> None:
    machine.mount(machine.partition("sda", "sda1"), "/media/big disk")
    machine.swap("/media/big\\040disk/swapfile")


SYSTEMS = [
    a_partition,
    the_whole_disk,
    only_boot,
    lvm,
    lvm_in_dm_crypt,
    raid_with_lvm,
    an_overlay_over_a_read_only_root,
    a_live_system,
    the_second_disk_of_a_btrfs,
    swap_on_a_partition,
    swap_on_lvm,
    a_swap_file,
]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.__name__)
def test_the_system_disk_is_never_written_nor_offered(machine: Machine, system: Callable[[Machine], None]) -> None:
    machine.disk("sda", removable=1)
    card = machine.disk("sdc", removable=1)
    system(machine)
    assert "this system runs from" in reason(machine, "sda")
    assert [disk.name for disk in candidates(machine.snapshot())] == [card]
    assert reason(machine, card) == ""


@given(
    layers=st.lists(st.sampled_from(["dm", "md", "loop"]), max_size=5),
    partitioned=st.booleans(),
    point=st.sampled_from(["/", "/usr", "/boot/firmware", "/var/lib/docker", "swap"]),
)
def test_no_stack_of_layers_hides_the_system_disk(layers: list[str], partitioned: bool, point: str) -> None:
    """Every layer lies on the one before it: by holders, or as a loop device on a file that is on it."""
    stack = ["sda", *(["sda1"] if partitioned else []), *(f"{kind}{level}" for level, kind in enumerate(layers))]
    devices, mounts = [], []
    for level, name in enumerate(stack):
        above = stack[level + 1] if level + 1 < len(stack) else ""
        below = stack[level - 1]
        is_loop = name.startswith("loop")
        if is_loop:
            mounts.append(Mount(f"8:{level - 1}", f"/mnt/{below}", "ext4", f"/dev/{below}"))
        devices.append(
            BlockDevice(
                name=name,
                number=f"8:{level}",
                size_bytes=GB,
                parent="sda" if name == "sda1" else "",
                holders=(above,) if above and not above.startswith("loop") and above != "sda1" else (),
                removable=True,
                backing_file=f"/mnt/{below}/system.img" if is_loop else "",
            )
        )
    swaps: tuple[str, ...] = ()
    if point == "swap":
        swaps = (f"/dev/{stack[-1]}",)
    else:
        mounts.append(Mount(f"8:{len(stack) - 1}", point, "ext4", "/dev/root"))
    error = refusal(Snapshot(tuple(devices), tuple(mounts), swaps), "sda", ALL)
    assert error is not None and "this system runs from" in str(error)


def test_a_card_that_is_mounted_is_written_only_when_it_may_be_unmounted(machine: Machine) -> None:
    machine.disk("sda")
    machine.mount(machine.partition("sda", "sda1"), "/media/lee/bootfs")
    machine.mount(machine.partition("sda", "sda2"), "/media/lee/bootfs/deeper down")
    said = reason(machine, "sda", Wish(GB))
    assert "/dev/sda1 is mounted at /media/lee/bootfs" in said
    assert "/dev/sda2 is mounted at /media/lee/bootfs/deeper down" in said
    assert "--unmount" in said
    assert reason(machine, "sda", Wish(GB, unmount=True)) == ""
    assert to_unmount(machine.snapshot(), "sda") == ["/media/lee/bootfs/deeper down", "/media/lee/bootfs"]


@pytest.mark.parametrize("name", ["dm-0", "md5"])
def test_what_is_built_on_a_disk_is_taken_apart_by_hand(machine: Machine, name: str) -> None:
    machine.disk("sda")
    machine.layer(name, [machine.partition("sda", "sda1")], title="vault")
    said = reason(machine, "sda")
    assert f"/dev/sda1 is in use by {name} (vault)" in said
    assert "cryptsetup close" in said


def test_a_partition_is_no_disk_and_its_disk_is_named(machine: Machine) -> None:
    machine.disk("sda")
    machine.partition("sda", "sda1")
    assert "is a partition of /dev/sda" in reason(machine, "sda1")


@pytest.mark.parametrize("name", ["dm-0", "md127", "zram0", "mmcblk0boot0", "mmcblk0rpmb"])
def test_layers_memory_and_parts_of_an_emmc_are_no_disks(machine: Machine, name: str) -> None:
    machine.disk(name, at=MMC, removable=1)
    assert "is not a disk" in reason(machine, name)
    assert candidates(machine.snapshot()) == []


def test_a_card_that_is_too_small_is_refused_with_both_sizes(machine: Machine) -> None:
    machine.disk("sda", size_bytes=GB)
    assert reason(machine, "sda", Wish(GB)) == ""
    said = reason(machine, "sda", Wish(GB + 1))
    assert f"({GB // 512 * 512} bytes)" in said
    assert f"({GB + 1} bytes)" in said


def test_a_lock_switch_is_named(machine: Machine) -> None:
    machine.disk("sda", read_only=1)
    assert "lock switch" in reason(machine, "sda")


def test_an_empty_reader_is_named_and_not_offered(machine: Machine) -> None:
    machine.disk("sda", size_bytes=0, removable=1)
    assert "no card in /dev/sda" in reason(machine, "sda")
    assert candidates(machine.snapshot()) == []


def test_a_disk_that_is_built_in_has_to_be_meant(machine: Machine) -> None:
    machine.disk("nvme0n1", at="pci0000:00/0000:01:00.0/nvme/nvme0")
    assert "--fixed" in reason(machine, "nvme0n1", Wish(GB))
    assert reason(machine, "nvme0n1", Wish(GB, fixed=True)) == ""
    assert candidates(machine.snapshot()) == []


def test_a_card_in_a_built_in_reader_counts_as_removable(machine: Machine) -> None:
    machine.disk("mmcblk0", at=MMC)
    machine.write((machine.roots.sys / "class/block/mmcblk0").resolve() / "device/type", "SD")
    assert [disk.name for disk in candidates(machine.snapshot())] == ["mmcblk0"]


def test_an_emmc_does_not(machine: Machine) -> None:
    machine.disk("mmcblk0", at=MMC)
    machine.write((machine.roots.sys / "class/block/mmcblk0").resolve() / "device/type", "MMC")
    assert candidates(machine.snapshot()) == []


def test_a_disk_that_is_not_there_is_refused(machine: Machine) -> None:
    assert "lists no disk sdz" in reason(machine, "sdz")


def test_a_disk_is_described_by_size_model_and_what_is_on_it(machine: Machine) -> None:
    machine.disk("sda", size_bytes=31_914_983_424, model="Ultra Fit")
    machine.partition("sda", "sda1", size_bytes=536_870_912, label="boot\\x20fs")
    machine.mount(machine.partition("sda", "sda2", size_bytes=4 * GB), "/media/root")
    snapshot = machine.snapshot()
    disk = device_named(snapshot, "sda")
    assert disk is not None
    assert describe(snapshot, disk) == [
        "/dev/sda  31.9 GB  Ultra Fit",
        '    sda1  537 MB  "boot fs"',
        "    sda2  4.0 GB  no name, mounted at /media/root",
    ]


def test_without_a_disk_named_and_a_terminal_the_disks_are_listed_and_nothing_is_done(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.disk("sda", model="Ultra Fit")
    machine.disk("sdb", at=SATA, model="Built in")
    assert main([str(tmp_path / "any.img")], machine.roots) == 1
    said = capsys.readouterr()
    assert "/dev/sda  32.0 GB  Ultra Fit" in said.out
    assert "Built in" not in said.out
    assert "No disk was named" in said.err


def test_lines_of_the_kernel_that_say_too_little_are_passed_over() -> None:
    assert parse_mounts(
        "\n1 2 8:1\n1 2 8:1 / /a\\040b rw - ext4 /dev/sda1 rw\n30 1 8:2 / /c rw master:1 - ext4 /dev/sda2"
    ) == (
        Mount("8:1", "/a b", "ext4", "/dev/sda1", ("rw",)),
        Mount("8:2", "/c", "ext4", "/dev/sda2", ()),
    )
    assert parse_swaps("Filename Type\n\n/dev/sda2 partition 1 0 -2\n") == ("/dev/sda2",)


def test_a_disk_without_anything_on_it_has_no_uses(machine: Machine) -> None:
    machine.disk("sda")
    machine.partition("sda", "sda1")
    assert uses(machine.snapshot(), "sda") == []
