from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude.config import ApiKey, ServerSettings
from magnitude.errors import ConfigError
from magnitude.intake.sockets import ListeningSocket, open_sockets, refuse_open_doors
from magnitude.supervise.inherited import InheritedFd

NO_TCP = ServerSettings(listen="")
KEY = ApiKey(name="k", sha256="0" * 64)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[InheritedFd]]:
    """A unix socket `api` and a TCP socket `metrics`, as a service manager leaves them behind."""
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "given.sock"))
    unix.listen()
    tcp = socket.create_server(("127.0.0.1", 0))
    yield [InheritedFd("api", unix.detach()), InheritedFd("metrics", tcp.detach())]


def close(sockets: list[ListeningSocket]) -> None:
    for listening in sockets:
        listening.close()


def test_inherited_sockets_are_used_as_they_are_and_outlive_us(two: list[InheritedFd], tmp_path: Path) -> None:
    sockets = open_sockets(ServerSettings(), two, run_folder=tmp_path)
    assert [(s.name, s.inherited, s.sock.family) for s in sockets] == [
        ("api", True, socket.AF_UNIX),
        ("metrics", True, socket.AF_INET),
    ]
    assert not (tmp_path / "magnitude.sock").exists()
    close(sockets)
    assert (tmp_path / "given.sock").exists()


def test_configured_addresses_that_inherited_sockets_replace_are_named_once(
    two: list[InheritedFd], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = ServerSettings(listen="127.0.0.1:1", unix_socket=str(tmp_path / "mine.sock"))
    with caplog.at_level(logging.INFO):
        close(open_sockets(server, two, run_folder=tmp_path))
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    fields = record.fields  # type: ignore[attr-defined]
    assert fields["not_bound"] == f"http://127.0.0.1:1, unix:{tmp_path / 'mine.sock'}"
    assert f"unix:{tmp_path / 'given.sock'}" in fields["served"]
    assert not (tmp_path / "mine.sock").exists()


def test_nothing_is_said_when_the_inherited_sockets_are_the_configured_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tcp = socket.create_server(("127.0.0.1", 0))
    port = tcp.getsockname()[1]
    with caplog.at_level(logging.INFO):
        for host in ("127.0.0.1", "localhost"):
            inherited = [InheritedFd("api", os.dup(tcp.fileno()))]
            close(open_sockets(ServerSettings(listen=f"{host}:{port}"), inherited, run_folder=tmp_path))
    assert caplog.records == []
    tcp.close()


def test_a_descriptor_that_does_not_listen_is_left_out(tmp_path: Path) -> None:
    left, right = socket.socketpair()
    listening = socket.create_server(("127.0.0.1", 0))
    memory = os.memfd_create("kv")
    inherited = [
        InheritedFd("magnitude-kv", memory),
        InheritedFd("pair", left.fileno()),
        InheritedFd("api", listening.detach()),
    ]
    sockets = open_sockets(ServerSettings(), inherited, run_folder=tmp_path)
    assert [s.name for s in sockets] == ["api"]
    close(sockets)
    os.close(memory)  # still open
    left.close()
    right.close()


def test_an_inherited_socket_beyond_loopback_needs_a_key(tmp_path: Path) -> None:
    def inherited() -> list[InheritedFd]:
        return [InheritedFd("lan", socket.create_server(("0.0.0.0", 0)).detach())]

    with pytest.raises(ConfigError, match="no API key"):
        open_sockets(ServerSettings(), inherited(), run_folder=tmp_path)
    sockets = open_sockets(ServerSettings(api_keys=[KEY]), inherited(), run_folder=tmp_path)
    refuse_open_doors(sockets, ServerSettings(api_keys=[KEY]))
    with pytest.raises(ConfigError, match="no API key"):
        refuse_open_doors(sockets, ServerSettings())
    close(sockets)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_listening_beyond_loopback_needs_a_key(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigError, match="no API key"):
        open_sockets(ServerSettings(listen=listen), [], run_folder=tmp_path)
    assert not (tmp_path / "magnitude.sock").exists()


def test_the_unix_socket_has_its_configured_mode_and_goes_away_with_the_service(tmp_path: Path) -> None:
    server = ServerSettings(listen="", unix_socket_mode="0600")
    sockets = open_sockets(server, [], run_folder=tmp_path)
    path = tmp_path / "magnitude.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    close(sockets)
    assert not path.exists()


def test_a_socket_file_of_a_dead_service_is_replaced(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "magnitude.sock"))
    dead.close()
    close(open_sockets(NO_TCP, [], run_folder=tmp_path))


def test_a_socket_that_somebody_answers_is_left_alone(tmp_path: Path) -> None:
    first = open_sockets(NO_TCP, [], run_folder=tmp_path)
    with pytest.raises(ConfigError, match="Another service"):
        open_sockets(NO_TCP, [], run_folder=tmp_path)
    assert (tmp_path / "magnitude.sock").exists()
    close(first)


def test_a_file_in_the_sockets_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "magnitude.sock").write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        open_sockets(NO_TCP, [], run_folder=tmp_path)
    assert (tmp_path / "magnitude.sock").read_text() == "precious"


def test_a_socket_file_that_another_service_made_meanwhile_is_not_removed(tmp_path: Path) -> None:
    first = open_sockets(NO_TCP, [], run_folder=tmp_path)
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
        open_sockets(ServerSettings(listen=listen, unix_socket=""), [], run_folder=tmp_path)
    assert "uses the port" in caught.value.hint
    busy.close()


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "no.such.host.invalid:80"])
def test_an_address_that_is_none_is_a_clear_error(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigError):
        open_sockets(ServerSettings(listen=listen, unix_socket=""), [], run_folder=tmp_path)


def test_nothing_to_listen_on_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to listen"):
        open_sockets(ServerSettings(listen="", unix_socket=""), [], run_folder=tmp_path)


def test_an_unknown_group_is_a_clear_error(tmp_path: Path) -> None:
    server = ServerSettings(listen="", unix_socket_group="no-such-group-here")
    with pytest.raises(ConfigError, match="no group"):
        open_sockets(server, [], run_folder=tmp_path)


def test_a_folder_that_cannot_be_made_for_the_socket_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made") as caught:
        open_sockets(NO_TCP, [], run_folder=tmp_path / "file" / "run")
    assert caught.value.hint
