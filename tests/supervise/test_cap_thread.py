"""The thread that writes clock limits, over a tree of files, and over drivers that refuse or never answer."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_trees import write_tree
from magnitude.board.clock_caps import CapOutcome, ClockCaps
from magnitude.board.roots import HostRoots
from magnitude.supervise.cap_thread import CapThread

POLICY = "sys/devices/system/cpu/cpufreq/policy0"
PATIENCE_S = 20.0


class Clock:
    """A policy below a folder, its thread, and the outcomes in their order."""

    def __init__(self, folder: Path, write: Callable[[Path, int], None] | None = None) -> None:
        self.roots: HostRoots = write_tree(
            folder,
            {
                f"{POLICY}/scaling_max_freq": 2_400_000,
                f"{POLICY}/cpuinfo_min_freq": 1_500_000,
                f"{POLICY}/cpuinfo_max_freq": 2_400_000,
                f"{POLICY}/scaling_available_frequencies": "1500000 2000000 2400000",
            },
        )
        self.file = folder / POLICY / "scaling_max_freq"
        self.run = folder / "run"
        self.run.mkdir(exist_ok=True)
        self.write = write
        self.outcomes: queue.Queue[CapOutcome] = queue.Queue()
        self.thread = CapThread(self.make, self.outcomes.put)

    def make(self) -> ClockCaps:
        options = {"write": self.write} if self.write is not None else {}
        return ClockCaps(self.roots, self.run, boot_id="b", **options)

    def outcome(self) -> CapOutcome:
        return self.outcomes.get(timeout=PATIENCE_S)

    def khz(self) -> int:
        return int(self.file.read_text())


def test_limits_are_written_and_put_back_at_the_end(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    clock.thread.start()
    clock.outcome()  # of the start
    clock.thread.set({"policy0": 2_000_000})
    assert clock.outcome().in_force_khz == {"policy0": 2_000_000}
    assert clock.khz() == 2_000_000
    assert clock.thread.stop(PATIENCE_S)
    assert clock.khz() == 2_400_000
    clock.thread.set({"policy0": 1_500_000})
    assert clock.khz() == 2_400_000


def test_what_an_earlier_run_left_is_put_back_at_the_start(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    clock.make().set({"policy0": 1_500_000})
    assert clock.khz() == 1_500_000
    clock.thread.start()
    clock.outcome()
    assert clock.khz() == 2_400_000
    clock.thread.stop(PATIENCE_S)


def test_a_driver_that_does_not_answer_holds_up_nobody_and_its_silence_is_told(tmp_path: Path) -> None:
    pipe = tmp_path / "driver"
    os.mkfifo(pipe)
    entered = threading.Event()

    def hang(path: Path, khz: int) -> None:
        entered.set()
        pipe.read_bytes()  # waits for a writer

    clock = Clock(tmp_path, hang)
    clock.thread.start()
    clock.outcome()
    assert clock.thread.busy_s() == 0.0
    clock.thread.set({"policy0": 2_000_000})
    assert entered.wait(PATIENCE_S)
    clock.thread.set({"policy0": 1_500_000})  # comes back at once
    assert clock.thread.busy_s() > 0.0
    assert not clock.thread.stop(0.05)
    for _ in range(3):  # let it go
        if clock.outcomes.empty():
            with pipe.open("wb"):
                pass


def test_what_failed_unforeseen_is_asked_for_again_with_the_next_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fails = True

    def write(path: Path, khz: int) -> None:
        if fails:
            raise RuntimeError("broken")
        path.write_text(f"{khz}\n")

    clock = Clock(tmp_path, write)
    clock.thread.start()
    clock.outcome()
    clock.thread.set({"policy0": 2_000_000})
    while "broken" not in caplog.text:
        threading.Event().wait(0.01)
    fails = False
    clock.thread.renew()
    assert clock.outcome().in_force_khz == {"policy0": 2_000_000}
    assert clock.thread.stop(PATIENCE_S)


def test_a_thread_that_never_began_ends_at_once(tmp_path: Path) -> None:
    assert Clock(tmp_path).thread.stop(0.0)
