from __future__ import annotations

import resource
import select
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from fake_udev import FakeUdev, added, device, until

from magnitude.board.event_recovery import FIRST_BUFFER_BYTES, RecoveryTimes
from magnitude.board.events import DeviceEvent, DeviceEvents

CAMERA = device("camera", "video4linux")
NPU = device("npu", "accel")
BATTERY = device("battery", "power_supply", POWER_SUPPLY_STATUS="Charging")

# With events, a look that finds what nobody told would hide a fault: it comes once an hour.
QUICK = RecoveryTimes(look_s=0.02, look_anyway_s=3600.0, retry_s=0.01, retry_most_s=0.05, healthy_s=3600.0)


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "device-events"]


class Board:
    def __init__(self) -> None:
        self.udev = FakeUdev()
        self.heard: list[DeviceEvent] = []
        self.on_event: Callable[[DeviceEvent], None] = self.heard.append
        self.ahead_s = 0.0
        self.events = DeviceEvents(
            self.udev.source,
            lambda event: self.on_event(event),
            clock=lambda: time.monotonic() + self.ahead_s,
            times=QUICK,
        )

    def start(self) -> None:
        self.events.start()
        until(lambda: self.udev.seen)

    def hears(self, *names: tuple[str, str]) -> None:
        until(lambda: len(self.heard) >= len(names))
        assert [(event.action, event.name) for event in self.heard] == list(names)


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board()
    yield board
    board.events.stop()
    until(lambda: not listeners())


def test_what_is_plugged_in_is_told(board: Board) -> None:
    board.udev.there = [NPU]
    board.start()
    board.udev.plug(CAMERA)
    board.hears(("add", "camera"))
    assert not board.heard[0].found
    assert board.events.state.listening


def test_devices_that_are_there_at_first_are_no_news(board: Board) -> None:
    board.udev.there = [NPU, BATTERY]
    board.start()
    board.udev.plug(CAMERA)
    board.hears(("add", "camera"))


def test_after_an_overflow_what_was_missed_is_found_with_a_larger_buffer(board: Board) -> None:
    board.udev.there = [NPU, BATTERY]
    board.start()
    board.udev.there = [device("battery", "power_supply", POWER_SUPPLY_STATUS="Discharging"), CAMERA]
    board.udev.overflow()
    board.hears(("remove", "npu"), ("add", "camera"), ("change", "battery"))
    assert all(event.found for event in board.heard)
    assert board.udev.buffers == [FIRST_BUFFER_BYTES, 2 * FIRST_BUFFER_BYTES]
    assert board.events.state.overflows == 1
    board.udev.plug(device("stick"))
    until(lambda: len(board.heard) == 4)
    assert board.heard[-1].name == "stick"


def test_a_connection_that_ends_is_replaced(board: Board) -> None:
    board.start()
    board.udev.there = [CAMERA]
    board.udev.hang_up()
    board.hears(("add", "camera"))
    assert board.heard[0].found
    board.udev.plug(NPU)
    board.hears(("add", "camera"), ("add", "npu"))
    assert not board.heard[1].found


def test_an_error_of_the_socket_beside_data_does_not_end_the_events(board: Board) -> None:
    board.start()
    board.udev.break_off()
    until(lambda: len(board.udev.ends) == 2 and board.events.state.listening)
    board.udev.plug(CAMERA)
    until(lambda: "camera" in {event.name for event in board.heard})
    assert board.events.state.faults == 1


def test_the_fake_shows_the_error_beside_data() -> None:
    udev = FakeUdev()
    feed = udev.open(FIRST_BUFFER_BYTES)
    udev.break_off()
    poll = select.poll()
    poll.register(feed.fileno(), select.POLLIN)  # type: ignore[union-attr]
    ((_, mask),) = poll.poll(1000)
    assert mask & select.POLLERR
    assert mask & select.POLLIN


def test_a_source_that_cannot_be_opened_at_first_is_tried_again(board: Board) -> None:
    board.udev.refuses = 3
    board.start()
    until(lambda: board.events.state.listening)
    board.udev.plug(CAMERA)
    board.hears(("add", "camera"))


def test_a_handler_that_fails_misses_nothing_else(board: Board) -> None:
    def fail(event: DeviceEvent) -> None:
        board.heard.append(event)
        if event.name == "npu":
            raise ValueError("no such accelerator")

    board.on_event = fail
    board.start()
    board.udev.plug(NPU)
    board.udev.plug(CAMERA)
    board.hears(("add", "npu"), ("add", "camera"))
    assert board.events.state.callback_errors == 1
    assert len(board.udev.ends) == 1


