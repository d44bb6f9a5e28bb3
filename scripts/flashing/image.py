"""An image file as pieces of bytes: plain, gzip, xz or zstd, told apart by their first bytes and not by names."""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from flashing.bmap import BlockMap, RangeSums, find_block_map
from flashing.partitions import find_partitions
from flashing.terms import PIECE_BYTES, FlashError

_MAGICS = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
}
# The image came as something that holds it, and these take it out.
_UNPACKERS = {"zip": "unzip", "bzip2": "bunzip2"}

Watch = Callable[[int], None]


@dataclass(frozen=True)
class Image:
    """An image that was read through once: it is whole, and `size_bytes` is what it takes on a disk."""

    path: Path
    kind: str
    size_bytes: int
    block_map: BlockMap | None

    def pieces(self) -> Iterator[bytes]:
        return read_pieces(self.path, self.kind)


def open_image(path: Path, watch: Watch) -> Image:
    """Look at the image and its block map, before any disk is touched. `watch` gets the bytes read so far.

    Raises `FlashError` for one that is cut off, damaged or no image of a disk.
    """
    kind = _kind_of(path)
    block_map = find_block_map(path)
    sums = RangeSums(block_map) if block_map else None
    head, size = b"", 0
    if kind == "plain" and sums is None:
        head, size = next(read_pieces(path, kind), b""), path.stat().st_size
    else:
        for piece in read_pieces(path, kind):
            head = head or piece
            if sums:
                sums.add(piece)
            size += len(piece)
            watch(size)
    if sums and (wrong := sums.wrong(size)):
        raise FlashError(
            f"{path.name} is not what {sums.map.path.name} describes: {wrong}",
            "Download both again. To write it without the block map, move that file away.",
        )
    _check_table(path, head, size)
    return Image(path, kind, size, block_map)


def read_pieces(path: Path, kind: str) -> Iterator[bytes]:
    """The unpacked content in pieces of `PIECE_BYTES`; the last one may be shorter. Raises `FlashError`."""
    try:
        with _unpacked(path, kind) as stream:
            while piece := _read_exactly(stream, PIECE_BYTES):
                yield piece
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise FlashError(f"{path.name} is cut off or damaged: {error}", "Download it again.") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> FlashError:
    return FlashError(
        f"The image {path} cannot be read: {error.strerror}", "Look at its name, and whether you may read it."
    )


def _kind_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise _unreadable(path, error) from error
    kind = next((kind for magic, kind in _MAGICS.items() if start.startswith(magic)), "plain")
    if kind in _UNPACKERS:
        raise FlashError(f"{path.name} is a {kind} file", f"Unpack it first: {_UNPACKERS[kind]} {path.name}")
    if kind == "zstd" and not shutil.which("zstd"):
        raise FlashError(f"{path.name} is packed by zstd, which is not installed", "Debian: sudo apt install zstd")
    return kind


@contextmanager
def _unpacked(path: Path, kind: str) -> Iterator[IO[bytes]]:
    if kind == "zstd":
        with _by_zstd(path) as stream:
            yield stream
    elif kind == "gzip":
        with gzip.open(path, "rb") as stream:
            yield cast("IO[bytes]", stream)
    elif kind == "xz":
        with lzma.open(path, "rb") as stream:
            yield cast("IO[bytes]", stream)
    else:
        with path.open("rb") as stream:
            yield stream


@contextmanager
def _by_zstd(path: Path) -> Iterator[IO[bytes]]:
    """By the program: Python has had zstd since 3.14 only."""
    process = subprocess.Popen(
        ["zstd", "--decompress", "--stdout", "--quiet", "--", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        yield process.stdout
        said = process.stderr.read().decode("utf-8", "replace").strip()
        if process.wait() != 0:
            raise FlashError(f"{path.name} is cut off or damaged: {said}", "Download it again.")
    finally:
        # Reached in the middle of the file as well, when whoever reads is interrupted.
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Pipes give less than they are asked for."""
    parts = []
    while size and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _check_table(path: Path, head: bytes, size: int) -> None:
    partitions = find_partitions(head)
    if not partitions:
        raise FlashError(
            f"{path.name} is no image of a disk: it has no partition table",
            "A bundle for an update is no image either.",
        )
    end = max(partition.start_bytes + partition.size_bytes for partition in partitions)
    if end > size:
        raise FlashError(
            f"{path.name} is cut off: its partitions need {end} bytes, and it has {size}", "Download it again."
        )
