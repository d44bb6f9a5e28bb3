from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.board.event_recovery import (
    FIRST_BUFFER_BYTES,
    MOST_BUFFER_BYTES,
    Close,
    Fault,
    Look,
    Open,
    Recovery,
    RecoveryTimes,
)

TIMES = RecoveryTimes()
faults: st.SearchStrategy[Fault] = st.sampled_from(["overflow", "died", "unavailable"])
# How an attempt to connect ends (None: well), for how long what was opened then works, and how it ends.
attempts = st.lists(st.tuples(st.one_of(st.none(), faults), st.floats(0, 400), faults), max_size=40)
Attempt = tuple[Fault | None, float, Fault]


class Simulation:
    """Carries the effects out, in no time."""

    def __init__(self, course: list[Attempt]) -> None:
        self.recovery = Recovery(TIMES)
        self.course = list(course)
        self.now_s = 0.0
        self.fails: tuple[float, Fault] | None = None
        self.opens: list[tuple[float, int, bool]] = []
        self.looks: list[tuple[float, bool]] = []
        self.gaps_s: list[float] = []  # since a fault, until the next look
        self.gap_since_s: float | None = None
        self.is_open = False

    def run(self, until_s: float) -> None:
        while self.now_s <= until_s:
            self.step()

    def step(self) -> None:
        while effects := self.recovery.due(self.now_s):
            for effect in effects:
                self.do(effect)
        wait_s = self.recovery.wait_s(self.now_s)
        if self.fails is not None and self.now_s + wait_s >= self.fails[0]:
            at_s, fault = self.fails
            self.now_s, self.fails = max(self.now_s, at_s), None
            self.gap_since_s = self.now_s
            for effect in self.recovery.failed(fault, self.now_s):
                self.do(effect)
        else:
            self.now_s += wait_s

    def do(self, effect: object) -> None:
        match effect:
            case Open(buffer_bytes):
                assert not self.is_open
                outcome, works_s, ends = self.course.pop(0) if self.course else (None, 1e9, "died")
                self.opens.append((self.now_s, buffer_bytes, outcome is None))
                if outcome is None:
                    self.is_open = True
                    self.fails = (self.now_s + works_s, ends)
                    self.recovery.opened(self.now_s)
                else:
                    self.recovery.failed(outcome, self.now_s)
            case Close():
                assert self.is_open
                self.is_open = False
            case Look():
                self.looks.append((self.now_s, self.is_open))
                self.recovery.looked(self.now_s)
                if self.gap_since_s is not None:
                    self.gaps_s.append(self.now_s - self.gap_since_s)
                    self.gap_since_s = None


def after(course: list[Attempt]) -> Simulation:
    simulation = Simulation(course)
    simulation.run(40 * (400 + TIMES.retry_most_s) + 1000)
    return simulation


@given(attempts)
@settings(max_examples=100)
def test_each_connection_is_followed_by_a_look_at_once(course: list[Attempt]) -> None:
    simulation = after(course)
    for at_s, _, opened in simulation.opens:
        if opened:
            assert (at_s, True) in simulation.looks


@given(attempts)
@settings(max_examples=100)
def test_what_came_in_a_gap_is_found_within_the_time_of_a_look(course: list[Attempt]) -> None:
    assert all(gap_s <= TIMES.look_s + 1e-6 for gap_s in after(course).gaps_s)


@given(attempts)
@settings(max_examples=100)
def test_without_events_devices_are_looked_for_all_the_time(course: list[Attempt]) -> None:
    simulation = after(course)
    times = [at_s for at_s, _ in simulation.looks]
    assert times[0] == 0.0
    for (before_s, was_open), at_s in zip(simulation.looks, times[1:], strict=False):
        assert at_s - before_s <= (TIMES.look_anyway_s if was_open else TIMES.look_s) + 1e-6


@given(attempts)
@settings(max_examples=100)
def test_once_nothing_fails_any_more_events_are_back_within_the_longest_pause(course: list[Attempt]) -> None:
    simulation = Simulation(course)
    while simulation.course:
        simulation.step()
    simulation.run(simulation.now_s + 500 + TIMES.retry_most_s)
    assert simulation.recovery.listening


@given(attempts)
@settings(max_examples=100)
def test_connections_are_not_tried_without_a_pause(course: list[Attempt]) -> None:
    opens = after(course).opens
    for first, third in zip(opens, opens[2:], strict=False):
        assert third[0] - first[0] >= TIMES.retry_s - 1e-6


@given(attempts)
@settings(max_examples=100)
def test_the_buffer_only_grows_and_only_after_an_overflow(course: list[Attempt]) -> None:
    sizes = [size for _, size, _ in after(course).opens]
    overflows = sum("overflow" in (outcome, ends if outcome is None else None) for outcome, _, ends in course)
    assert sizes == sorted(sizes)
    assert sizes[0] == FIRST_BUFFER_BYTES
    assert sizes[-1] == min(FIRST_BUFFER_BYTES * 2**overflows, MOST_BUFFER_BYTES)


def test_the_first_fault_costs_no_time() -> None:
    recovery = Recovery(TIMES)
    recovery.opened(0.0)
    assert recovery.failed("overflow", 100.0) == [Close()]
    assert recovery.due(100.0) == [Open(2 * FIRST_BUFFER_BYTES)]


def test_a_source_that_fails_for_ever_is_tried_once_a_minute() -> None:
    simulation = Simulation([("died", 0.0, "died")] * 2000)
    simulation.run(36_000.0)
    last_hour = [at_s for at_s, _, _ in simulation.opens if at_s > 32_400.0]
    assert 59 <= len(last_hour) <= 61


def test_a_look_that_sees_nothing_is_repeated_soon_though_events_come() -> None:
    recovery = Recovery(TIMES)
    recovery.opened(0.0)
    recovery.looked(0.0, seen=False)
    assert recovery.wait_s(0.0) == TIMES.look_s
    recovery.looked(15.0)
    assert recovery.wait_s(15.0) == TIMES.look_anyway_s


def test_a_clock_that_is_set_back_does_not_stop_the_looks() -> None:
    recovery = Recovery(TIMES)
    recovery.failed("unavailable", 1000.0)
    recovery.looked(1000.0)
    assert recovery.wait_s(0.0) == TIMES.look_s
