import mmap
from pathlib import Path

import pytest

from magnitude.engine.process import forget_mapped_pages, untouched_mappings

PAGES = 64
SMAPS = """\
7f0000000000-7f0000004000 rw-p 00001000 fe:00 1234   /models/chat bot/model.onnx.data
Rss:                  16 kB
Anonymous:             0 kB
7f0000010000-7f0000014000 rw-p 00001000 fe:00 1234   /models/chat bot/model.onnx.data
Rss:                  16 kB
Anonymous:             4 kB
7f0000020000-7f0000024000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000030000-7f0000034000 r-xp 00000000 fe:00 99     /usr/lib/libc.so.6
Anonymous:             0 kB
"""


def resident_pages(path: Path) -> int:
    """Pages of `path` that this process counts as its own."""
    counted = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if str(path) in line:
            counted = True
        elif counted and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024 // mmap.PAGESIZE
    return 0


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx.data"
    path.write_bytes(bytes(range(256)) * (PAGES * mmap.PAGESIZE // 256))
    return path


def map_privately(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def test_pages_that_were_only_read_are_dropped_and_read_the_same_afterwards(weights: Path) -> None:
    with map_privately(weights) as view:
        assert view[:] == weights.read_bytes()
        assert resident_pages(weights) == PAGES
        assert forget_mapped_pages(weights.parent) == PAGES * mmap.PAGESIZE
        assert resident_pages(weights) == 0
        assert view[:] == weights.read_bytes()


def test_a_mapping_that_was_written_to_keeps_what_was_written(weights: Path) -> None:
    with map_privately(weights) as view:
        view[0:4] = b"mine"
        assert forget_mapped_pages(weights.parent) == 0
        assert view[0:4] == b"mine"


def test_files_elsewhere_are_left_alone(weights: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with map_privately(weights) as view:
        assert sum(view[:: mmap.PAGESIZE]) >= 0
        assert forget_mapped_pages(other) == 0


def test_only_the_folders_mappings_without_pages_of_their_own_are_found() -> None:
    assert untouched_mappings(SMAPS, "/models/chat bot/") == [(0x7F0000000000, 0x7F0000004000)]
    assert untouched_mappings(SMAPS, "/models/chat") == [(0x7F0000000000, 0x7F0000004000)]
    assert untouched_mappings(SMAPS, "/models/other/") == []
