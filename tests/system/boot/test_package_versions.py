"""An upgrade and the way back keep state or set it aside; neither destroys it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import rootfs
from booted_board import SERVICE, STATE, Board

pytestmark = pytest.mark.system

NEWER = "99.0.0"
MEASURED = f"{STATE}/throughput.json"


def raise_the_schema(sources: Path) -> None:
    """A later version that writes one of its state files in another format."""
    module = sources / "service/magnitude/schedule/throughput.py"
    text = module.read_text()
    assert "\nSCHEMA = 2\n" in text
    module.write_text(text.replace("\nSCHEMA = 2\n", "\nSCHEMA = 1002\n"))


def install(board: Board, wheel: str) -> None:
    board.run(f"{rootfs.PREFIX}/bin/pip", "install", "--quiet", "--no-index", "--force-reinstall", "--no-deps", wheel)
    board.run("magnitude", "install-units")
    board.run("systemctl", "daemon-reload")
    board.run("systemctl", "restart", SERVICE)
    board.wait_ready()


def test_state_survives_an_upgrade_and_the_way_back(
    boot: Callable[..., Board], oldest_root: Path, tmp_path: Path
) -> None:
    older = rootfs.build_wheel(tmp_path / "older")
    newer = rootfs.build_wheel(tmp_path / "newer", version=NEWER, edit=raise_the_schema)
    binds = [f"--bind-ro={wheel.parent}:/mnt/{wheel.parent.name}" for wheel in (older, newer)]
    board = boot(oldest_root, options=binds)
    board.wait_ready()
    version, expected = board.state()["version"], board.complete()
    written = board.path(MEASURED).read_text()

    install(board, f"/mnt/newer/{newer.name}")
    assert board.state()["version"] == NEWER
    assert board.complete() == expected
    assert written in kept(board), "the upgrade destroyed what the older version had written"
    newly_written = board.path(MEASURED).read_text()
    assert newly_written != written

    install(board, f"/mnt/older/{older.name}")
    assert board.state()["version"] == version
    assert board.complete() == expected
    assert board.path(MEASURED).read_text() == written, "the older version did not find its own state again"
    assert newly_written in kept(board), "the downgrade destroyed what the newer version had written"


def kept(board: Board) -> list[str]:
    """What stands in all generations of the file."""
    return [path.read_text() for path in sorted(board.path(STATE).glob(Path(MEASURED).name + "*"))]
