"""Where a thread runs, asked of the kernel. Each test has a thread of its own, so that pytest's stays where it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.thread_place import ThreadPlace
from magnitude.errors import RequestError

T = TypeVar("T")
ABSENT = 1000  # beyond what the kernel of any machine that runs this counts


def in_a_thread(act: Callable[[], T]) -> T:
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(act).result()


def here() -> set[int]:
    return os.sched_getaffinity(0)


def on(*cpus: int) -> SessionSpec:
    return SessionSpec(threads=1, cpus=cpus)


def test_a_run_is_where_its_session_belongs_and_others_are_anywhere():
    def act() -> list[set[int]]:
        place = ThreadPlace()
        seen = [here()]
        for spec in (on(min(seen[0])), None, on(max(seen[0])), SessionSpec(threads=2)):
            place.go(spec)
            seen.append(here())
        return seen

    before, first, own, last, anywhere = in_a_thread(act)
    assert (first, own, last, anywhere) == ({min(before)}, before, {max(before)}, before)


def test_a_run_goes_on_anywhere_when_its_cpus_are_gone(caplog: pytest.LogCaptureFixture):
    def act() -> tuple[set[int], set[int]]:
        place = ThreadPlace()
        before = here()
        place.go(on(min(before)))
        place.go(on(ABSENT))
        place.go(on(ABSENT))
        return before, here()

    before, after = in_a_thread(act)
    assert after == before
    assert caplog.text.count("cannot be used any more") == 1


def test_a_session_for_cpus_that_are_not_all_there_is_refused_and_the_thread_let_go():
    def act() -> tuple[set[int], RequestError, set[int]]:
        place = ThreadPlace()
        before = here()
        with pytest.raises(RequestError) as caught:
            place.settle((min(before), ABSENT))
        return before, caught.value, here()

    before, error, after = in_a_thread(act)
    assert after == before
    assert error.code == "cpus_not_usable" and str(ABSENT) in error.message


def test_threads_that_are_started_meanwhile_stay_where_the_session_belongs():
    def act() -> tuple[set[int], set[int], set[int]]:
        place = ThreadPlace()
        cpu = min(here())
        place.settle((cpu,))
        inherited = in_a_thread(here)
        place.leave()
        return {cpu}, inherited, here()

    cpu, inherited, after = in_a_thread(act)
    assert inherited == cpu
    assert after == here()
