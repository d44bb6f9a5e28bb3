"""A card that is full, or has turned read-only, costs what would have been kept, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import rootfs
from booted_board import SERVICE, STATE, Board
from nspawn import until

pytestmark = pytest.mark.system


@pytest.fixture
def board(boot: Callable[..., Board], root: Path) -> Board:
    """The state lies on a file system of its own, of 128 MB; models are elsewhere."""
    tiny = f"{rootfs.MODELS.lstrip('/')}/tiny"
    owner = (root / STATE.lstrip("/")).stat()
    card = f"--tmpfs={STATE}:size=128m,mode=0750,uid={owner.st_uid},gid={owner.st_gid}"
    board = boot(root, options=[card, f"--bind-ro={root / tiny}:/{tiny}"])
    board.wait_ready()
    assert not told(board)
    return board


def test_a_full_card_does_not_stop_the_service_and_is_told_until_there_is_room(board: Board) -> None:
    expected = board.complete()
    board.run("systemctl", "stop", SERVICE)
    board.run("sh", "-c", f"cat /dev/zero > {STATE}/filler 2>/dev/null", check=False)
    board.run("systemctl", "start", SERVICE)
    board.wait_ready()
    assert board.complete() == expected
    until(lambda: told(board), within_s=30, what="health says that the card is full")
    board.run("rm", f"{STATE}/filler")
    board.run("systemctl", "restart", SERVICE)
    board.wait_ready()
    assert board.complete() == expected
    assert not told(board)


def test_a_read_only_card_does_not_stop_the_service_and_is_told(board: Board) -> None:
    expected = board.complete()
    board.run("systemctl", "stop", SERVICE)
    board.run("mount", "-o", "remount,ro", STATE)
    board.run("systemctl", "start", SERVICE)
    board.wait_ready()
    assert board.complete() == expected
    until(lambda: told(board), within_s=30, what="health says that the card is read-only")


def told(board: Board) -> bool:
    """Whether health says that something is not kept, and why."""
    health = board.state()["health"]
    assert bool(health["reasons"]) == (health["persistence"] == "off"), health
    return bool(health["persistence"] == "off")
