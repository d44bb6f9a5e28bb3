from __future__ import annotations

import os
import signal
import subprocess

import pytest

from magnitude.supervise.engine_process import loss_of


@pytest.mark.parametrize(
    ("number", "cause", "words"),
    [
        (signal.SIGILL, "crash", "does not fit this CPU"),
        (signal.SIGSEGV, "crash", "SIGSEGV"),
        (signal.SIGABRT, "crash", "SIGABRT"),
        (signal.SIGKILL, "killed", "from outside"),
        (signal.SIGTERM, "killed", "SIGTERM"),
    ],
)
def test_an_engine_ended_by_a_signal_is_told_with_its_usual_cause(
    number: signal.Signals, cause: str, words: str
) -> None:
    status = subprocess.run(["sh", "-c", f"ulimit -c 0; kill -{int(number)} $$"], check=False).returncode
    assert words in loss_of(status).reason
    assert loss_of(status).cause == cause


def test_a_kill_while_the_kernel_wanted_memory_is_laid_to_that() -> None:
    assert loss_of(-signal.SIGKILL, oom=True).cause == "oom"
    assert loss_of(-signal.SIGSEGV, oom=True).cause == "crash"


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert "signal 250" in loss_of(-250).reason
    assert str(os.EX_SOFTWARE) in loss_of(os.EX_SOFTWARE).reason
