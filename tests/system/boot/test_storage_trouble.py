"""A card that is full, or has turned read-only, costs what would have been kept, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import rootfs
from booted_board import SERVICE, STATE, Board

pytestmark = pytest.mark.system


@pytest.fixture
def board(boot: Callable[..., Board], root: Path) -> Board:
    """The state lies on a file system of its own, of 8 MB; models are elsewhere."""
    tiny = f"{rootfs.MODELS.lstrip('/')}/tiny"
    owner = (root / STATE.lstrip("/")).stat()
    card = f"--tmpfs={STATE}:size=8m,mode=0750,uid={owner.st_uid},gid={owner.st_gid}"
    board = boot(root, options=[card, f"--bind-ro={root / tiny}:/{tiny}"])
    board.wait_ready()
    return board


def test_a_full_disk_does_not_stop_the_service_and_is_told(board: Board) -> None:
    expected = board.complete()
    board.run("sh", "-c", f"cat /dev/zero > {STATE}/filler 2>/dev/null", check=False)
    board.run("systemctl", "restart", SERVICE)
    board.wait_ready()
    assert board.complete() == expected
    assert told(board), board.state()["health"]
    board.run("rm", f"{STATE}/filler")
    board.run("systemctl", "restart", SERVICE)
    board.wait_ready()
    assert not told(board)


def test_a_card_that_turned_read_only_does_not_stop_the_service_and_is_told(board: Board) -> None:
    expected = board.complete()
    board.run("mount", "-o", "remount,ro", STATE)
    assert board.complete() == expected
    board.run("systemctl", "restart", SERVICE)
    board.wait_ready()
    assert board.complete() == expected
    assert told(board), board.state()["health"]


def told(board: Board) -> bool:
    return any(
        word in reason for reason in board.state()["health"]["reasons"] for word in ("storage", "disk", "state")
    )
