"""Partitions, slots and the boot script's state: named once, and meant alike wherever they are used."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest

from image.guest import partitions as guest
from magnitude.doctor.checks.boot_slot import SLOT_PARTITIONS
from magnitude.firstboot import data_partition
from scripts.fetch_models import MODELS
from scripts.flashing import partitions as flashing
from yocto.checks.layer import CHECKOUT, LAYER

PARTITIONS = LAYER / "conf/distro/include/magnitude-partitions.inc"
SCRIPT = LAYER / "recipes-bsp/magnitude-boot/files/boot.cmd"
SYSTEM_CONF = LAYER / "dynamic-layers/rauc/recipes-core/rauc/files/system.conf"
LAYOUTS = sorted((LAYER / "files/wic").glob("*.wks.in"))
NAMES = {"boot": 1, "root-a": 2, "root-b": 3, "data": 4}


class Datastore:
    """Of BitBake's, what the function in the include file asks."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def getVar(self, name: str) -> str | None:
        return self.values.get(name)


def partuuid(table: str, number: int) -> str:
    """What the include file's own function says."""
    found = re.search(r"^def magnitude_partuuid.*?(?=^\S)", PARTITIONS.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(found[0], names)  # the function of our own file
    result: str = names["magnitude_partuuid"](
        Datastore(MAGNITUDE_DISK_ID=assigned("MAGNITUDE_DISK_ID"), MAGNITUDE_PTABLE=table), number
    )
    return result


def assigned(name: str) -> str:
    found = re.search(rf'^{re.escape(name)} \??= "([^"]*)"', PARTITIONS.read_text(), flags=re.MULTILINE)
    assert found, name
    return found[1]


def parts(layout: Path) -> list[dict[str, str]]:
    """The `part` lines of a layout that become partitions or are written beside them, as options."""
    result = []
    for line in layout.read_text().splitlines():
        if line.startswith("part "):
            options = dict(re.findall(r"--([\w-]+)(?:[ =](?!--)(\"[^\"]*\"|\S+))?", line))
            result.append(options)
    return result


def test_gpt_partitions_have_fixed_identities() -> None:
    assert partuuid("gpt", 2) == "6d61676e-0001-4000-8000-000000000002"


def test_mbr_partitions_are_the_disk_s_identity_and_their_number() -> None:
    assert partuuid("msdos", 4) == "6d61676e-04"


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda path: path.stem)
def test_a_layout_has_boot_two_equal_slots_and_data_last(layout: Path) -> None:
    table = [part for part in parts(layout) if "no-table" not in part]
    assert [part["label"] for part in table] == ["MAGBOOT", "root-a", "root-b", "magnitude-data"]
    assert [part["fstype"] for part in table] == ["vfat", "ext4", "ext4", "ext4"]
    assert table[1]["fixed-size"] == table[2]["fixed-size"] == "${MAGNITUDE_ROOT_SIZE}"
    # U-Boot reads the kernel out of both.
    assert "MAGNITUDE_EXT4_FEATURES" in table[1]["mkfs-extraopts"]
    assert table[1]["mkfs-extraopts"] == table[2]["mkfs-extraopts"]
    if "rpi" not in layout.name:
        assert [part["uuid"] for part in table] == [
            f"${{MAGNITUDE_PARTUUID_{name}}}" for name in ("BOOT", "ROOT_A", "ROOT_B", "DATA")
        ]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda path: path.stem)
def test_the_boot_state_lies_where_no_partition_and_no_loader_lies(layout: Path) -> None:
    first = int(assigned("MAGNITUDE_BOOT_STATE_OFFSET"), 16)
    end = first + 2 * int(assigned("MAGNITUDE_BOOT_STATE_SIZE"), 16)
    for part in parts(layout):
        if part.get("offset") == "64s":
            continue  # the loader, which has all up to the state: 4,000 KiB less the first 32
        begins = int(part["offset"][:-1]) * 512 if "offset" in part else int(part["align"]) * 1024
        assert begins >= end
        if "no-table" not in part:
            break


def test_script_and_linux_look_for_the_state_in_the_same_place() -> None:
    text = SCRIPT.read_text()
    offset = int(assigned("MAGNITUDE_BOOT_STATE_OFFSET"), 16)
    size = int(assigned("MAGNITUDE_BOOT_STATE_SIZE"), 16)
    assert f"setenv m_blocks {offset // 512:x} {(offset + size) // 512:x}\n" in text
    assert re.findall(r"\$\{m_block\} (\w+)", text) == [f"{size // 512:x}"] * 2
    assert re.findall(r"env (?:import -c|export -c -s)(?: \$\{\w+\})? (\w+)", text) == [f"{size:x}"] * 2


