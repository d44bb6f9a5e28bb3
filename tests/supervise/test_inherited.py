from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude.supervise.inherited import InheritedFd, take_inherited


class HandedOver:
    """Descriptors in a row, as a service manager leaves them behind: a listening socket, memory, memory."""

    def __init__(self) -> None:
        # Free, and so are the next ones: other tests may have left descriptors open.
        self.first_fd = 16 + max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        listening = socket.create_server(("127.0.0.1", 0))
        for number, fd in enumerate((listening.detach(), os.memfd_create("kv"), os.memfd_create("table"))):
            os.dup2(fd, self.first_fd + number, inheritable=True)
            os.close(fd)

    def environ(self, **changes: str) -> dict[str, str]:
        base = {"LISTEN_FDS": "3", "LISTEN_PID": str(os.getpid()), "LISTEN_PIDFDID": "7", "HOME": "/root"}
        return {name: value for name, value in {**base, **changes}.items() if value != "(unset)"}


@pytest.fixture
def given() -> Iterator[HandedOver]:
    handed_over = HandedOver()
    yield handed_over
    for number in range(3):
        with contextlib.suppress(OSError):
            os.close(handed_over.first_fd + number)


def test_sockets_and_stored_descriptors_come_by_name_and_stay_with_us(given: HandedOver) -> None:
    environ = given.environ(LISTEN_FDNAMES="magnitude.socket:magnitude-kv:magnitude-table")
    found = take_inherited(environ, given.first_fd)
    assert found == [
        InheritedFd("magnitude.socket", given.first_fd),
        InheritedFd("magnitude-kv", given.first_fd + 1),
        InheritedFd("magnitude-table", given.first_fd + 2),
    ]
    assert [one.is_socket for one in found] == [True, False, False]
    assert not any(os.get_inheritable(one.fd) for one in found)
    assert environ == {"HOME": "/root"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("(unset)", ["fd{0}", "fd{1}", "fd{2}"]),
        ("api", ["api", "fd{1}", "fd{2}"]),
        ("api::x", ["api", "fd{1}", "x"]),
        ("a:b:c:d:e", ["a", "b", "c"]),
    ],
)
def test_names_that_are_missing_are_made_up(given: HandedOver, names: str, expected: list[str]) -> None:
    found = take_inherited(given.environ(LISTEN_FDNAMES=names), given.first_fd)
    numbers = range(given.first_fd, given.first_fd + 3)
    assert [one.name for one in found] == [name.format(*numbers) for name in expected]


@pytest.mark.parametrize(
    "changes",
    [
        {"LISTEN_PID": "1"},
        {"LISTEN_PID": "(unset)"},
        {"LISTEN_PID": "x"},
        {"LISTEN_FDS": "0"},
        {"LISTEN_FDS": "x"},
        {"LISTEN_FDS": "-1"},
        {"LISTEN_FDS": "\u0663"},
        {"LISTEN_FDS": "(unset)"},
        {"LISTEN_FDS": "9999999999"},
    ],
)
def test_variables_that_are_not_for_us_are_ignored_and_removed(given: HandedOver, changes: dict[str, str]) -> None:
    environ = given.environ(**changes)
    assert take_inherited(environ, given.first_fd) == []
    assert environ == {"HOME": "/root"}


def test_a_descriptor_that_is_not_open_costs_only_itself(given: HandedOver, caplog: pytest.LogCaptureFixture) -> None:
    os.close(given.first_fd + 1)
    with caplog.at_level(logging.WARNING):
        found = take_inherited(given.environ(LISTEN_FDNAMES="a:b:c"), given.first_fd)
    assert [(one.name, one.fd) for one in found] == [("a", given.first_fd), ("c", given.first_fd + 2)]
    assert [record.fields["fd"] for record in caplog.records] == [given.first_fd + 1]  # type: ignore[attr-defined]
