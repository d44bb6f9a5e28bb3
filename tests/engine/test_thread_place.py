<<<<<<< HEAD
"""A thread that was moved goes back to where the process may run now, not to where it could at its start."""
=======
"""Where a thread runs, asked of the kernel. Each test has a thread of its own, so that pytest's stays where it is."""
>>>>>>> sessions

from __future__ import annotations

import os
<<<<<<< HEAD
import subprocess
import sys

# In a process of its own, whose CPUs can be taken away.
MOVED = """
import os, threading
from magnitude.engine.thread_place import ThreadPlace
from magnitude.engine.session_spec import SessionSpec

stays = threading.Thread(target=threading.Event().wait, daemon=True)
stays.start()
place, cpus = ThreadPlace(), sorted(os.sched_getaffinity(0))
one, all_of_them = {cpus[0]}, set(cpus)

place.go(SessionSpec(threads=1, cpus=(cpus[-1],)))
assert os.sched_getaffinity(0) == {cpus[-1]}
place.go(None)
assert os.sched_getaffinity(0) == all_of_them

for thread in (0, stays.native_id):  # as taskset does it from outside
    os.sched_setaffinity(thread, one)
place.settle(())
assert os.sched_getaffinity(0) == one
place.leave()
assert os.sched_getaffinity(0) == one

os.sched_setaffinity(stays.native_id, all_of_them)
place.leave()
assert os.sched_getaffinity(0) == all_of_them
print("done")
"""


def test_cpus_that_were_taken_away_from_outside_are_not_taken_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MOVED], env=dict(os.environ), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "done\n", done.stderr
=======
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
>>>>>>> sessions
