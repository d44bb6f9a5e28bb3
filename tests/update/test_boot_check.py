from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_service import SimulatedService

from magnitude.update.boot_check import TRIES


@pytest.fixture
def service() -> SimulatedService:
    return SimulatedService()


def test_a_service_that_answers_and_is_well_for_a_minute_passes(service: SimulatedService) -> None:
    report = service.checked()
    assert report.verdict.passed
    assert 70 <= report.took_s <= 80
    assert [finding.level for finding in report.findings] == ["ok", "ok", "ok"]
    assert len(service.inferred_s) == 2


def test_ready_without_inference_is_not_enough(service: SimulatedService) -> None:
    service.infers = lambda now_s: False
    report = service.checked()
    assert not report.verdict.passed
    assert f"inference failed {TRIES} times: the engine was lost" in report.verdict.reason


def test_an_inference_that_fails_once_is_tried_again(service: SimulatedService) -> None:
    service.infers = lambda now_s: now_s > 1013
    assert service.checked().verdict.passed


def test_a_service_that_is_started_anew_every_minute_never_passes(service: SimulatedService) -> None:
    service.starts_s = [1000.0 + 55 * number for number in range(40)]
    report = service.checked(within_s=600)
    assert not report.verdict.passed
    assert report.took_s >= 600
    assert "no longer ready: engine loading" in report.verdict.reason


@pytest.mark.parametrize("pause_s", [5, 9, 10, 21])
def test_however_often_an_engine_was_started_anew_the_last_one_has_inferred(
    service: SimulatedService, pause_s: int
) -> None:
    """Also when each of them has lasted as long as the one before, so that what is said of it is the same."""
    service.engine_starts_s = [1030.0 + pause_s * number for number in range(20)]
    report = service.checked(within_s=2000)
    assert report.verdict.passed
    assert len([at_s for at_s in service.inferred_s if at_s > service.engine_starts_s[-1]]) == 2


def test_an_engine_that_is_started_anew_every_minute_never_passes(service: SimulatedService) -> None:
    service.engine_starts_s = [1030.0 + 50 * number for number in range(40)]
    report = service.checked(within_s=600)
    assert not report.verdict.passed
    assert "the engine was started anew" in report.verdict.reason


def test_after_one_restart_the_minute_and_the_inference_begin_again(service: SimulatedService) -> None:
    service.starts_s = [1000.0, 1040.0]
    report = service.checked()
    assert report.verdict.passed
    assert 110 <= report.took_s <= 120
    assert len([at_s for at_s in service.inferred_s if at_s > 1050]) == 2


def test_a_service_that_never_comes_up_fails_in_time_with_what_it_says(service: SimulatedService) -> None:
    service.load_s = 1e9
    report = service.checked(within_s=100)
    assert not report.verdict.passed
    assert "engine loading" in report.verdict.reason
    assert report.took_s <= 110


def test_a_service_that_is_not_there_fails_in_time(service: SimulatedService) -> None:
    service.starts_s = []
    report = service.checked(within_s=30)
    assert "no such socket" in report.verdict.reason


def test_a_service_that_keeps_nothing_does_not_pass(service: SimulatedService) -> None:
    service.persistence = "off"
    report = service.checked()
    assert not report.verdict.passed
    assert "nothing is kept" in report.verdict.reason


@pytest.mark.parametrize("name", ["engine_restarts", "persistence", "uptime_s"])
def test_a_service_that_does_not_say_all_that_is_judged_does_not_pass(service: SimulatedService, name: str) -> None:
    service.untold = {name}
    report = service.checked()
    assert not report.verdict.passed
    assert name in report.verdict.reason


@pytest.mark.parametrize("vector", [[], [0.0, 0.0], [float("nan"), 1.0]])
def test_a_vector_that_means_nothing_fails_at_once(service: SimulatedService, vector: list[float]) -> None:
    service.vector = vector
    report = service.checked()
    assert "means nothing" in report.verdict.reason
    assert report.took_s < 20


def test_a_service_without_models_says_so_and_passes(service: SimulatedService) -> None:
    service.served = []
    report = service.checked()
    assert report.verdict.passed
    assert report.findings[0].level == "notice"
    assert "no model" in report.findings[0].title


def test_the_clock_of_the_wall_plays_no_part(service: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board without a battery for its clock jumps by decades while it is checked."""
    jumps = iter([0.0, 1.7e9, -7200.0] * 1000)
    monkeypatch.setattr("time.time", lambda: next(jumps))
    assert service.checked().verdict.passed


@given(st.lists(st.floats(1000, 1500), max_size=8), st.lists(st.floats(1000, 1500), max_size=8), st.floats(0, 100))
def test_what_passes_has_inferred_and_was_undisturbed_for_a_minute(
    starts: list[float], engines: list[float], load_s: float
) -> None:
    service = SimulatedService()
    service.starts_s, service.engine_starts_s, service.load_s = sorted(starts), sorted(engines), load_s
    report = service.checked(within_s=400)
    if report.verdict.passed:
        # A look takes place every two seconds, and an uptime is told to a second's tolerance.
        began_s, seen_s = service.now_s - 60.0, service.now_s - 2
        assert not [at_s for at_s in [*starts, *engines] if began_s + 1 < at_s <= seen_s]
        assert max(at_s for at_s in starts if at_s <= seen_s) <= service.inferred_s[-1]
    else:
        assert report.took_s >= 400
