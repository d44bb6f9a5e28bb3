"""What the doctor says of the processor's counters."""

from __future__ import annotations

from pathlib import Path

from magnitude.config import Settings
from magnitude.doctor import DoctorContext
from magnitude.doctor.checks import counters
from magnitude.paths import find_paths

ABSENT = "the processor (or the virtual machine) has no such counter"
FORBIDDEN = "not permitted: see kernel.perf_event_paranoid and hardware-counters.conf"


def test_counters_that_are_all_there_are_fine() -> None:
    finding = counters.judge({}, counted=True, who="the service")
    assert (finding.level, finding.detail) == ("ok", "")


def test_what_is_not_counted_is_named_with_its_reason() -> None:
    finding = counters.judge({"memory_stalls": ABSENT}, counted=True, who="the service")
    assert finding.level == "ok"
    assert f"memory_stalls: {ABSENT}" in finding.detail


def test_counters_that_are_forbidden_can_be_permitted() -> None:
    finding = counters.judge({"cycles": FORBIDDEN}, counted=False, who="the service")
    assert finding.level == "notice"
    assert counters.DROP_IN in finding.advice


def test_a_processor_without_counters_needs_nothing_done() -> None:
    finding = counters.judge({"cycles": ABSENT}, counted=False, who="the service")
    assert (finding.level, finding.advice) == ("ok", "")
    assert "not available" in finding.title


def test_without_a_service_this_user_is_looked_at(tmp_path: Path) -> None:
    paths = find_paths({"MAGNITUDE_HOME": str(tmp_path)})
    finding = counters.check(DoctorContext(settings=Settings(), paths=paths))
    assert "this user" in finding.title
    assert finding.level in ("ok", "notice")
