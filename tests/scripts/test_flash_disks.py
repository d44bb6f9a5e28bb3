"""`scripts/flash` as it is started, on loop devices: what it does to a disk, what it refuses, how it ends."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from disk_images import FAT_START, KEY, PIECE, block_map, fat_image, image_bytes

from flashing.block_devices import Roots, read_snapshot
from flashing.card import Card
from flashing.copying import Watch, write_image
from flashing.image import open_image
from flashing.rules import device_named
from flashing.terms import DIFFERENT, FlashError

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
Loop = Callable[..., Path]
SIZE = 6 * PIECE
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture
def disk(tmp_path: Path, loop: Loop) -> tuple[Path, Path]:
    """A disk full of something old: its device, and the file that shows what is really on it."""
    backing = tmp_path / "disk"
    backing.write_bytes(b"\xff" * SIZE)
    return loop(backing), backing


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "a.img"
    path.write_bytes(image_bytes())
    return path


def flash(*arguments: object, programs: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environ(programs),
    )


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(SCRIPTS / "flash"), *map(str, arguments), "--fixed", "--yes"]


def environ(programs: Path | None) -> dict[str, str]:
    path = os.environ["PATH"]
    return {**os.environ, "PATH": f"{programs}:{path}" if programs else path}


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}")
    (folder / name).chmod(0o755)
    return folder


def untouched(backing: Path) -> bool:
    return set(backing.read_bytes()) == {0xFF}


def zstd(content: bytes) -> bytes:
    return subprocess.run(["zstd", "-1", "-c"], input=content, capture_output=True, check=True).stdout


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "img": bytes,
    "img.gz": lambda content: gzip.compress(content, 1),
    "img.xz": lambda content: lzma.compress(content, preset=0),
    "img.zst": zstd,
}


@pytest.mark.parametrize("suffix", PACKERS)
def test_an_image_is_written_and_read_back(disk: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    device, backing = disk
    path = tmp_path / f"packed.{suffix}"
    path.write_bytes(PACKERS[suffix](image_bytes()))
    done = flash(path, device)
    assert done.returncode == 0, done.stderr
    content = image_bytes()
    assert backing.read_bytes() == content + b"\xff" * (SIZE - len(content))
    assert "writing: 100 %" in done.stderr
    assert "verifying: 100 %" in done.stderr
    assert f"Done: {device} holds {path.name}" in done.stdout


def test_a_dry_run_tells_everything_and_writes_nothing(disk: tuple[Path, Path], image: Path) -> None:
    device, backing = disk
    done = flash(image, device, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"{device}  25 MB" in done.stdout
    assert "Nothing was written" in done.stdout
    assert untouched(backing)


def test_a_disk_that_is_too_small_is_refused(loop: Loop, tmp_path: Path, image: Path) -> None:
    backing = tmp_path / "small"
    backing.write_bytes(b"\xff" * (4 * PIECE - 512))
    done = flash(image, loop(backing))
    assert (done.returncode, "too small" in done.stderr) == (1, True), done.stderr
    assert untouched(backing)


def test_a_disk_of_just_the_right_size_is_not(loop: Loop, tmp_path: Path) -> None:
    image = tmp_path / "a.img"
    image.write_bytes(image_bytes(3, rest=512 * 7))
    backing = tmp_path / "just"
    backing.write_bytes(b"\xff" * image.stat().st_size)
    done = flash(image, loop(backing))
    assert done.returncode == 0, done.stderr
    assert backing.read_bytes() == image.read_bytes()


def test_a_read_only_disk_is_refused(loop: Loop, tmp_path: Path, image: Path) -> None:
    backing = tmp_path / "locked"
    backing.write_bytes(b"\xff" * SIZE)
    done = flash(image, loop(backing, "--read-only"))
    assert (done.returncode, "lock switch" in done.stderr) == (1, True), done.stderr
    assert untouched(backing)


def test_a_mounted_disk_is_refused_and_written_with_unmount(
    disk: tuple[Path, Path], tmp_path: Path, image: Path
) -> None:
    device, backing = disk
    point = tmp_path / "mounted here"
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", str(device)], check=True)
    subprocess.run(["mount", str(device), str(point)], check=True)
    try:
        done = flash(image, device)
        assert done.returncode == 1
        assert f"{device} is mounted at {point}" in done.stderr
        assert point.is_mount()
        done = flash(image, device, "--unmount")
        assert done.returncode == 0, done.stderr
        assert not point.is_mount()
    finally:
        subprocess.run(["umount", str(point)], check=False, capture_output=True)
    assert backing.read_bytes()[: 4 * PIECE] == image_bytes()


def test_a_mounted_disk_that_is_busy_stays_as_it_is(disk: tuple[Path, Path], tmp_path: Path, image: Path) -> None:
    device, backing = disk
    point = tmp_path / "busy"
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", str(device)], check=True)
    subprocess.run(["mount", str(device), str(point)], check=True)
    try:
        with (point / "open").open("w"):
            done = flash(image, device, "--unmount")
        assert (done.returncode, "cannot be unmounted" in done.stderr) == (1, True), done.stderr
    finally:
        subprocess.run(["umount", str(point)], check=True)
    assert backing.read_bytes()[1080:1082] == b"\x53\xef", "the file system is still there (ext4's magic number)"


def test_a_disk_with_swap_is_one_that_the_system_runs_from(disk: tuple[Path, Path], image: Path) -> None:
    device, _ = disk
    subprocess.run(["mkswap", str(device)], check=True, capture_output=True)
    subprocess.run(["swapon", str(device)], check=True)
    try:
        done = flash(image, device, "--unmount")
    finally:
        subprocess.run(["swapoff", str(device)], check=True)
    assert done.returncode == 1
    assert f"{device} is swap space in use" in done.stderr


def test_a_disk_that_only_the_kernel_knows_to_be_in_use_is_refused(disk: tuple[Path, Path], image: Path) -> None:
    """As one that is mounted in another mount namespace."""
    device, backing = disk
    holder = os.open(device, os.O_RDWR | os.O_EXCL)
    try:
        done = flash(image, device)
    finally:
        os.close(holder)
    assert (done.returncode, "the kernel is using it" in done.stderr) == (1, True), done.stderr
    assert untouched(backing)


@pytest.mark.parametrize("given", ["a.img", "nothing-here"])
def test_what_is_no_disk_is_refused(tmp_path: Path, image: Path, given: str) -> None:
    done = flash(image, tmp_path / given)
    assert done.returncode == 1
    assert str(tmp_path / given) in done.stderr
    assert image.read_bytes() == image_bytes()


def test_a_damaged_image_is_refused_before_the_disk_is_touched(disk: tuple[Path, Path], tmp_path: Path) -> None:
    device, backing = disk
    path = tmp_path / "a.img.zst"
    path.write_bytes(zstd(image_bytes())[:-1000])
    done = flash(path, device)
    assert (done.returncode, "cut off or damaged" in done.stderr) == (1, True), done.stderr
    assert untouched(backing)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_it_says_in_which_state_the_card_is_and_killed_it_leaves_the_same(
    disk: tuple[Path, Path], tmp_path: Path, number: signal.Signals
) -> None:
    device, backing = disk
    path = tmp_path / "a.img.zst"
    path.write_bytes(zstd(image_bytes()))
    # The image is read twice: to check it, and to write it. The second time it comes to a standstill in the middle.
    real = shutil.which("zstd")
    programs = program(
        tmp_path / "bin",
        "zstd",
        f'cd "{tmp_path}"\n'
        f'if [ ! -e once ]; then touch once; exec {real} "$@"; fi\n'
        f'{real} "$@" 2>/dev/null | head -c {3 * PIECE}; touch standstill; exec sleep 600\n',
    )
    process = started(command(path, device), programs, until=tmp_path / "standstill")
    if number == signal.SIGKILL:
        # With all that it has started, as when the computer goes down.
        os.killpg(process.pid, number)
        process.communicate()
    else:
        process.send_signal(number)
        _, said = process.communicate()
        assert process.returncode == 130, said
        assert "no partition table now and does not boot. Flash it again.\n  The same command" in said
    assert backing.read_bytes()[:PIECE] == bytes(PIECE)
    assert flash(path, device).returncode == 0
    assert backing.read_bytes()[: 4 * PIECE] == image_bytes()


def test_in_a_terminal_the_name_is_asked_for_and_a_ctrl_c_ends_bmaptool_without_its_traceback(
    disk: tuple[Path, Path], tmp_path: Path, image: Path
) -> None:
    device, backing = disk
    (tmp_path / "a.bmap").write_text(block_map(image_bytes(), MAPPED))
    # As Python ends when nobody catches what a Ctrl-C raises.
    text = f'trap "echo Traceback; exit 1" INT\ntouch "{tmp_path}/begun"\nwhile :; do sleep 0.05; done\n'
    programs = program(tmp_path / "bin", "bmaptool", text)
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, command(image, device)[:-1], environ(programs))  # without --yes
    said = b""
    while b"to go on: " not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, device.name.encode() + b"\n")
    while not (tmp_path / "begun").exists():
        time.sleep(0.02)
    os.write(terminal, b"\x03\x03\x03")
    with contextlib.suppress(OSError):  # how a terminal says that nobody is left on it
        while more := os.read(terminal, 4096):
            said += more
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130, said
    assert b"\nerror: Interrupted. The card has no partition table now" in said
    assert b"Traceback" not in said
    assert backing.read_bytes()[:PIECE] == bytes(PIECE)


def started(command: list[str], programs: Path, *, until: Path) -> subprocess.Popen[str]:
    """The program in a process group of its own, once the file `until` is there."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(programs),
        start_new_session=True,
    )
    while not until.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


