"""The real libudev and the real kernel, as far as this machine lets a test."""

from __future__ import annotations

import os
import select
import socket
import threading
from pathlib import Path

import pytest
from fake_udev import until
from fake_udevd import announce

from kernel_trees import write_tree
from magnitude.board.event_source import Feed, UdevSource, Unavailable
from magnitude.board.events import DeviceEvent, DeviceEvents

# Writing an action to this file makes the kernel announce it, and changes nothing else.
UEVENT = Path("/sys/devices/system/cpu/cpu0/uevent")

needs_uevents = pytest.mark.skipif(
    not os.access(UEVENT, os.W_OK), reason="making the kernel announce a device needs root and a writable /sys"
)


def test_a_machine_without_udev_says_so(tmp_path: Path) -> None:
    opened = UdevSource(run=tmp_path / "udev").open(1 << 20)
    assert isinstance(opened, Unavailable)
    assert "udev does not run here" in opened.reason


def test_devices_are_listed_below_the_roots_that_are_given(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {"sys/class/thermal/thermal_zone0/uevent": ""})
    assert [device.name for device in UdevSource(roots).devices()] == ["thermal_zone0"]


class SmallAtFirst(UdevSource):
    """The first connection's buffer holds two or three events."""

    opened = 0

    def open(self, buffer_bytes: int) -> Feed | Unavailable:
        feed = super().open(buffer_bytes)
        assert not isinstance(feed, Unavailable)
        self.opened += 1
        if self.opened == 1:
            with socket.socket(fileno=os.dup(feed.fileno())) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return feed


@needs_uevents
def test_the_kernels_own_overflow_is_survived() -> None:
    heard: list[DeviceEvent] = []
    held, let_go = threading.Event(), threading.Event()

    def hear(event: DeviceEvent) -> None:
        heard.append(event)
        held.set()
        let_go.wait()

    source = SmallAtFirst(stage="kernel")
    events = DeviceEvents(lambda: source, hear)
    events.start()
    try:
        until(lambda: events.state.listening)
        UEVENT.write_text("change")
        until(held.is_set)
        for _ in range(200):
            UEVENT.write_text("change")
        let_go.set()
        until(lambda: source.opened == 2 and events.state.listening)
        assert events.state.overflows == 1
        before = len(heard)
        UEVENT.write_text("change")
        until(lambda: len(heard) > before)
        last = heard[-1]
        assert (last.action, last.subsystem, last.name) == ("change", "cpu", "cpu0")
        assert last.path == "/devices/system/cpu/cpu0"
    finally:
        let_go.set()
        events.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="libudev believes root only, so the fake of its daemon has to be root")
def test_what_udev_announces_is_heard_and_the_rest_wakes_nobody(tmp_path: Path) -> None:
    feed = UdevSource(run=tmp_path).open(1 << 20)
    if isinstance(feed, Unavailable):
        pytest.skip(f"libudev listens to nothing in this container: {feed.reason}")
    poll = select.poll()
    poll.register(feed.fileno(), select.POLLIN)
    announce("add", "/devices/virtual/net/lo", "net")
    announce("change", "/devices/virtual/mem/null", "mem")
    assert poll.poll(0) == []
    announce("offline", "/devices/system/cpu/cpu0", "cpu")
    assert poll.poll(20_000)
    assert feed.receive() == DeviceEvent(
        action="offline",
        subsystem="cpu",
        name="cpu0",
        path="/devices/system/cpu/cpu0",
        properties={"ONLINE": "0"},
    )
    assert feed.receive() is None
    feed.close()


@needs_uevents
def test_a_wish_for_a_buffer_never_makes_it_smaller() -> None:
    feed = UdevSource(stage="kernel").open(4096)
    assert not isinstance(feed, Unavailable)
    with socket.socket(fileno=os.dup(feed.fileno())) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 2 * 4096
    feed.close()
