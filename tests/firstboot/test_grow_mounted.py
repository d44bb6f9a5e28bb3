"""A data partition that is grown while it is mounted and written to: a real kernel, on a loop device."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from partition_tables import IMAGE_BYTES, script

from magnitude.firstboot.grow import grow_data
from magnitude.units.host import run_quietly

SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
CARD_BYTES = 3 * IMAGE_BYTES


def command(*words: str | Path, text: str = "") -> str:
    environ = {**os.environ, "PATH": SYSTEM_PATH}
    done = subprocess.run([*map(str, words)], input=text, capture_output=True, text=True, check=True, env=environ)
    return done.stdout.strip()


def why_not() -> str:
    if os.geteuid() != 0:
        return "needs root for a loop device"
    needed = ("losetup", "sfdisk", "partx", "mke2fs", "mount")
    if missing := [name for name in needed if shutil.which(name, path=SYSTEM_PATH) is None]:
        return f"{', '.join(missing)} not installed on this machine"
    if not Path("/usr/lib/systemd/systemd-growfs").exists() and not Path("/lib/systemd/systemd-growfs").exists():
        return "systemd-growfs is not installed on this machine"
    return "" if Path("/dev/loop-control").exists() else "this machine has no loop devices"


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "all there")


@pytest.fixture(params=["gpt", "dos"])
def card(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A card that is three times as large as the image on it, and where its data partition is mounted."""
    image, mount_point = tmp_path / "card.img", tmp_path / "data"
    mount_point.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    command("sfdisk", "--quiet", image, text=script(request.param))
    with image.open("r+b") as file:
        file.truncate(CARD_BYTES)
    device = command("losetup", "--find", "--show", "--partscan", image)
    try:
        if not (Path("/sys/class/block") / f"{Path(device).name}p4").exists():
            command("partx", "--add", device)  # a kernel that reads no partition tables itself
        part = node_of(device, tmp_path)
        command("mke2fs", "-q", "-t", "ext4", part)
        command("mount", part, mount_point)
        try:
            yield device, mount_point
        finally:
            command("umount", mount_point)
    finally:
        subprocess.run(["partx", "--delete", device], capture_output=True)
        command("losetup", "--detach", device)


def node_of(device: str, folder: Path) -> Path:
    """The device file of the fourth partition; where no udev runs, one of our own."""
    name = f"{Path(device).name}p4"
    node = Path("/dev") / name
    if node.exists():
        return node
    major, minor = map(int, (Path("/sys/class/block") / name / "dev").read_text().split(":"))
    node = folder / name
    os.mknod(node, 0o600 | 0o060000, os.makedev(major, minor))
    return node


def may_resize() -> bool:
    """Whether this process has CAP_SYS_RESOURCE, number 24, which ext4 asks for; containers often have not."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> 24 & 1)


def test_the_kernel_knows_the_new_size_while_the_partition_is_mounted(
    card: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", SYSTEM_PATH)
    device, mount_point = card
    size = Path("/sys/class/block") / f"{Path(device).name}p4" / "size"
    before = int(size.read_text())
    asked = []

    def run(words: Sequence[str]) -> str | None:
        asked.append(words[-1])
        return run_quietly(words) if words[0] == "partx" else None

    (mount_point / "before").write_text("what was there")
    said = grow_data(mount_point, run=run)
    assert said == f"the data partition was grown to {size.read_text().strip()} sectors"
    assert int(size.read_text()) * 512 > before * 512 + IMAGE_BYTES
    assert asked == [device, str(mount_point)]
    assert (mount_point / "before").read_text() == "what was there"


@pytest.mark.skipif(not may_resize(), reason="growing a mounted ext4 needs CAP_SYS_RESOURCE, which is not here")
def test_the_partition_takes_the_rest_of_the_card_and_keeps_what_is_on_it(
    card: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", SYSTEM_PATH)
    _, mount_point = card
    (mount_point / "before").write_text("what was there")
    with (mount_point / "open").open("w") as file:
        small = shutil.disk_usage(mount_point).total
        assert "grown" in grow_data(mount_point, run=run_quietly)
        file.write("written while it grew")
    assert shutil.disk_usage(mount_point).total > small + IMAGE_BYTES
    assert (mount_point / "before").read_text() == "what was there"
    assert (mount_point / "open").read_text() == "written while it grew"
    large = shutil.disk_usage(mount_point).total
    assert "fills the disk" in grow_data(mount_point, run=run_quietly)
    assert shutil.disk_usage(mount_point).total == large
