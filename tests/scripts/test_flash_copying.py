"""What is on a card after whatever happened, and whether the message says so. The disk is one in memory."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from disk_images import PIECE, MemoryDisk, block_map, image_bytes, table
from hypothesis import given
from hypothesis import strategies as st

from flashing.copying import Watch, write_image
from flashing.image import Image, open_image
from flashing.partitions import Partition, find_partitions
from flashing.progress import Progress, progress_line
from flashing.terms import DIFFERENT, INTERRUPTED, UNUSABLE, FlashError


def show(what: str) -> Watch:
    return lambda done, total: None


def opened(path: Path, content: bytes) -> Image:
    path.write_bytes(content)
    return open_image(path, lambda done: None)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return opened(tmp_path_factory.mktemp("image") / "a.img", image_bytes(3, rest=1536))


def test_the_whole_image_is_on_the_disk_and_nothing_behind_it_is_touched(image: Image) -> None:
    disk = MemoryDisk(5 * PIECE)
    write_image(disk, image, show)
    assert disk.content[: image.size_bytes] == image.path.read_bytes()
    assert set(disk.content[image.size_bytes :]) == {0xFF}


def test_zeros_replace_what_was_there_and_are_not_written_where_zeros_are(image: Image) -> None:
    dirty, clean = MemoryDisk(5 * PIECE), MemoryDisk(5 * PIECE)
    clean.content[:] = bytes(len(clean.content))
    write_image(dirty, image, show)
    write_image(clean, image, show)
    assert dirty.content[2 * PIECE : 3 * PIECE] == bytes(PIECE)
    assert dirty.written_bytes - clean.written_bytes == PIECE


@pytest.mark.parametrize("gone", [True, False], ids=["for good", "once"])
def test_whenever_the_disk_fails_the_message_says_what_is_on_it(image: Image, gone: bool) -> None:
    """At each of its operations in turn. One that fails for good has been pulled out."""
    whole = MemoryDisk(5 * PIECE)
    write_image(whole, image, show)
    for at in range(whole.operations):
        disk = MemoryDisk(5 * PIECE, fails_at=at, gone=gone)
        with pytest.raises(FlashError) as raised:
            write_image(disk, image, show)
        assert raised.value.status == UNUSABLE
        if "no partition table" in str(raised.value):
            assert disk.content[:PIECE] == bytes(PIECE)
        else:
            assert "may hold a part of the image" in str(raised.value)
            assert gone, "the disk would have answered"
        # Pulled out while it was read back, a disk may be whole. Half of an image never has a table.
        has_table = bool(find_partitions(bytes(disk.content[:PIECE])))
        assert not has_table or disk.content[: image.size_bytes] == image.path.read_bytes()


class Interrupting(Image):
    """An image during which somebody presses Ctrl-C."""

    def pieces(self) -> Iterator[bytes]:
        for number, piece in enumerate(super().pieces()):
            if number == 2:
                raise KeyboardInterrupt
            yield piece


def test_an_interrupted_card_is_left_without_a_partition_table(image: Image) -> None:
    disk = MemoryDisk(5 * PIECE)
    with pytest.raises(FlashError, match="no partition table") as raised:
        write_image(disk, Interrupting(image.path, image.kind, image.size_bytes, None), show)
    assert raised.value.status == INTERRUPTED
    assert disk.content[:PIECE] == bytes(PIECE)


class Forgetful(MemoryDisk):
    """A card that is smaller than it says: what lies beyond is written over its beginning."""

    def write(self, offset: int, data: bytes) -> None:
        super().write(offset % (3 * PIECE), data)

    def read(self, offset: int, size: int) -> bytes:
        return super().read(offset % (3 * PIECE), size)


def test_a_card_that_is_smaller_than_it_says_is_found_out_and_does_not_boot(image: Image) -> None:
    disk = Forgetful(6 * PIECE)
    with pytest.raises(FlashError, match="gave back something else") as raised:
        write_image(disk, image, show)
    assert raised.value.status == DIFFERENT
    assert disk.content[:PIECE] == bytes(PIECE)


def test_an_image_that_breaks_off_while_it_is_written_leaves_no_partition_table(tmp_path: Path) -> None:
    path = tmp_path / "a.img.gz"
    image = opened(path, gzip.compress(image_bytes(), 1))
    path.write_bytes(path.read_bytes()[:-100_000])
    disk = MemoryDisk(5 * PIECE)
    with pytest.raises(FlashError, match=r"cut off or damaged.*no partition table") as raised:
        write_image(disk, image, show)
    assert raised.value.status == UNUSABLE


def test_with_a_block_map_only_what_matters_is_written(tmp_path: Path) -> None:
    content = image_bytes()
    (tmp_path / "a.img.bmap").write_text(block_map(content, [(0, 300), (2000, 2000), (4000, 4095)]))
    image = opened(tmp_path / "a.img", content)
    disk = MemoryDisk(5 * PIECE)
    write_image(disk, image, show)
    for start, end in [(0, 301), (2000, 2001), (4000, 4096)]:
        assert disk.content[start * 4096 : end * 4096] == content[start * 4096 : end * 4096]
    # The first piece is written as a whole.
    assert set(disk.content[PIECE : 2000 * 4096]) == {0xFF}


@pytest.mark.parametrize("name", ["a.img.gz.bmap", "a.img.bmap", "a.bmap"])
def test_a_block_map_is_found_by_the_name_with_or_without_suffixes(tmp_path: Path, name: str) -> None:
    content = image_bytes()
    (tmp_path / name).write_text(block_map(content, [(0, 9)]))
    image = opened(tmp_path / "a.img.gz", gzip.compress(content, 1))
    assert image.block_map is not None
    assert image.block_map.path.name == name


def test_an_image_that_is_not_the_one_of_its_block_map_is_refused(tmp_path: Path) -> None:
    content = image_bytes()
    (tmp_path / "a.bmap").write_text(block_map(content, [(0, 9), (4000, 4001)]))
    changed = bytearray(content)
    changed[4000 * 4096 + 5] ^= 1
    with pytest.raises(FlashError, match=r"is not what a\.bmap describes: the checksum"):
        opened(tmp_path / "a.img", bytes(changed))
    with pytest.raises(FlashError, match=f"instead of {len(content)}"):
        opened(tmp_path / "a.img", content[:-512])


def test_a_block_map_of_version_1_3_is_read_whose_checksums_have_other_names(tmp_path: Path) -> None:
    content = image_bytes()
    digest = hashlib.sha1(content[: 10 * 4096]).hexdigest()
    text = (
        f'<?xml version="1.0" ?>\n<bmap version="1.3">\n<ImageSize> {len(content)} </ImageSize>\n'
        f"<BlockSize> 4096 </BlockSize>\n<BlocksCount> {len(content) // 4096} </BlocksCount>\n"
        f"<MappedBlocksCount> 10 </MappedBlocksCount>\n<BmapFileSHA1> {'0' * 40} </BmapFileSHA1>\n"
        f'<BlockMap>\n<Range sha1="{digest}"> 0-9 </Range>\n</BlockMap>\n</bmap>\n'
    )
    (tmp_path / "a.bmap").write_text(text.replace("0" * 40, hashlib.sha1(text.encode()).hexdigest()))
    image = opened(tmp_path / "a.img", content)
    assert image.block_map is not None
    assert [extent.digest for extent in image.block_map.extents] == [digest]


def test_a_block_map_that_is_damaged_is_refused(tmp_path: Path) -> None:
    content = image_bytes()
    text = block_map(content, [(0, 9)])
    for damaged in (text.replace(" 0-9 ", " 0-8 "), text[:200], text.replace("<BlockSize> 4096 </BlockSize>", "")):
        (tmp_path / "a.bmap").write_text(damaged)
        with pytest.raises(FlashError, match=r"block map a\.bmap cannot be used"):
            opened(tmp_path / "a.img", content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (image_bytes()[:-512], "cut off"),
        (bytes(PIECE), "no partition table"),
        (b"", "no partition table"),
        (b"PK\x03\x04" + bytes(600), "unzip"),
        (gzip.compress(image_bytes(), 1)[:-9], "cut off or damaged"),
        (gzip.compress(bytes(600)), "no partition table"),
    ],
    ids=["truncated", "zeros", "empty", "zip", "truncated gzip", "no image in gzip"],
)
def test_what_is_no_whole_image_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(FlashError) as raised:
        opened(tmp_path / "a.img", content)
    assert said in f"{raised.value} {raised.value.hint}"


def test_partitions_are_read_from_both_kinds_of_tables() -> None:
    assert find_partitions(table((4096, 8192), (8192, 1 << 20))) == [
        Partition(1, 4096, 4096),
        Partition(2, 8192, (1 << 20) - 8192),
    ]
    gpt = bytearray(64 * 512)
    gpt[:512] = table((512, 64 * 512), kind=0xEE)
    gpt[512:520] = b"EFI PART"
    gpt[512 + 72 : 512 + 88] = (2).to_bytes(8, "little") + (128).to_bytes(4, "little") + (128).to_bytes(4, "little")
    entry = bytes(range(1, 33)) + (40).to_bytes(8, "little") + (49).to_bytes(8, "little")
    gpt[1024 + 128 : 1024 + 128 + len(entry)] = entry
    assert find_partitions(bytes(gpt)) == [Partition(2, 40 * 512, 10 * 512)]


@given(st.binary(max_size=2048))
def test_no_table_is_too_strange_to_be_read(noise: bytes) -> None:
    for head in (noise, noise[:510].ljust(510, b"\0") + b"\x55\xaa" + b"EFI PART" + noise):
        assert all(partition.number >= 1 for partition in find_partitions(head))


class Shown:
    """A stream that keeps what is written to it, as a terminal or a file would get it."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_progress_says_share_amount_speed_and_what_is_left() -> None:
    assert progress_line("writing", 315_000_000, 700_000_000, 15.0) == (
        "writing: 45 %, 315 MB of 700 MB, 21 MB/s, 18 s left"
    )
    assert progress_line("checking the image", 5_000_000, 0, 0.0) == "checking the image: 5 MB"


def test_away_from_a_terminal_progress_is_a_line_each_tenth() -> None:
    stream, now = Shown(), iter(range(1000))
    progress = Progress("writing", stream, terminal=False, clock=lambda: float(next(now)))  # type: ignore[arg-type]
    for done in range(1, 101):
        progress(done, 100)
    assert [line.split(",")[0] for line in stream.text.splitlines()] == [
        f"writing: {share} %" for share in (1, *range(10, 101, 10))
    ]
