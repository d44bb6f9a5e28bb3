"""The user's files for the first boot: `magnitude.yaml`, `authorized_keys` and Wi-Fi.

They go into the folder `magnitude/` of the FAT partition, where the board takes them over. The FAT file system is
changed in a copy by mtools, and what has changed is written to the card and read back like the image itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from flashing.copying import Disk, write_changes
from flashing.partitions import Partition, find_boot_partition, find_partitions
from flashing.public_keys import key_lines
from flashing.terms import PIECE_BYTES, WITHOUT_FILES, FlashError

FOLDER = "magnitude"
# What the board takes at most (service/magnitude/firstboot/parcel.py); more is a wrong file.
_LARGEST_BYTES = {
    "magnitude.yaml": 1 << 20,
    "authorized_keys": 256 << 10,
    "wifi.yaml": 16 << 10,
    "wifi.nmconnection": 64 << 10,
}


@dataclass(frozen=True)
class BootFile:
    name: str
    data: bytes


def read_boot_files(config: Path | None, ssh_keys: list[Path], wifi: Path | None) -> list[BootFile]:
    """The files under the names that the board looks for. Raises `FlashError` for one that cannot be right; what they
    say in detail is checked by the board."""
    files = []
    if config:
        files.append(BootFile("magnitude.yaml", _text_of(config)))
    if ssh_keys:
        keys = [_public_keys(path) for path in ssh_keys]
        files.append(BootFile("authorized_keys", b"".join(keys)))
    if wifi:
        # NetworkManager's own files are taken as they are.
        data = _text_of(wifi)
        files.append(BootFile("wifi.nmconnection" if b"[connection]" in data else "wifi.yaml", data))
    for file in files:
        if len(file.data) > _LARGEST_BYTES[file.name]:
            raise FlashError(
                f"{file.name} would have {len(file.data)} bytes, far more than such a file has",
                f"The board takes {_LARGEST_BYTES[file.name]} bytes at most. Is it the right file?",
            )
    return files


def require_mtools() -> None:
    """Raises `FlashError`."""
    if not shutil.which("mcopy"):
        raise FlashError(
            "Files for the first boot need mtools, which is not installed", "Debian: sudo apt install mtools"
        )


def put_boot_files(card: Disk, files: list[BootFile]) -> None:
    """Raises `FlashError`; the image on the card is whole then all the same, but for its FAT partition when that was
    being written."""
    try:
        _put(card, files)
    except OSError as error:
        raise _not_put(f"{card.path} does not take them: {error.strerror or error}") from error


def _put(card: Disk, files: list[BootFile]) -> None:
    partition = find_boot_partition(find_partitions(card.read(0, PIECE_BYTES)), card.read)
    if partition is None:
        raise _not_put("the image has no FAT partition")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "boot.fat"
        _take_copy(card, partition, copy)
        before = Path(folder) / "before.fat"
        shutil.copyfile(copy, before)
        for file in files:
            source = Path(folder) / "file"
            # Wi-Fi passwords: nobody else reads them here.
            source.touch(mode=0o600)
            source.write_bytes(file.data)
            if not _lists(copy, f"::{FOLDER}"):
                _mtools("mmd", copy, f"::{FOLDER}")
            _mtools("mcopy", copy, "-o", str(source), f"::{FOLDER}/{file.name}")
            source.unlink()
        _write_back(card, partition, before, copy)


def _take_copy(card: Disk, partition: Partition, copy: Path) -> None:
    with copy.open("wb") as file:
        for offset in range(0, partition.size_bytes, PIECE_BYTES):
            wanted = min(PIECE_BYTES, partition.size_bytes - offset)
            piece = card.read(partition.start_bytes + offset, wanted)
            if len(piece) != wanted:
                raise _not_put("the FAT partition cannot be read")
            # Zeros stay holes: the folder of temporary files may lie in memory.
            if piece.count(0) != len(piece):
                file.seek(offset)
                file.write(piece)
        file.truncate(partition.size_bytes)


def _write_back(card: Disk, partition: Partition, before: Path, after: Path) -> None:
    with before.open("rb") as old, after.open("rb") as new:
        for offset in range(0, partition.size_bytes, PIECE_BYTES):
            was, becomes = old.read(PIECE_BYTES), new.read(PIECE_BYTES)
            if was != becomes and not write_changes(card, partition.start_bytes + offset, was, becomes):
                raise _not_put("the card gave back something else than was written")


def _lists(image: Path, path: str) -> bool:
    command = ["mdir", "-b", "-i", str(image), path]
    return subprocess.run(command, capture_output=True, check=False, env=_environment()).returncode == 0


def _mtools(program: str, image: Path, *arguments: str) -> None:
    done = subprocess.run(
        [program, "-i", str(image), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=_environment(),
    )
    if done.returncode:
        raise _not_put(f"{program}: {done.stderr.strip() or f'status {done.returncode}'}")


def _environment() -> dict[str, str]:
    # Without the check mtools refuses file systems whose geometry no floppy ever had.
    return {**os.environ, "MTOOLS_SKIP_CHECK": "1"}


def _not_put(reason: str) -> FlashError:
    return FlashError(
        f"The image is on the card and right, but your files are not on it: {reason}",
        f"Copy them by hand into the folder {FOLDER}/ of the card's FAT partition, or flash it again.",
        WITHOUT_FILES,
    )


def _text_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(max(_LARGEST_BYTES.values()) + 1)
    except OSError as error:
        raise FlashError(
            f"{path} cannot be read: {error.strerror}", "Look at its name, and whether you may read it."
        ) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FlashError(f"{path} is no text in UTF-8", "Is it the right one?") from error
    if not text.strip():
        raise FlashError(f"{path} is empty", "Leave the option out, or name another file.")
    return data


def _public_keys(path: Path) -> bytes:
    text = _text_of(path).decode("utf-8-sig")
    if "PRIVATE KEY" in text:
        raise FlashError(f"{path} is a private key, which never leaves this computer", f"Its public half: {path}.pub")
    try:
        lines = key_lines(text)
    except ValueError as error:
        raise FlashError(f"{path}: {error}", "Each key is an unbroken line: ssh-ed25519 AAAA… NAME") from error
    if not lines:
        raise FlashError(f"{path} holds no key", "Name your .pub file, which is a line: ssh-ed25519 AAAA… NAME")
    return "".join(f"{line}\n" for line in lines).encode()