def test_without_udev_devices_are_looked_for(board: Board) -> None:
    board.udev.unavailable = "udev does not run here"
    board.start()
    board.udev.there = [CAMERA]
    board.hears(("add", "camera"))
    board.udev.there = []
    board.hears(("add", "camera"), ("remove", "camera"))
    state = board.events.state
    assert (state.listening, state.reason, state.found) == (False, "udev does not run here", 2)


def test_udev_that_comes_later_is_listened_to(board: Board) -> None:
    board.udev.unavailable = "udev does not run here"
    board.start()
    board.udev.unavailable = ""
    until(lambda: board.events.state.listening)
    board.udev.plug(CAMERA)
    board.hears(("add", "camera"))
    assert board.events.state.reason == ""


def test_a_look_that_fails_ends_nothing(board: Board) -> None:
    def fail() -> None:
        raise OSError("sysfs is not mounted")

    board.udev.look = fail
    board.events.start()
    until(lambda: board.events.state.faults > 1)
    board.udev.plug(CAMERA)
    board.hears(("add", "camera"))
    assert len(board.udev.ends) == 1
    board.udev.look = lambda: None
    until(lambda: board.udev.seen)
    board.udev.there = [NPU]
    board.udev.overflow()
    until(lambda: len(board.heard) == 3)
    assert {(event.action, event.name) for event in board.heard[1:]} == {("remove", "camera"), ("add", "npu")}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_is_replaced_and_what_came_meanwhile_is_found(board: Board) -> None:
    def end(event: DeviceEvent) -> None:
        raise SystemExit

    board.on_event = end
    board.udev.there = [NPU]
    board.start()
    until(lambda: board.events.state.listening)
    board.udev.plug(BATTERY)
    until(lambda: not listeners())
    board.on_event = board.heard.append
    board.udev.there = [BATTERY, CAMERA]
    board.events.ensure_alive()
    board.hears(("remove", "npu"), ("add", "camera"))
    assert board.events.state.threads == 1
    assert len(board.udev.ends) == 2


def test_a_thread_that_hangs_is_replaced_by_one_and_not_by_more(board: Board) -> None:
    let_go, stuck = threading.Event(), threading.Event()

    def hang(event: DeviceEvent) -> None:
        if event.name == "npu":
            stuck.set()
            let_go.wait()
        else:
            board.heard.append(event)

    board.on_event = hang
    board.start()
    board.udev.plug(NPU)
    until(stuck.is_set)
    try:
        board.events.ensure_alive()
        assert board.events.state.threads == 0
        board.ahead_s += 6.0
        board.events.ensure_alive()
        assert board.events.state.threads == 1
        until(lambda: board.events.state.listening)
        board.udev.plug(CAMERA)
        board.hears(("add", "camera"))
        stuck.clear()
        board.udev.tell(added(NPU))
        until(stuck.is_set)
        board.ahead_s += 6.0
        board.events.ensure_alive()
        assert board.events.state.threads == 1
    finally:
        let_go.set()


def test_a_driver_that_never_answers_costs_the_looks_and_not_the_events(board: Board) -> None:
    let_go, stuck = threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        let_go.wait()

    board.udev.look = hang
    board.events.start()
    until(stuck.is_set)
    try:
        board.ahead_s += 6.0
        board.events.ensure_alive()
        until(lambda: len(board.udev.ends) == 2 and board.events.state.listening)
        board.udev.plug(CAMERA)
        board.hears(("add", "camera"))
        assert board.udev.looks == 1
    finally:
        let_go.set()
    until(lambda: len(listeners()) == 1)
    board.udev.look = lambda: None
    board.udev.overflow()
    until(lambda: board.udev.seen > 1)


def test_where_no_thread_can_be_had_one_is_started_later(board: Board) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        board.events.start()
        board.events.ensure_alive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not board.events.state.listening
    board.events.ensure_alive()
    until(lambda: board.events.state.listening)
    board.udev.plug(CAMERA)
    board.hears(("add", "camera"))


def test_a_thread_that_is_well_is_left_alone(board: Board) -> None:
    board.start()
    for _ in range(20):
        board.events.ensure_alive()
        board.udev.plug(CAMERA)
    until(lambda: len(board.heard) == 20)
    assert board.events.state.threads == 0


def test_after_the_stop_nothing_is_handed_on(board: Board) -> None:
    board.start()
    board.events.stop()
    until(lambda: not listeners())
    assert board.udev.feeds[-1].socket.fileno() == -1
    board.udev.ends[-1].close()
    assert board.heard == []
    board.events.ensure_alive()
    assert board.events.state.reason == "not started"


def test_a_burst_of_events_is_handed_on_in_its_order(board: Board) -> None:
    board.start()
    sticks = [device(f"stick{number}") for number in range(300)]
    for stick in sticks:
        board.udev.ends[-1].setblocking(True)
        board.udev.plug(stick)
    until(lambda: len(board.heard) == 300)
    assert [event.name for event in board.heard] == [stick.name for stick in sticks]