def test_a_disk_that_fails_while_it_is_written_ends_otherwise(loop: Loop, tmp_path: Path, image: Path) -> None:
    """The disk lies on a file system that is full sooner than it: the kernel reports errors of input and output."""
    point = tmp_path / "full"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={2 * PIECE}", "none", str(point)], check=True)
    try:
        backing = point / "disk"
        with backing.open("wb") as file:
            file.truncate(SIZE)
        device = loop(backing)
        done = flash(image, device)
        assert done.returncode == 3, done.stderr
        assert f"{device} does not take the image: Input/output error" in done.stderr
        assert "no partition table" in done.stderr
        assert backing.read_bytes()[:PIECE] == bytes(PIECE)
        subprocess.run(["losetup", "--detach", str(device)], check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def test_what_the_kernel_has_in_its_cache_does_not_pass_for_what_is_on_the_disk(
    disk: tuple[Path, Path], image: Path
) -> None:
    device, backing = disk

    def show(what: str) -> Watch:
        if what == "verifying":
            # Behind the kernel's back, whose cache of the disk still holds what was written.
            with backing.open("r+b") as file:
                file.seek(3 * PIECE + 12345)
                file.write(b"other")
                os.fsync(file.fileno())
        return lambda done, total: None

    known = device_named(read_snapshot(Roots()), device.name)
    assert known is not None
    opened = open_image(image, lambda done: None)
    with Card(device, known) as card, pytest.raises(FlashError, match="gave back something else") as raised:
        write_image(card, opened, show)
    assert raised.value.status == DIFFERENT
    assert backing.read_bytes()[:PIECE] == bytes(PIECE)


def test_another_card_than_the_one_that_was_looked_at_is_refused(disk: tuple[Path, Path]) -> None:
    device, backing = disk
    known = device_named(read_snapshot(Roots()), device.name)
    assert known is not None
    with backing.open("ab") as file:
        file.write(bytes(PIECE))
    subprocess.run(["losetup", "--set-capacity", str(device)], check=True)
    with pytest.raises(FlashError, match="Another card"):
        Card(device, known)


MAPPED = [(0, 300), (2000, 2000), (4000, 4095)]
# The real one's command line and its effect: the blocks of the map are copied, others are left alone.
BMAPTOOL = """
[ "$1 $2" = "copy --bmap" ] || exit 9
echo "$@" >"{log}"
for range in $(sed -n 's/.*> *\\([0-9-]*\\) <.Range>/\\1/p' "$3"); do
  first=${{range%-*}} last=${{range#*-}}
  count=$((last - first + 1))
  dd if="$4" of="$5" bs=4096 skip="$first" seek="$first" count=$count conv=notrunc,fsync 2>/dev/null || exit 1
done
exit {status}
"""


def test_bmaptool_writes_where_it_is_installed_and_the_card_is_read_back(
    disk: tuple[Path, Path], tmp_path: Path, image: Path
) -> None:
    device, backing = disk
    content = image_bytes()
    (tmp_path / "a.bmap").write_text(block_map(content, MAPPED))
    programs = program(tmp_path / "bin", "bmaptool", BMAPTOOL.format(log=tmp_path / "asked", status=0))
    done = flash(image, device, programs=programs)
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("copy --bmap /")
    assert asked.endswith(f" {image} {device}\n")
    assert "verifying: 100 %" in done.stderr
    written = backing.read_bytes()
    for start, end in MAPPED:
        assert written[start * 4096 : (end + 1) * 4096] == content[start * 4096 : (end + 1) * 4096]
    assert set(written[PIECE : 2000 * 4096]) == {0xFF}


def test_a_bmaptool_that_fails_leaves_no_partition_table(
    disk: tuple[Path, Path], tmp_path: Path, image: Path
) -> None:
    device, backing = disk
    (tmp_path / "a.bmap").write_text(block_map(image_bytes(), MAPPED))
    programs = program(tmp_path / "bin", "bmaptool", BMAPTOOL.format(log=tmp_path / "asked", status=1))
    done = flash(image, device, programs=programs)
    assert done.returncode == 3, done.stderr
    assert "bmaptool ended with status 1" in done.stderr
    assert backing.read_bytes()[:PIECE] == bytes(PIECE)


def test_a_bmaptool_that_outlives_this_program_writes_no_partition_table(
    disk: tuple[Path, Path], tmp_path: Path, image: Path
) -> None:
    device, backing = disk
    (tmp_path / "a.bmap").write_text(block_map(image_bytes(), MAPPED))
    waiting = f'touch "{tmp_path}/begun"\nwhile [ ! -e "{tmp_path}/on" ]; do sleep 0.02; done\n'
    text = BMAPTOOL.format(log=tmp_path / "asked", status=0).replace("exit 0", f'touch "{tmp_path}/over"')
    programs = program(tmp_path / "bin", "bmaptool", waiting + text)
    process = started(command(image, device), programs, until=tmp_path / "begun")
    process.kill()
    process.wait()
    (tmp_path / "on").touch()
    while not (tmp_path / "over").exists():
        time.sleep(0.02)
    process.communicate()
    written = backing.read_bytes()
    assert written[4000 * 4096 : 4 * PIECE] == image_bytes()[4000 * 4096 :]
    assert written[:PIECE] == bytes(PIECE)


@pytest.mark.skipif(shutil.which("bmaptool") is None, reason="bmaptool (bmap-tools) is not installed")
@pytest.mark.parametrize("suffix", PACKERS)
def test_the_real_bmaptool_understands_the_map_that_it_gets(
    disk: tuple[Path, Path], tmp_path: Path, suffix: str
) -> None:
    device, backing = disk
    content = image_bytes()
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(PACKERS[suffix](content))
    # A range across the end of the first piece, which is written by us; and one that ends with the image.
    ranges = [(0, 0), (1000, 1100), (2000, 2000), (4000, 4095)]
    (tmp_path / "a.bmap").write_text(block_map(content, ranges))
    done = flash(path, device)
    assert done.returncode == 0, done.stderr
    assert "written by bmaptool" in done.stdout
    written = backing.read_bytes()
    for start, end in ranges:
        assert written[start * 4096 : (end + 1) * 4096] == content[start * 4096 : (end + 1) * 4096]
    assert set(written[1101 * 4096 : 2000 * 4096]) == {0xFF}


def test_files_for_the_first_boot_are_put_on_the_fat_partition(disk: tuple[Path, Path], tmp_path: Path) -> None:
    device, backing = disk
    path = tmp_path / "fat.img"
    fat_image(path)
    (tmp_path / "my.yaml").write_text("server:\n  max_queue: 7\n")
    (tmp_path / "one.pub").write_text(f"{KEY} one@here\n")
    (tmp_path / "two.pub").write_text(f"# mine\nrestrict {KEY} two@here")
    (tmp_path / "home.nmconnection").write_text("[connection]\ntype=wifi\n")
    keys = ["--ssh-key", tmp_path / "one.pub", "--ssh-key", tmp_path / "two.pub"]
    done = flash(path, device, "--config", tmp_path / "my.yaml", *keys, "--wifi", tmp_path / "home.nmconnection")
    assert done.returncode == 0, done.stderr
    fat = f"{backing}@@{FAT_START}"

    def read(name: str) -> str:
        shown = subprocess.run(
            ["mtype", "-i", fat, f"::magnitude/{name}"], capture_output=True, text=True, check=True
        )
        return shown.stdout

    assert read("magnitude.yaml") == "server:\n  max_queue: 7\n"
    assert read("authorized_keys") == f"{KEY} one@here\nrestrict {KEY} two@here\n"
    assert read("wifi.nmconnection") == "[connection]\ntype=wifi\n"


def test_files_go_into_a_folder_that_is_there_and_replace_what_is_in_it(
    disk: tuple[Path, Path], tmp_path: Path
) -> None:
    device, backing = disk
    path = tmp_path / "fat.img"
    fat_image(path, label="OTHER")
    (tmp_path / "wifi.yaml").write_text("ssid: old\n")
    inside = f"{path}@@{FAT_START}"
    subprocess.run(["mmd", "-i", inside, "::MAGNITUDE"], check=True)
    subprocess.run(["mcopy", "-i", inside, str(tmp_path / "wifi.yaml"), "::magnitude/wifi.yaml"], check=True)
    (tmp_path / "wifi.yaml").write_text("ssid: new\n")
    done = flash(path, device, "--wifi", tmp_path / "wifi.yaml")
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        ["mtype", "-i", f"{backing}@@{FAT_START}", "::magnitude/wifi.yaml"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout == "ssid: new\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_files_are_put_it_says_that_the_image_is_there_and_what_may_not_be(
    disk: tuple[Path, Path], tmp_path: Path, number: signal.Signals
) -> None:
    device, backing = disk
    path = tmp_path / "fat.img"
    fat_image(path)
    (tmp_path / "my.yaml").write_text("log: {}\n")
    programs = program(tmp_path / "bin", "mcopy", f'touch "{tmp_path}/standstill"; exec sleep 600\n')
    process = started(
        command(path, device, "--config", tmp_path / "my.yaml"), programs, until=tmp_path / "standstill"
    )
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "Interrupted. The image is on the card and right, but for its FAT partition" in said
    assert "Nothing was written" not in said
    assert backing.read_bytes()[:SIZE] == path.read_bytes()


@pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason="no Python that another user could start")
def test_who_may_not_write_to_the_disk_is_told_so_before_the_image_is_read(
    disk: tuple[Path, Path], tmp_path: Path
) -> None:
    device, backing = disk
    # Another user, who sees the program and the disk's name, and would have to read the image next.
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        shutil.copy(SCRIPTS / "flash", open_to_all)
        shutil.copytree(SCRIPTS / "flashing", Path(open_to_all) / "flashing")
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        words = [*user, SYSTEM_PYTHON, f"{open_to_all}/flash", tmp_path / "a.img", device, "--fixed", "--yes"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, "Run the same with sudo" in done.stderr) == (1, True), done.stderr
    assert "checking the image" not in done.stderr
    assert untouched(backing)


def test_without_a_fat_partition_the_image_is_there_and_the_files_are_not(
    disk: tuple[Path, Path], tmp_path: Path, image: Path
) -> None:
    device, backing = disk
    (tmp_path / "my.yaml").write_text("log: {}\n")
    done = flash(image, device, "--config", tmp_path / "my.yaml")
    assert done.returncode == 5
    assert "The image is on the card and right, but your files are not on it" in done.stderr
    assert backing.read_bytes()[: 4 * PIECE] == image_bytes()
