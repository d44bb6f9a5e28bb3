"""Block maps: XML beside an image that says which of its blocks matter, with their checksums.

The format is bmaptool's (versions 1.3 to 2.0): ranges of blocks, both ends included, each with the checksum of its
bytes, and a checksum of the whole file that was computed with zeros in its own place. Maps before 1.3 have none.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from flashing.terms import PIECE_BYTES, Extent, FlashError


@dataclass(frozen=True)
class BlockMap:
    path: Path
    image_bytes: int
    extents: tuple[Extent, ...]
    block_bytes: int

    def text_from(self, start: int) -> str:
        """A map for bmaptool of what matters from `start` on, a multiple of the block size; "" when nothing does.

        In the form of version 1.2, without checksums: half of a range has none that is known.
        """
        ranges = [
            (low // self.block_bytes, (high - 1) // self.block_bytes)
            for low, high in self.mapped(start, self.image_bytes)
        ]
        if not ranges:
            return ""
        lines = "".join(f"<Range> {first}-{last} </Range>\n" for first, last in ranges)
        return (
            f'<?xml version="1.0" ?>\n<bmap version="1.2">\n<ImageSize> {self.image_bytes} </ImageSize>\n'
            f"<BlockSize> {self.block_bytes} </BlockSize>\n"
            f"<BlocksCount> {-(-self.image_bytes // self.block_bytes)} </BlocksCount>\n"
            f"<MappedBlocksCount> {sum(last - first + 1 for first, last in ranges)} </MappedBlocksCount>\n"
            f"<BlockMap>\n{lines}</BlockMap>\n</bmap>\n"
        )

    def mapped(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of `start` to `end` that matter."""
        parts = []
        for extent in self.extents:
            low = max(start, extent.offset_bytes)
            high = min(end, extent.offset_bytes + extent.size_bytes)
            if low < high:
                parts.append((low, high))
        return parts


def find_block_map(image: Path) -> BlockMap | None:
    """The map beside `image`: of its whole name, or of the name without the suffixes of packing. None when there is
    none; raises `FlashError` for one that is damaged."""
    name = image.name
    names = [name]
    while (shorter := re.sub(r"\.(gz|xz|zst|img|wic|raw)$", "", name)) != name:
        names.append(shorter)
        name = shorter
    for candidate in names:
        path = image.with_name(f"{candidate}.bmap")
        if path.is_file():
            return read_block_map(path)
    return None


def read_block_map(path: Path) -> BlockMap:
    """Raises `FlashError`."""
    try:
        content = path.read_bytes()
        tree = ElementTree.fromstring(content)
        block = int(_said(tree, "BlockSize"))
        image_bytes = int(_said(tree, "ImageSize"))
        algorithm = _said(tree, "ChecksumType") if tree.find("ChecksumType") is not None else "sha1"
        extents = []
        for entry in tree.findall("BlockMap/Range"):
            first, _, last = (entry.text or "").strip().partition("-")
            start, end = int(first) * block, min((int(last or first) + 1) * block, image_bytes)
            digest = entry.get("chksum") or entry.get("sha1") or ""
            extents.append(Extent(start, end - start, algorithm, digest.strip().lower()))
        if block <= 0 or PIECE_BYTES % block:
            raise ValueError(f"blocks of {block} bytes are not known")
        hashlib.new(algorithm)
        # It was called otherwise as long as only one kind was possible.
        name = "BmapFileSHA1" if tree.find("BmapFileChecksum") is None else "BmapFileChecksum"
        _check_sum(content, _said(tree, name), algorithm)
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise FlashError(
            f"The block map {path.name} cannot be used: {error}",
            "Download it again, or move it away to write the image without it.",
        ) from error
    return BlockMap(path, image_bytes, tuple(extents), block)


class RangeSums:
    """Compares an image that passes by, piece for piece, with its map."""

    def __init__(self, block_map: BlockMap) -> None:
        self.map = block_map
        self._sums = [hashlib.new(extent.algorithm) for extent in block_map.extents]
        self._at = 0

    def add(self, piece: bytes) -> None:
        start, end = self._at, self._at + len(piece)
        view = memoryview(piece)
        for index, extent in enumerate(self.map.extents):
            low = max(start, extent.offset_bytes)
            high = min(end, extent.offset_bytes + extent.size_bytes)
            if low < high:
                self._sums[index].update(view[low - start : high - start])
        self._at = end

    def wrong(self, size: int) -> str:
        """What does not fit; empty when everything does."""
        if size != self.map.image_bytes:
            return f"it has {size} bytes instead of {self.map.image_bytes}"
        for index, extent in enumerate(self.map.extents):
            if self._sums[index].hexdigest() != extent.digest:
                return f"the checksum of {extent.size_bytes} bytes from {extent.offset_bytes} on differs"
        return ""


def _said(tree: ElementTree.Element, name: str) -> str:
    element = tree.find(name)
    if element is None or not (element.text or "").strip():
        raise ValueError(f"it has no {name}")
    return (element.text or "").strip()


def _check_sum(content: bytes, digest: str, algorithm: str) -> None:
    blanked = content.replace(digest.encode(), b"0" * len(digest))
    if hashlib.new(algorithm, blanked).hexdigest() != digest.lower():
        raise ValueError("its own checksum is wrong")
