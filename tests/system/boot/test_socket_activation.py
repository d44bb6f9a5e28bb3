"""The sockets belong to systemd: they are there before the service, and while it starts anew."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from booted_board import SERVICE, SOCKET, Board

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def board(root: Path) -> Iterator[Board]:
    with Board(root) as board:
        board.wait_ready()
        yield board


def test_the_first_connection_starts_a_stopped_service(board: Board) -> None:
    board.run("systemctl", "stop", SERVICE)
    assert board.run("systemctl", "is-active", SERVICE, SOCKET, check=False).text.split() == ["inactive", "active"]
    assert board.complete()
    board.wait_ready()


def test_clients_that_connect_during_restarts_are_all_served(board: Board) -> None:
    board.wait_ready()
    expected = board.complete()
    over = threading.Event()
    answers: list[str] = []
    failures: list[str] = []

    def ask() -> None:
        while not over.is_set():
            try:
                answers.append(board.complete())
            except Exception as error:  # whatever a client would see
                failures.append(repr(error))

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    for _ in range(2):
        board.run("systemctl", "restart", SERVICE)
    over.set()
    for client in clients:
        client.join()
    assert failures == []
    assert set(answers) == {expected}


def test_stopping_the_socket_too_leaves_no_listener_behind(board: Board) -> None:
    board.run("systemctl", "stop", SOCKET, SERVICE)
    listening = board.run("cat", "/proc/net/unix").text
    assert "magnitude.sock" not in listening
    board.run("systemctl", "start", SERVICE)
    board.wait_ready()
    assert board.run("systemctl", "is-active", SOCKET).text.strip() == "active"
