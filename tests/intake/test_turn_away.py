from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude.errors import ConfigError
from magnitude.intake.turn_away import turning_away

REQUEST = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(params=["tcp", "unix"])
def listening(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    if request.param == "tcp":
        sock = socket.create_server(("127.0.0.1", 0))
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(tmp_path_factory.mktemp("s") / "s"))
        sock.listen()
    with sock:
        yield sock


def client_of(listening: socket.socket) -> socket.socket:
    client = socket.socket(listening.family)
    client.settimeout(10)
    client.connect(listening.getsockname())
    return client


def fail(listening: socket.socket) -> None:
    with pytest.raises(ConfigError, match="unknown key"), turning_away([listening.fileno()]):
        raise ConfigError("unknown key 'nonsense'")


def everything(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


def test_everybody_who_waits_learns_that_the_service_cannot_start(listening: socket.socket) -> None:
    clients = [client_of(listening) for _ in range(5)]
    for client in clients:
        client.sendall(REQUEST)
    fail(listening)
    for client in clients:
        with client:
            head, _, body = everything(client).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert json.loads(body)["error"]["code"] == "config_invalid"


def test_what_is_wrong_is_not_told_to_strangers(listening: socket.socket) -> None:
    with client_of(listening) as client:
        client.sendall(REQUEST)
        fail(listening)
        assert b"nonsense" not in everything(client)


def test_no_connection_is_left_that_would_start_the_service_again(listening: socket.socket) -> None:
    gone, silent = client_of(listening), client_of(listening)
    gone.close()
    fail(listening)
    listening.setblocking(False)
    with silent, pytest.raises(BlockingIOError):
        listening.accept()


def test_the_sockets_stay_open_for_the_next_start(listening: socket.socket) -> None:
    fail(listening)
    with client_of(listening) as client:
        assert listening.accept()[0]
        assert client


def test_other_ends_leave_those_who_wait_to_the_next_start(listening: socket.socket) -> None:
    with client_of(listening), pytest.raises(RuntimeError), turning_away([listening.fileno()]):
        raise RuntimeError
    listening.setblocking(False)
    assert listening.accept()[0]


def test_a_descriptor_that_does_not_listen_is_passed_over(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    with one, other:
        fail(one)
        one.sendall(b"x")
        assert other.recv(1) == b"x"
