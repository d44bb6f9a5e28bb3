from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude.config import ApiKey, ServerSettings
from magnitude.errors import ConfigError
from magnitude.intake.sockets import ListeningSocket, open_sockets

NO_TCP = ServerSettings(listen="")
KEY = ApiKey(name="k", sha256="0" * 64)


class Inherited:
    """Descriptors in a row, as a service manager leaves them behind."""

    def __init__(self, *socks: socket.socket) -> None:
        self.socks = socks
        self.first_fd = 700  # free in any test run
        for n, sock in enumerate(socks):
            os.dup2(sock.fileno(), self.first_fd + n, inheritable=True)

    def environ(self, **changes: str) -> dict[str, str]:
        base = {"LISTEN_FDS": str(len(self.socks)), "LISTEN_PID": str(os.getpid()), "HOME": "/root"}
        return {k: v for k, v in {**base, **changes}.items() if v != "(unset)"}

    def close(self) -> None:
        for n, sock in enumerate(self.socks):
            sock.close()
            with contextlib.suppress(OSError):
                os.close(self.first_fd + n)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Inherited]:
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "given.sock"))
    unix.listen()
    tcp = socket.create_server(("127.0.0.1", 0))
    inherited = Inherited(unix, tcp)
    yield inherited
    inherited.close()


def close(sockets: list[ListeningSocket]) -> None:
    for listening in sockets:
        listening.close()


def test_inherited_sockets_are_used_as_they_are(two: Inherited, tmp_path: Path) -> None:
    environ = two.environ(LISTEN_FDNAMES="api:metrics")
    sockets = open_sockets(ServerSettings(), environ, run_folder=tmp_path, first_fd=two.first_fd)
    assert [(s.name, s.inherited, s.sock.family) for s in sockets] == [
        ("api", True, socket.AF_UNIX),
        ("metrics", True, socket.AF_INET),
    ]
    assert not any(s.sock.get_inheritable() for s in sockets)
    assert environ == {"HOME": "/root"}
    assert not (tmp_path / "magnitude.sock").exists()
    close(sockets)
    assert (tmp_path / "given.sock").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"LISTEN_PID": "1"},
        {"LISTEN_PID": "(unset)"},
        {"LISTEN_PID": "x"},
        {"LISTEN_FDS": "0"},
        {"LISTEN_FDS": "x"},
        {"LISTEN_FDS": "-1"},
        {"LISTEN_FDS": "(unset)"},
        {"LISTEN_FDS": "9999999999"},
    ],
)
def test_variables_that_are_not_for_us_are_ignored_and_removed(
    two: Inherited, tmp_path: Path, changes: dict[str, str]
) -> None:
    environ = two.environ(**changes)
    sockets = open_sockets(NO_TCP, environ, run_folder=tmp_path, first_fd=two.first_fd)
    assert [s.inherited for s in sockets] == [False]
    assert environ == {"HOME": "/root"}
    close(sockets)


def test_a_descriptor_that_does_not_listen_is_left_out(tmp_path: Path) -> None:
    left, right = socket.socketpair()
    listening = socket.create_server(("127.0.0.1", 0))
    inherited = Inherited(left, listening)
    sockets = open_sockets(ServerSettings(), inherited.environ(), run_folder=tmp_path, first_fd=inherited.first_fd)
    assert [s.sock.family for s in sockets] == [socket.AF_INET]
    close(sockets)
    inherited.close()
    right.close()


def test_an_inherited_socket_beyond_loopback_needs_a_key(tmp_path: Path) -> None:
    inherited = Inherited(socket.create_server(("0.0.0.0", 0)))
    with pytest.raises(ConfigError, match="no API key"):
        open_sockets(ServerSettings(), inherited.environ(), run_folder=tmp_path, first_fd=inherited.first_fd)
    inherited.close()
    again = Inherited(socket.create_server(("0.0.0.0", 0)))
    server = ServerSettings(api_keys=[KEY])
    close(open_sockets(server, again.environ(), run_folder=tmp_path, first_fd=again.first_fd))
    again.close()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_listening_beyond_loopback_needs_a_key(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigError, match="no API key"):
        open_sockets(ServerSettings(listen=listen), {}, run_folder=tmp_path)
    assert not (tmp_path / "magnitude.sock").exists()


def test_the_unix_socket_has_its_configured_mode_and_goes_away_with_the_service(tmp_path: Path) -> None:
    server = ServerSettings(listen="", unix_socket_mode="0600")
    sockets = open_sockets(server, {}, run_folder=tmp_path)
    path = tmp_path / "magnitude.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    close(sockets)
    assert not path.exists()


def test_a_socket_file_of_a_dead_service_is_replaced(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "magnitude.sock"))
    dead.close()
    close(open_sockets(NO_TCP, {}, run_folder=tmp_path))


def test_a_socket_that_somebody_answers_is_left_alone(tmp_path: Path) -> None:
    first = open_sockets(NO_TCP, {}, run_folder=tmp_path)
    with pytest.raises(ConfigError, match="Another service"):
        open_sockets(NO_TCP, {}, run_folder=tmp_path)
    assert (tmp_path / "magnitude.sock").exists()
    close(first)


def test_a_file_in_the_sockets_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "magnitude.sock").write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        open_sockets(NO_TCP, {}, run_folder=tmp_path)
    assert (tmp_path / "magnitude.sock").read_text() == "precious"


def test_a_socket_file_that_another_service_made_meanwhile_is_not_removed(tmp_path: Path) -> None:
    first = open_sockets(NO_TCP, {}, run_folder=tmp_path)
    path = tmp_path / "magnitude.sock"
    # A second name keeps the old inode from being used again.
    path.rename(tmp_path / "old.sock")
    path.write_text("not ours")
    close(first)
    assert path.read_text() == "not ours"


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    busy = socket.create_server(("127.0.0.1", 0))
    listen = f"127.0.0.1:{busy.getsockname()[1]}"
    with pytest.raises(ConfigError, match="Cannot listen") as caught:
        open_sockets(ServerSettings(listen=listen, unix_socket=""), {}, run_folder=tmp_path)
    assert "uses the port" in caught.value.hint
    busy.close()


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "no.such.host.invalid:80"])
def test_an_address_that_is_none_is_a_clear_error(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigError):
        open_sockets(ServerSettings(listen=listen, unix_socket=""), {}, run_folder=tmp_path)


def test_nothing_to_listen_on_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to listen"):
        open_sockets(ServerSettings(listen="", unix_socket=""), {}, run_folder=tmp_path)


def test_an_unknown_group_is_a_clear_error(tmp_path: Path) -> None:
    server = ServerSettings(listen="", unix_socket_group="no-such-group-here")
    with pytest.raises(ConfigError, match="no group"):
        open_sockets(server, {}, run_folder=tmp_path)


def test_a_folder_that_cannot_be_made_for_the_socket_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made") as caught:
        open_sockets(NO_TCP, {}, run_folder=tmp_path / "file" / "run")
    assert caught.value.hint
