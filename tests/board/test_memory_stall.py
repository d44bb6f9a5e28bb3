from __future__ import annotations

import errno
from pathlib import Path

from kernel_trees import write_tree
from magnitude.board.memory_stall import StallReader, parse_stall

G = "sys/fs/cgroup"
STALLED = "some avg10=12.50 avg60=3.00 avg300=1.00 total=123\nfull avg10=4.25 avg60=1.00 avg300=0.10 total=45"
CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0"


def test_the_groups_figures_come_before_the_boards(tmp_path: Path) -> None:
    tree = {
        "proc/self/cgroup": "0::/magnitude.service",
        "proc/pressure/memory": CALM,
        f"{G}/magnitude.service/memory.pressure": STALLED,
    }
    group, board = StallReader(write_tree(tmp_path, tree)).stalls()
    assert (group.some_percent, group.full_percent) == (12.5, 4.25)
    assert (board.some_percent, board.path) == (0.0, str(tmp_path / "proc/pressure/memory"))


def test_a_service_in_a_leaf_of_its_unit_reads_the_figures_of_the_unit(tmp_path: Path) -> None:
    tree = {
        "proc/self/cgroup": "0::/system.slice/magnitude.service/service",
        f"{G}/system.slice/memory.pressure": CALM,
        f"{G}/system.slice/magnitude.service/memory.pressure": STALLED,
        f"{G}/system.slice/magnitude.service/service/memory.pressure": CALM,
    }
    (unit,) = StallReader(write_tree(tmp_path, tree)).stalls()
    assert unit.full_percent == 4.25


def test_a_kernel_without_the_files_has_no_figures(tmp_path: Path) -> None:
    assert StallReader(write_tree(tmp_path, {"proc/self/cgroup": "0::/"})).stalls() == ()


def test_a_file_that_opens_and_fails_to_be_read_is_asked_once(tmp_path: Path) -> None:
    asked: list[Path] = []

    def refuses(path: Path) -> str | None:
        asked.append(path)
        try:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        except OSError:
            return None

    reader = StallReader(write_tree(tmp_path, {"proc/self/cgroup": "0::/", "proc/pressure/memory": CALM}), refuses)
    assert reader.stalls() == () == reader.stalls() == reader.stalls()
    assert sorted(asked) == sorted({*asked})


def test_a_directory_in_the_files_place_is_no_figure(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {"proc/pressure/memory/x": ""})
    assert StallReader(roots).stalls() == ()


def test_what_is_not_the_kernels_text_is_no_figure() -> None:
    for text in ("", "nonsense", "some avg10=x", "full avg10=1.0"):
        assert parse_stall(text, Path("p")) is None
