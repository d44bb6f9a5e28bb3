"""Configurations, good and broken, as an admin changes them on a running board."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from booted_board import CONFIG, SERVICE, SOCKET, Board, lines_of
from nspawn import until

pytestmark = pytest.mark.system

BROKEN = "engine:\n  max_batch_size: many\n"


@pytest.fixture(scope="module")
def module_board(root: Path) -> Iterator[Board]:
    with Board(root) as board:
        board.wait_ready()
        yield board


@pytest.fixture
def board(module_board: Board) -> Board:
    """With the plain configuration in force, whatever the test before has left."""
    module_board.configure()
    module_board.run("systemctl", "restart", SERVICE)
    module_board.wait_ready()
    return module_board


def names(board: Board) -> set[str]:
    with board.admin() as client:
        return {model["id"] for model in client.get("/v1/models").json()["data"]}


def test_a_reload_applies_a_changed_configuration_without_a_restart(board: Board) -> None:
    main, engine = board.main_pid, board.engine_pid
    board.configure(log={"content": True})
    board.run("systemctl", "reload", SERVICE)
    board.complete()
    until(
        lambda: any(lines_of(board.journal("-u", SERVICE), "content", "prompt=")), within_s=10, what="it is applied"
    )
    assert (board.main_pid, board.engine_pid) == (main, engine)


def test_a_reload_with_a_broken_configuration_fails_visibly_and_keeps_the_old_one(board: Board) -> None:
    main, expected = board.main_pid, board.complete()
    board.write(CONFIG, BROKEN)
    refused = board.run("systemctl", "reload", SERVICE, check=False)
    assert refused.status != 0
    assert any(lines_of(board.journal("-u", SERVICE), "max_batch_size")), "the journal does not say what is wrong"
    assert board.complete() == expected
    assert board.main_pid == main
    assert board.run("systemctl", "is-active", SERVICE).text.strip() == "active"


def test_a_broken_configuration_ends_the_start_once_and_mending_it_is_all_there_is_to_do(board: Board) -> None:
    board.write(CONFIG, BROKEN)
    assert board.run("systemctl", "restart", SERVICE, check=False).status != 0
    assert board.show(SERVICE, "ExecMainStatus") == "78"
    assert board.restarts == 0
    # A client that keeps waiting must not fail the socket for good.
    board.run("timeout", "8", "magnitude", "ps", check=False)
    assert board.run("systemctl", "is-active", SOCKET).text.strip() == "active"
    board.configure()
    board.run("systemctl", "start", SERVICE)
    board.wait_ready()
    assert board.complete()
