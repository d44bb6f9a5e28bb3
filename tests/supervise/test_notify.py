from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_manager import FakeManager
from magnitude.supervise.notify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[FakeManager]:
    with FakeManager(tmp_path / "notify") as listening:
        yield listening


def notifier_for(manager: FakeManager, **more: str) -> Notifier:
    return Notifier.from_environ({"NOTIFY_SOCKET": manager.address, **more})


def test_what_it_says_arrives_as_the_manager_reads_it(manager: FakeManager) -> None:
    notifier = notifier_for(manager)
    notifier.ready("model: idle")
    notifier.status("model: 2 running")
    notifier.watchdog()
    notifier.extend_timeout_s(1.5)
    notifier.stopping()
    assert manager.read() == [
        {"READY": "1", "STATUS": "model: idle"},
        {"STATUS": "model: 2 running"},
        {"WATCHDOG": "1"},
        {"EXTEND_TIMEOUT_USEC": "1500000"},
        {"STOPPING": "1", "STATUS": "stopping"},
    ]


def test_a_reload_carries_the_monotonic_time_by_which_the_manager_knows_it(manager: FakeManager) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier_for(manager).reloading()
    (message,) = manager.read()
    assert message["RELOADING"] == "1"
    assert before <= int(message["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_an_abstract_address_is_reached() -> None:
    with FakeManager(f"@magnitude-test-{os.getpid()}") as manager:
        notifier_for(manager).watchdog()
        assert manager.read() == [{"WATCHDOG": "1"}]


@pytest.mark.parametrize(
    "address", [None, "", "@", "vsock:2:1234", "vsock-stream:2:1", "relative/path", "/" + "x" * 120, "@" + "x" * 120]
)
def test_without_a_manager_that_can_be_reached_nothing_is_said_and_little_logged(
    address: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {} if address is None else {"NOTIFY_SOCKET": address}
    with caplog.at_level(logging.DEBUG):
        notifier = Notifier.from_environ({**environ, "WATCHDOG_USEC": "1000000"})
        notifier.ready("serving")
        notifier.watchdog()
        notifier.stopping()
        assert notifier.store("magnitude-kv", [0]) is False
        assert notifier.remove("magnitude-kv") is False
    assert (notifier.active, notifier.watchdog_s) == (False, None)
    assert len(caplog.records) <= 1
    assert all(record.levelno == logging.DEBUG for record in caplog.records)


def test_a_manager_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    notifier.ready("serving")
    assert notifier.status("serving") is False
    assert notifier.flush()


@pytest.mark.parametrize(
    ("usec", "pid", "watchdog_s"),
    [
        ("2000000", str(os.getpid()), 2.0),
        ("2000000", "", 2.0),
        ("2000000", "1", None),
        ("2000000", "x", None),
        ("0", "", None),
        ("-5", "", None),
        ("x", "", None),
        ("", "", None),
    ],
)
def test_the_watchdog_counts_only_when_it_is_meant_for_this_process(
    manager: FakeManager, usec: str, pid: str, watchdog_s: float | None
) -> None:
    assert notifier_for(manager, WATCHDOG_USEC=usec, WATCHDOG_PID=pid).watchdog_s == watchdog_s


def test_its_variables_are_taken_out_and_others_stay(manager: FakeManager) -> None:
    environ = {
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
        "MEMORY_PRESSURE_WATCH": "/x",
        "HOME": "/root",
    }
    Notifier.from_environ(environ)
    assert environ == {"MEMORY_PRESSURE_WATCH": "/x", "HOME": "/root"}


def test_stored_descriptors_arrive_open_and_under_their_name(manager: FakeManager) -> None:
    fds = [os.memfd_create("kv"), os.memfd_create("table")]
    os.write(fds[1], b"table of slots")
    notifier = notifier_for(manager)
    assert notifier.store("magnitude-kv", fds)
    for fd in fds:
        os.close(fd)
    assert notifier.remove("magnitude-kv")
    assert manager.read() == [
        {"FDSTORE": "1", "FDNAME": "magnitude-kv", "FDPOLL": "0"},
        {"FDSTOREREMOVE": "1", "FDNAME": "magnitude-kv"},
    ]
    assert [os.pread(fd, 64, 0) for fd in manager.fds] == [b"", b"table of slots"]


@pytest.mark.parametrize("name", ["", "a:b", "a\nREADY=1", "x" * 256, "k\u00e4se"])
def test_a_name_that_the_manager_cannot_take_is_an_error(manager: FakeManager, name: str) -> None:
    notifier = notifier_for(manager)
    with pytest.raises(ValueError, match="cannot name"):
        notifier.store(name, [0])
    with pytest.raises(ValueError, match="cannot name"):
        notifier.remove(name)
    assert manager.read() == []


def test_a_status_of_several_lines_cannot_say_anything_else(manager: FakeManager) -> None:
    notifier_for(manager).status("loading\nREADY=1\n" + "x" * 5000)
    (message,) = manager.read()
    assert list(message) == ["STATUS"]
    assert len(message["STATUS"]) < 1000


def test_a_manager_that_does_not_read_stops_nobody_and_learns_what_matters_later_in_order(
    manager: FakeManager,
) -> None:
    notifier = notifier_for(manager)
    sent = 0
    while notifier.status(f"{sent}"):  # until its queue is full
        sent += 1
        assert sent < 100_000
    notifier.reloading()
    notifier.watchdog()
    assert notifier.store("magnitude-kv", [0]) is False
    notifier.ready("serving again")
    notifier.stopping()
    assert not notifier.flush()
    assert [message["STATUS"] for message in manager.read()] == [str(number) for number in range(sent)]
    assert notifier.status("later")
    assert [next(iter(message)) for message in manager.read()] == ["RELOADING", "READY", "STOPPING", "STATUS"]


def test_its_socket_is_not_inherited_by_children(manager: FakeManager) -> None:
    count = [sys.executable, "-c", "import os; print(len(os.listdir('/proc/self/fd')))"]
    before = subprocess.run(count, close_fds=False, capture_output=True, check=True).stdout
    notifier = notifier_for(manager)
    assert subprocess.run(count, close_fds=False, capture_output=True, check=True).stdout == before
    notifier.close()
    assert not notifier.active