def test_the_script_s_slots_are_rauc_s_slots() -> None:
    conf = configparser.ConfigParser()
    conf.read(SYSTEM_CONF)
    slots = {conf[name]["bootname"]: conf[name]["device"] for name in conf.sections() if name.startswith("slot.")}
    assert slots == {
        "A": "/dev/disk/by-partuuid/@ROOT_A@",
        "B": "/dev/disk/by-partuuid/@ROOT_B@",
    }
    script = dict(re.findall(r"m_slot\} = (\w); then\n.*\n\s+setenv m_part (\d)", SCRIPT.read_text()))
    assert script == {"A": str(NAMES["root-a"]), "B": str(NAMES["root-b"])}


def test_a_board_that_believes_it_is_1970_can_take_an_update() -> None:
    conf = configparser.ConfigParser()
    conf.read(SYSTEM_CONF)
    assert conf["keyring"]["use-bundle-signing-time"] == "true"


def test_data_is_never_a_slot() -> None:
    assert "DATA" not in re.sub(r"^#.*", "", SYSTEM_CONF.read_text(), flags=re.MULTILINE)


def test_slots_and_labels_are_called_alike_by_layouts_images_code_and_texts() -> None:
    """Each of them was written where it is used, in another language; they have to be one."""
    by_layout = {tuple(part["label"] for part in parts(path) if "no-table" not in part) for path in LAYOUTS}
    ((boot_label, *_, data_label),) = by_layout
    assert (boot_label, data_label) == (guest.BOOT_LABEL, guest.DATA_LABEL)
    assert boot_label == flashing.BOOT_LABEL
    for path in LAYOUTS:
        named = [part.get("part-name") for part in parts(path) if "no-table" not in part]
        # MBR has no names.
        assert named in (list(NAMES), [None] * 4), path.name
    assert {one.name: one.number for one in guest.layout(1 << 20, 1 << 20)} == NAMES
    slots = {"A": "root-a", "B": "root-b"}
    assert {slot: (NAMES[name], name) for slot, name in slots.items()} == SLOT_PARTITIONS
    grub = (CHECKOUT / "image/guest/files/grub.cfg").read_text()
    assert re.findall(r"set partition=gpt(\d)\n\s+set name=(\S+)\n", grub) == [
        (str(NAMES[name]), name) for name in slots.values()
    ]
    for page in ("updates.md", "image.md"):
        text = (CHECKOUT / "docs" / page).read_text()
        rows = re.findall(r"(?m)^\| (\d.*?) \|(?: ([\w, -]+) \|)? .*$", text)
        said = [" ".join(row) for row in rows]
        numbers = {name: number for row in said for name, number in numbered(row).items()}
        assert numbers == NAMES, page
        assert re.search(rf"label `{boot_label}`", text)
        assert re.search(rf"label `{data_label}`", text)


def numbered(row: str) -> dict[str, int]:
    """The names in a row, each with its number: `2, 3 root-a, root-b`, or `` 2 `root-a`, 3 `root-b` ``."""
    numbers = [int(number) for number in re.findall(r"\b\d\b", row)]
    names = [name for name in re.findall(r"[\w-]+", row) if name in NAMES]
    return dict(zip(names, numbers, strict=False))


def test_the_device_grows_the_partition_table_that_images_have() -> None:
    assert f"0x{assigned('MAGNITUDE_DISK_ID')}" == data_partition.DISK_ID_MBR
    ids = [partuuid("gpt", number) for number in NAMES.values()]
    assert [found.lower() for found in data_partition.PARTUUIDS_GPT] == ids
    assert NAMES["data"] == data_partition.DATA
    page = (CHECKOUT / "docs/updates.md").read_text()
    assert f"`{partuuid('gpt', 0)[:-1]}N`" in page
    assert f"`{partuuid('msdos', 0)[:-1]}N`" in page


def mebibytes(name: str) -> int:
    return int(assigned(name).removesuffix("M"))


@pytest.mark.models
def test_a_slot_holds_twice_the_largest_system_with_the_embedded_models(magnitude_home: Path) -> None:
    """It cannot grow in the field. The largest system is that of the limit, which the Debian image has to keep."""
    proof = (CHECKOUT / "tests/system/image/test_image_boots.py").read_text()
    (limit,) = re.findall(r"(?m)^ROOT_BYTES = ([\d_]+)$", proof)
    models = sum(
        path.stat().st_size
        for model in MODELS
        for path in (magnitude_home / "models" / model.name).rglob("*")
        if path.is_file()
    )
    assert 2 * (int(limit) + models) <= mebibytes("MAGNITUDE_ROOT_SIZE") << 20


def test_the_text_says_what_the_partitions_take() -> None:
    begin = max(int(part["align"]) for path in LAYOUTS for part in parts(path) if "align" in part) // 1024
    sizes = [mebibytes(f"MAGNITUDE_{name}_SIZE") for name in ("BOOT", "ROOT", "ROOT", "DATA")]
    (said,) = re.findall(r"an image's partitions take\s+([\d.]+) GB", (CHECKOUT / "docs/image.md").read_text())
    assert float(said) == round((begin + sum(sizes)) * (1 << 20) / 1e9, 1)
