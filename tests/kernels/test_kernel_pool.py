"""The pool: each task once, whoever calls and however wide it is; asleep when idle; on the cores it was given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernel_builds import Build
from kernel_driver import Driver, Refused, command
from kernel_library import Library
from product_cases import INT4, random_weights

THREAD_NAME = "mk-pool"


def pool_threads() -> list[int]:
    """The thread ids of the pool in this process."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == THREAD_NAME:
            found.append(int(task.name))
    return sorted(found)


def status(thread: int) -> dict[str, str]:
    lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def in_thread(work: Callable[[], None]) -> None:
    """Runs `work` as a caller of its own, whose affinity dies with it. Its exception is the test's."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


class Products:
    """A product that is worth sharing, and its right result."""

    def __init__(self, library: Library) -> None:
        rng = np.random.default_rng(31)
        self.library = library
        weights = random_weights(rng, INT4, 640, 512)
        self.packed = library.pack(INT4, 640, 512, weights.values, weights.scales)
        self.x = rng.standard_normal((2, 512)).astype(np.float32)
        library.set_pool(1)
        self.right = self.compute()

    def compute(self) -> bytes:
        return self.library.product(self.packed, self.x, 640).tobytes()

    def are_right(self, times: int) -> bool:
        return all(self.compute() == self.right for _ in range(times))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("callers", [1, 3])
@pytest.mark.parametrize("tasks", [1, 2, 5, 1000])
def test_each_task_is_computed_once_in_every_run(host_driver: Driver, threads: int, callers: int, tasks: int) -> None:
    answer = host_driver.results([command(f"pool {threads}"), command(f"runs {callers} 300 {tasks}")])[1]
    assert int.from_bytes(answer, "little") == callers * 300 * tasks * (tasks - 1) // 2


def test_the_width_can_change_between_any_two_calls(library: Library) -> None:
    products = Products(library)
    for i in range(200):
        library.set_pool((4, 2, 4, 1, 3)[i % 5])
        assert library.pool_threads() == (4, 2, 4, 1, 3)[i % 5]
        assert products.compute() == products.right
    assert len(pool_threads()) == 3  # made once, kept for the next time


def test_an_idle_pool_sleeps_and_wakes_for_the_next_call(library: Library) -> None:
    products = Products(library)
    library.set_pool(3)
    assert products.are_right(50)
    switches = at_rest()
    assert len(switches) == 2
    for _ in range(100):
        assert products.compute() == products.right
        if all(after > before for before, after in zip(switches, at_rest(), strict=True)):
            return
    pytest.fail("a thread of the pool slept through a hundred calls")


def at_rest() -> list[int]:
    """How often each thread of the pool has gone to sleep, once all are asleep and stay so for a while."""
    keys = ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
    for _ in range(100):
        before = [[status(thread)[key] for key in keys] for thread in pool_threads()]
        time.sleep(0.05)
        after = [[status(thread)[key] for key in keys] for thread in pool_threads()]
        if before == after and all(state.startswith("S") for state, *_ in after):
            return [int(voluntary) for _, voluntary, _ in after]
    pytest.fail("the pool's threads did not come to rest")


def test_signals_are_left_to_the_process_s_own_threads(library: Library) -> None:
    library.set_pool(2)
    (worker,) = pool_threads()
    # All that can be blocked: all but SIGKILL, SIGSTOP and two of the C library's own.
    blocked = int(status(worker)["SigBlk"], 16)
    assert all(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM))


def test_threads_run_on_the_cores_that_they_were_given(library: Library) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    core = allowed[-1]

    def caller() -> None:
        products = Products(library)
        assert library.set_pool(3, cores=[core, core, -1]) == 0
        assert os.sched_getaffinity(0) == {core}
        first, second = pool_threads()
        assert os.sched_getaffinity(first) == {core}
        assert os.sched_getaffinity(second) == set(allowed)
        assert products.are_right(20)
        # Without cores everything runs again where it might before, the caller included.
        assert library.set_pool(3) == 0
        for thread in (0, first, second):
            assert os.sched_getaffinity(thread) == set(allowed)

    in_thread(caller)


def test_a_core_that_cannot_be_had_is_reported_and_its_thread_runs_elsewhere(library: Library) -> None:
    allowed = os.sched_getaffinity(0)

    def caller() -> None:
        products = Products(library)
        assert library.set_pool(4, cores=[-1, 1023, 100_000, min(allowed)]) == 2
        assert [os.sched_getaffinity(thread) for thread in pool_threads()] == [allowed, allowed, {min(allowed)}]
        assert products.are_right(20)

    in_thread(caller)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a mask that shrinks needs two processors")
def test_a_mask_that_changes_under_the_pool_is_kept_and_respected_by_later_changes(library: Library) -> None:
    first, *_ = sorted(os.sched_getaffinity(0))

    def caller() -> None:
        products = Products(library)
        library.set_pool(2)
        assert products.are_right(10)
        (worker,) = pool_threads()
        for thread in (0, worker):
            os.sched_setaffinity(thread, {first})
        # Long enough for the pool to look at the masks again.
        assert products.are_right(600)
        assert os.sched_getaffinity(worker) == {first}
        # What this process has lost is no longer given to anybody.
        assert library.set_pool(2) == 0
        assert os.sched_getaffinity(worker) == {first}

    in_thread(caller)


def test_uneven_shares_change_no_result(library: Library) -> None:
    products = Products(library)
    for shares in ([1.0, 1.0], [3.0, 0.5, 1.5], [1e-6, 1.0], [1.0, 1e-6, 1e-6, 1e-6], [1e30, 1.0]):
        library.set_pool(len(shares), shares=shares)
        assert products.are_right(20)


@pytest.mark.parametrize(
    ("threads", "shares", "said"),
    [
        (0, None, "threads"),
        (-3, None, "threads"),
        (65, None, "threads"),
        (2, [1.0, 0.0], "share 1"),
        (2, [-1.0, 1.0], "share 0"),
        (2, [1.0, float("nan")], "share 1"),
        (2, [1.0, float("inf")], "share 1"),
        (2, [3e38, 3e38], "shares"),
    ],
)
def test_a_setting_that_makes_no_sense_is_an_error_and_changes_nothing(
    library: Library, threads: int, shares: list[float] | None, said: str
) -> None:
    library.set_pool(2)
    with pytest.raises(Refused, match=said):
        library.set_pool(threads, shares=shares)
    assert library.pool_threads() == 2


def test_a_stopped_pool_has_no_threads_and_starts_again(library: Library) -> None:
    products = Products(library)
    for _ in range(20):
        library.set_pool(3)
        assert products.are_right(3)
        library.stop_pool()
        assert pool_threads() == []
        assert library.pool_threads() == 1
        assert products.are_right(3)


def test_a_pool_that_nobody_used_can_be_stopped(library: Library) -> None:
    library.stop_pool()
    library.set_pool(4)
    library.stop_pool()
    assert pool_threads() == []


def test_a_process_ends_as_usual_while_its_pool_still_has_threads(host_build: Build) -> None:
    program = f"""
import ctypes
library = ctypes.CDLL({str(host_build.library)!r})
assert library.mk_pool_set(3, None, None) == 0
print("done")
"""
    for _ in range(10):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_pool_has_no_more_threads_than_the_build_allows(library: Library) -> None:
    """MAX_THREADS, 64 unless the build says otherwise."""
    library.set_pool(64)
    assert len(pool_threads()) == 63
    products = Products(library)
    library.set_pool(64)
    assert products.are_right(5)
