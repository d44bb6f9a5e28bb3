"""Real descriptors on a real event loop: pipes, sockets and urgent data stand for the kernel's trigger."""

from __future__ import annotations

import asyncio
import base64
import os
import select
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kernel_trees import write_tree
from magnitude.board.roots import HostRoots
from magnitude.supervise.pressure_watch import DEAF_S, PressureWatch

PATIENCE_S = 10 * DEAF_S


class Alarms:
    def __init__(self, roots: HostRoots, environ: dict[str, str]) -> None:
        self.count = 0
        self._came = asyncio.Event()
        self.environ = environ
        self.watch = PressureWatch(self._alarm, roots=roots, environ=environ)

    def _alarm(self) -> None:
        self.count += 1
        self._came.set()

    async def one(self) -> None:
        await asyncio.wait_for(self._came.wait(), PATIENCE_S)
        self._came.clear()


def run(roots: HostRoots, environ: dict[str, str], body: Callable[[Alarms], Awaitable[None]]) -> None:
    async def main() -> None:
        alarms = Alarms(roots, environ)
        try:
            await body(alarms)
        finally:
            alarms.watch.close()

    asyncio.run(main())


@pytest.fixture
def blind(tmp_path: Path) -> HostRoots:
    """A kernel without pressure stall information."""
    return write_tree(tmp_path / "kernel", {"proc/self/cgroup": "0::/"})


def test_a_pipe_that_systemd_names_is_written_to_and_every_word_in_it_is_an_alarm(
    tmp_path: Path, blind: HostRoots
) -> None:
    pipe = tmp_path / "pressure"
    os.mkfifo(pipe)
    other_end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    environ = {
        "MEMORY_PRESSURE_WATCH": str(pipe),
        "MEMORY_PRESSURE_WRITE": base64.b64encode(b"some 200000 2000000\0").decode(),
        "PATH": "/bin",
    }

    async def body(alarms: Alarms) -> None:
        assert alarms.environ == {"PATH": "/bin"}
        alarms.watch.start()
        assert alarms.watch.source == "systemd"
        for _ in range(2):  # what it wrote itself comes back from a pipe, and what is written then
            await alarms.one()
            os.write(other_end, b"x")
        await alarms.one()

    try:
        run(blind, environ, body)
    finally:
        os.close(other_end)


def test_a_socket_that_systemd_names_alarms_until_its_other_end_is_gone(tmp_path: Path, blind: HostRoots) -> None:
    path = tmp_path / "pressure.sock"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()
    environ = {"MEMORY_PRESSURE_WATCH": str(path), "MEMORY_PRESSURE_WRITE": base64.b64encode(b"hello").decode()}

    async def body(alarms: Alarms) -> None:
        alarms.watch.start()
        peer, _ = server.accept()
        assert peer.recv(100) == b"hello"
        peer.send(b"x")
        await alarms.one()
        peer.close()
        for _ in range(100):
            if alarms.watch.source == "none":
                break
            await asyncio.sleep(PATIENCE_S / 100)
        assert alarms.watch.source == "none"
        assert alarms.count == 1

    with server:
        run(blind, environ, body)


def test_urgent_events_reach_the_loop_and_one_that_never_ends_does_not_keep_it_busy(blind: HostRoots) -> None:
    async def body(alarms: Alarms) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            sender = socket.create_connection(server.getsockname())
            receiver, _ = server.accept()
            with sender, receiver:
                alarms.watch.watch(receiver.fileno(), select.EPOLLPRI)
                sender.send(b"plain")
                await asyncio.sleep(0.05)
                assert alarms.count == 0
                sender.send(b"!", socket.MSG_OOB)
                await alarms.one()
                # Nobody reads the urgent byte, so the event stays.
                await asyncio.sleep(DEAF_S / 2)
                assert alarms.count == 1
                await alarms.one()
                alarms.watch.close()

    run(blind, {}, body)


def test_the_null_device_means_that_nobody_is_to_be_told(tmp_path: Path) -> None:
    async def body(alarms: Alarms) -> None:
        alarms.watch.start()
        assert alarms.watch.source == "none"

    run(HostRoots(), {"MEMORY_PRESSURE_WATCH": "/dev/null"}, body)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"MEMORY_PRESSURE_WATCH": "/nowhere"},
        {"MEMORY_PRESSURE_WATCH": "/tmp"},
        {"MEMORY_PRESSURE_WATCH": "/proc/pressure/memory", "MEMORY_PRESSURE_WRITE": "not base64!"},
    ],
)
def test_what_cannot_be_watched_leaves_looking_now_and_then(blind: HostRoots, environ: dict[str, str]) -> None:
    async def body(alarms: Alarms) -> None:
        alarms.watch.start()
        assert alarms.watch.source == "none"

    run(blind, dict(environ), body)


def test_a_file_that_is_not_the_kernels_is_not_written_to(tmp_path: Path) -> None:
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0"
    roots = write_tree(tmp_path, {"proc/self/cgroup": "0::/", "proc/pressure/memory": text})

    async def body(alarms: Alarms) -> None:
        alarms.watch.start()
        assert alarms.watch.source == "none"

    run(roots, {}, body)
    assert (tmp_path / "proc/pressure/memory").read_text() == f"{text}\n"


def test_a_group_without_a_trigger_falls_back_to_the_board(tmp_path: Path) -> None:
    tree = {
        "proc/self/cgroup": "0::/magnitude.service",
        "proc/pressure/memory": "",
        "sys/fs/cgroup/magnitude.service/cgroup.procs": "1",
    }
    roots = write_tree(tmp_path, tree)
    (tmp_path / "proc/pressure/memory").unlink()
    os.mkfifo(tmp_path / "proc/pressure/memory")

    async def body(alarms: Alarms) -> None:
        alarms.watch.start()
        assert alarms.watch.source == "board"
        await alarms.one()

    run(roots, {}, body)
