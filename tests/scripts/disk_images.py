"""Small images of disks, a disk in memory that can fail, and a key for one."""

from __future__ import annotations

import base64
import hashlib
import random
import struct
import subprocess
from pathlib import Path

PIECE = 4 << 20
SECTOR = 512
FAT_START = 1 << 20
_BLOB = struct.pack(">I11sI32s", 11, b"ssh-ed25519", 32, b"k" * 32)
KEY = f"ssh-ed25519 {base64.b64encode(_BLOB).decode()}"


def table(*partitions: tuple[int, int], kind: int = 0x0C) -> bytes:
    """An MBR with partitions from and to these bytes."""
    entries = b"".join(
        struct.pack("<B3sB3sII", 0, b"\xfe\xff\xff", kind, b"\xfe\xff\xff", start // SECTOR, (end - start) // SECTOR)
        for start, end in partitions
    )
    return bytes(446) + entries.ljust(64, b"\0") + b"\x55\xaa"


def image_bytes(pieces: int = 4, *, rest: int = 0) -> bytes:
    """A table, noise, and a piece of zeros in the middle."""
    size = pieces * PIECE + rest
    content = bytearray(random.Random(pieces).randbytes(size))
    content[2 * PIECE : 3 * PIECE] = bytes(PIECE)
    content[:SECTOR] = table((FAT_START, size))
    return bytes(content)


def fat_image(path: Path, size: int = 6 * PIECE, *, label: str = "MAGBOOT") -> None:
    """A disk with one FAT file system."""
    path.write_bytes(table((FAT_START, size)).ljust(size, b"\0"))
    sectors = (size - FAT_START) // SECTOR
    subprocess.run(
        ["mformat", "-i", f"{path}@@{FAT_START}", "-T", str(sectors), "-h", "16", "-s", "32", "-v", label, "::"],
        check=True,
    )


def block_map(content: bytes, ranges: list[tuple[int, int]], *, block: int = 4096) -> str:
    """A map of `content` whose ranges of blocks, both ends included, matter."""
    lines = [
        f'<Range chksum="{hashlib.sha256(content[a * block : (b + 1) * block]).hexdigest()}">'
        f" {a}{f'-{b}' if b != a else ''} </Range>"
        for a, b in ranges
    ]
    own = "0" * 64
    text = (
        f'<?xml version="1.0" ?>\n<bmap version="2.0">\n<ImageSize> {len(content)} </ImageSize>\n'
        f"<BlockSize> {block} </BlockSize>\n<BlocksCount> {-(-len(content) // block)} </BlocksCount>\n"
        f"<MappedBlocksCount> {sum(b - a + 1 for a, b in ranges)} </MappedBlocksCount>\n"
        f"<ChecksumType> sha256 </ChecksumType>\n<BmapFileChecksum> {own} </BmapFileChecksum>\n"
        f"<BlockMap>\n{chr(10).join(lines)}\n</BlockMap>\n</bmap>\n"
    )
    return text.replace(own, hashlib.sha256(text.encode()).hexdigest())


class MemoryDisk:
    """A disk of `size_bytes` that is full of something old. From the operation number `fails_at` on each one fails,
    if `gone`; otherwise that one does."""

    path = Path("/dev/memory")

    def __init__(self, size_bytes: int, *, fails_at: int | None = None, gone: bool = False) -> None:
        self.size_bytes = size_bytes
        self.content = bytearray(b"\xff" * size_bytes)
        self.operations = 0
        self.written_bytes = 0
        self._fails_at, self._gone = fails_at, gone

    def write(self, offset: int, data: bytes) -> None:
        self._operate()
        self.content[offset : offset + len(data)] = data
        self.written_bytes += len(data)

    def flush(self) -> None:
        self._operate()

    def read(self, offset: int, size: int) -> bytes:
        self._operate()
        return bytes(self.content[offset : offset + size])

    def share(self) -> None:
        self._operate()

    def _operate(self) -> None:
        number = self.operations
        self.operations += 1
        if self._fails_at is not None and (number == self._fails_at or (self._gone and number > self._fails_at)):
            raise OSError(5, "Input/output error")
