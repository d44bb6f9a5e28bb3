from __future__ import annotations

import os
import signal
import subprocess

import pytest

from magnitude.supervise.engine_process import describe_exit


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGILL, "does not fit this CPU"), (signal.SIGKILL, "want of memory"), (signal.SIGSEGV, "SIGSEGV")],
)
def test_an_engine_ended_by_a_signal_is_told_with_its_usual_cause(number: signal.Signals, words: str) -> None:
    status = subprocess.run(["sh", "-c", f"ulimit -c 0; kill -{int(number)} $$"], check=False).returncode
    assert words in describe_exit(status)


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert "signal 250" in describe_exit(-250)
    assert str(os.EX_SOFTWARE) in describe_exit(os.EX_SOFTWARE)
