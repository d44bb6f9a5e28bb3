"""What the image's units and programs write outlasts a reboot where it has to, and is mounted in the right order."""

from __future__ import annotations

import configparser
import re
from pathlib import PurePosixPath

import pytest

from magnitude.firstboot.boot_partition import MOUNT_POINT
from magnitude.firstboot.device import Device
from magnitude.firstboot.grow import DATA_MOUNT
from magnitude.paths import find_paths
from yocto.checks.layer import CHECKOUT, LAYER, read_layer

BASE_FILES = LAYER / "recipes-core/base-files"
RAUC = LAYER / "dynamic-layers/rauc/recipes-core/rauc/files"
SYSTEMD = CHECKOUT / "systemd"
# Below these a path is made anew at each boot, on purpose: sockets, what one boot has counted, what is in the kernel.
VOLATILE = ("/run/", "/sys/", "/proc/")


class Mount:
    def __init__(self, line: str) -> None:
        self.source, self.place, self.kind, options, _, checked = line.split()
        self.options = options.split(",")
        self.pass_number = int(checked)


MOUNTS = {
    mount.place: mount
    for mount in map(Mount, re.findall(r"(?m)^[^#\n].*$", (BASE_FILES / "files/fstab").read_text()))
}


def values(text: str, *keys: str) -> list[str]:
    """All words of these settings in a unit file, without the marks in front of paths."""
    found = re.findall(rf"(?m)^(?:{'|'.join(keys)})=(.+)$", text)
    return [word.lstrip("-+") for value in found for word in value.split()]


def written_by_units() -> dict[str, str]:
    """Path → unit file, for everything that the units say they keep or write."""
    found: dict[str, str] = {}
    for path in [*SYSTEMD.glob("**/*.service"), *SYSTEMD.glob("**/*.conf"), RAUC / "50-magnitude.conf"]:
        text = path.read_text()
        places = [f"/var/lib/{name}" for name in values(text, "StateDirectory")]
        places += [f"/var/cache/{name}" for name in values(text, "CacheDirectory")]
        places += values(text, "ReadWritePaths", "RequiresMountsFor", "ConditionPathExists")
        found.update(dict.fromkeys(places, path.name))
    return found


def written_by_programs() -> dict[str, str]:
    """Path → what it is, for what the code writes without a unit's words for it."""
    device, paths = Device(), find_paths({}, uid=0)
    rauc = configparser.ConfigParser()
    rauc.read(RAUC / "system.conf")
    named = {
        device.state: "the device's keys and ids",
        device.config: "the configuration that is taken over",
        device.connections: "networks that are taken over",
        paths.state: "models and state",
        paths.cache: "cache",
        rauc["system"]["data-directory"]: "RAUC's status of the slots",
        # systemd's own: the random seed, when timers ran, the last time of a board without a clock.
        "/var/lib/systemd": "systemd",
    }
    return {str(path): what for path, what in named.items()}


def mount_of(path: str) -> Mount:
    """The mount that `path` lies on."""
    places = [str(place) for place in (PurePosixPath(path), *PurePosixPath(path).parents)]
    return next(MOUNTS[place] for place in places if place in MOUNTS)


@pytest.mark.parametrize(("path", "who"), sorted((written_by_units() | written_by_programs()).items()))
def test_what_is_written_lies_on_the_data_partition_or_in_memory_on_purpose(path: str, who: str) -> None:
    if path == "/run" or path.startswith(VOLATILE):
        return
    mount = mount_of(path)
    overlaid = any(option.startswith("upperdir=/data/") for option in mount.options)
    on_data = overlaid or mount.place == "/data" or mount.source.startswith("/data/")
    assert on_data or mount.place == str(MOUNT_POINT), f"{path}, which {who} writes, is on {mount.place}"


def test_the_places_are_those_that_the_programs_look_at() -> None:
    assert str(MOUNT_POINT) in MOUNTS
    assert str(DATA_MOUNT) in MOUNTS


def test_binds_below_var_come_after_the_memory_that_would_hide_them() -> None:
    """Of a read-only root /var/lib and /var/cache are in memory, mounted by services of volatile-binds."""
    for mount in MOUNTS.values():
        if found := re.match(r"/var/(lib|cache)/", mount.place):
            assert f"x-systemd.after=var-volatile-{found[1]}.service" in mount.options, mount.place


def test_a_bind_has_the_place_on_data_that_is_called_like_it() -> None:
    binds = [mount for mount in MOUNTS.values() if "bind" in mount.options]
    assert binds
    assert [mount.source for mount in binds] == [f"/data{mount.place}" for mount in binds]


def test_root_and_boot_are_read_only() -> None:
    assert "ro" in MOUNTS["/"].options
    assert "ro" in MOUNTS["/boot/firmware"].options


def test_reading_a_card_never_writes_to_it() -> None:
    assert all("noatime" in mount.options for mount in MOUNTS.values() if mount.source.startswith("PARTUUID="))


def test_a_lost_boot_partition_holds_up_nothing_and_a_lost_data_partition_everything() -> None:
    optional = {place for place, mount in MOUNTS.items() if "nofail" in mount.options}
    assert optional == {"/boot/firmware"}
    assert any(option.startswith("x-systemd.device-timeout=") for option in MOUNTS["/boot/firmware"].options)


def test_what_is_written_is_checked_before_it_is_mounted_and_a_read_only_root_is_not() -> None:
    checked = {place: mount.pass_number for place, mount in MOUNTS.items() if mount.pass_number}
    assert checked == {"/boot/firmware": 2, "/data": 2}
    assert {MOUNTS[place].kind for place in checked} == {"vfat", "ext4"}
    # fsck.vfat and fsck.ext4, and what systemd calls them by.
    installed = read_layer().recipe("packagegroup-magnitude").words("RDEPENDS")
    assert {"dosfstools", "e2fsprogs-e2fsck", "util-linux-fsck"} <= set(installed)


def test_mount_points_on_the_root_are_made_when_it_is_built() -> None:
    """Below /var/lib and /var/cache systemd makes them: those are in memory."""
    text = (BASE_FILES / "base-files_%.bbappend").read_text().replace("${sysconfdir}", "/etc")
    (made,) = re.findall(r'(?m)^dirs755:append:magnitude-os = "(.*)"$', text)
    below_root = {place for place in MOUNTS if mount_of(str(PurePosixPath(place).parent)).place == "/"}
    own = {place for place in below_root if not place.startswith("/var/") and place not in ("/", "/run")}
    assert set(made.split()) == own


def test_folders_of_an_overlay_are_made_before_it_is_mounted() -> None:
    made = (SYSTEMD / "image/magnitude-data.service").read_text()
    for mount in MOUNTS.values():
        if mount.kind == "overlay":
            assert "x-systemd.requires=magnitude-data.service" in mount.options
            folders = [option.partition("=")[2] for option in mount.options if option.startswith(("upper", "work"))]
            assert len(folders) == 2
            assert all(folder in made for folder in folders), mount.place
