"""Counters of the processor: what they say, and what is said where there are none."""

from __future__ import annotations

import errno
import os
import platform
import struct
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.board.counters import (
    LINE_BYTES,
    CounterReading,
    Counters,
    attributes_of,
    rates_between,
    scaled,
)


class Kernel:
    """Hands out pipes that hold what a counter would give; or an errno."""

    def __init__(self, *, counts: tuple[int, int, int] | None = None, error: int = 0) -> None:
        self.attributes: list[bytes] = []
        self.writers: list[int] = []
        self._counts = counts
        self._error = error

    def __call__(self, attributes: bytes) -> int:
        self.attributes.append(attributes)
        if self._error:
            return -self._error
        reader, writer = os.pipe()
        if self._counts is not None:
            os.write(writer, struct.pack("=QQQ", *self._counts) * 2)
        else:
            os.close(writer)
            return reader
        self.writers.append(writer)
        return reader

    def close(self) -> None:
        for writer in self.writers:
            os.close(writer)


def test_what_is_counted_is_read() -> None:
    kernel = Kernel(counts=(1000, 50, 50))
    counters = Counters(kernel)
    assert counters.read() == CounterReading(
        cycles=1000, instructions=1000, cache_misses=1000, branch_misses=1000, memory_stalls=1000
    )
    assert counters.missing == {}
    counters.close()
    kernel.close()


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOSYS, errno.EMFILE, errno.EIO])
def test_a_counter_that_cannot_be_had_is_unknown_with_its_reason(error: int) -> None:
    counters = Counters(Kernel(error=error))
    assert counters.read() == CounterReading()
    assert len(counters.missing) == 5 and all(counters.missing.values())


def test_a_counter_that_ends_is_unknown_from_then_on() -> None:
    counters = Counters(Kernel())  # reads give nothing, as an event in error does
    assert counters.read() == CounterReading()
    assert "cannot be read" in counters.missing["cycles"]
    assert counters.read() == CounterReading()


def test_an_event_that_shared_its_counter_is_scaled_up() -> None:
    assert scaled(struct.pack("=QQQ", 100, 1000, 250)) == 400
    assert scaled(struct.pack("=QQQ", 100, 1000, 1000)) == 100
    assert scaled(struct.pack("=QQQ", 0, 1000, 0)) == 0


def test_attributes_have_the_size_that_they_say() -> None:
    attributes = attributes_of(0, 5)
    assert len(attributes) == struct.unpack_from("=I", attributes, 4)[0]
    assert struct.unpack_from("=Q", attributes, 8) == (5,)


def test_rates_come_from_what_happened_between() -> None:
    before = CounterReading(cycles=1000, instructions=1000, cache_misses=10, branch_misses=5, memory_stalls=100)
    now = CounterReading(cycles=3000, instructions=5000, cache_misses=50, branch_misses=13, memory_stalls=600)
    rates = rates_between(before, now, 2.0)
    assert rates.ipc == 2.0
    assert rates.cache_misses_per_1000 == 10.0
    assert rates.branch_misses_per_1000 == 2.0
    assert rates.stalled_share == 0.25
    assert rates.read_bytes_s == 40 * LINE_BYTES / 2.0


def test_what_is_unknown_stays_unknown_in_the_rates() -> None:
    rates = rates_between(CounterReading(cycles=1), CounterReading(cycles=2), 1.0)
    assert (rates.ipc, rates.cache_misses_per_1000, rates.read_bytes_s, rates.stalled_share) == (None,) * 4


def test_readings_of_another_process_give_no_rates() -> None:
    rates = rates_between(CounterReading(cycles=100, instructions=100), CounterReading(cycles=5, instructions=5), 1.0)
    assert rates.ipc is None


COUNTS = st.one_of(st.none(), st.integers(0, 2**63))


@given(st.lists(COUNTS, min_size=10, max_size=10), st.floats(0.0, 10.0))
def test_rates_are_never_negative_whatever_was_read(counts: list[int | None], seconds: float) -> None:
    names = ("cycles", "instructions", "cache_misses", "branch_misses", "memory_stalls")
    before, now = (CounterReading(**dict(zip(names, part, strict=True))) for part in (counts[:5], counts[5:]))
    rates = rates_between(before, now, seconds)
    values = (rates.ipc, rates.cache_misses_per_1000, rates.branch_misses_per_1000, rates.read_bytes_s)
    assert all(value is None or value >= 0 for value in values)


@pytest.mark.skipif(sys.platform != "linux", reason="perf events are Linux's")
def test_the_kernel_counts_or_says_why_not() -> None:
    """Whichever machine this runs on: each counter is there with a count that grows, or has a reason."""
    counters = Counters()
    first = counters.read()
    worker = threading.Thread(target=lambda: sum(range(300_000)))
    worker.start()
    worker.join()
    second = counters.read()
    for name in ("cycles", "instructions"):
        earlier, later = getattr(first, name), getattr(second, name)
        if earlier is None:
            assert counters.missing[name], f"{name} on {platform.machine()}"
        else:
            assert later > earlier
    counters.close()
