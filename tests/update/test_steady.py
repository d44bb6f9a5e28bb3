from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.update.steady import MAX_BREAKS, Reading, Steadiness, observe


def reading(at_s: float, started_s: float = 0.0, **fields: object) -> Reading:
    return Reading(**{"at_s": at_s, "ready": True, "uptime_s": at_s - started_s, **fields})  # type: ignore[arg-type]


def after(*readings: Reading) -> Steadiness:
    state = Steadiness()
    for one in readings:
        state = observe(state, one)
    return state


def test_the_minute_begins_when_the_service_is_ready() -> None:
    waiting = after(Reading(at_s=5), reading(10, ready=False))
    assert waiting.green_s(10) == 0
    state = observe(waiting, reading(20))
    assert state.green_s(80) == 60
    assert state.breaks == ()


def test_a_service_that_is_started_anew_begins_the_minute_again() -> None:
    state = after(reading(20), reading(30), reading(50, started_s=48))
    assert state.green_s(50) == 0
    assert state.breaks == ("after 30 s: the service was started anew",)


def test_an_engine_that_is_started_anew_begins_the_minute_again() -> None:
    state = after(reading(20, engine_restarts=2), reading(40, engine_restarts=3), reading(60, engine_restarts=3))
    assert state.green_s(60) == 20
    assert len(state.breaks) == 1


def test_losing_readiness_or_reach_is_a_break_with_its_reason() -> None:
    state = after(reading(20), reading(30, ready=False, reasons=("engine down",)), reading(32))
    assert state.breaks == ("after 10 s: no longer ready: engine down",)
    assert state.green_s(40) == 8
    state = after(reading(20), Reading(at_s=25))
    assert state.breaks == ("after 5 s: no longer ready: is out of reach",)
    assert state.since_s is None


def test_an_uptime_that_is_rounded_is_no_restart() -> None:
    assert after(*(reading(20 + n, uptime_s=round(20 + n, 1) - 0.4 * (n % 2)) for n in range(20))).breaks == ()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_green_time_never_reaches_back_before_the_last_break(steps: list[tuple[bool, int, int]]) -> None:
    state, last = Steadiness(), (False, 0, 0)
    changed_s = 0.0
    for number, step in enumerate(steps):
        at_s = 100.0 + 10 * number
        ready, service, engine = step
        if step != last:
            changed_s = at_s
        started_s = 50.0 if service == 0 else min(at_s, 100.0 + 10 * service)
        state = observe(state, reading(at_s, started_s=started_s, ready=ready, engine_restarts=engine))
        if not ready or (last[2] != engine and last[0]):
            assert state.green_s(at_s) <= at_s - changed_s
        assert state.green_s(at_s) >= 0
        assert len(state.breaks) <= MAX_BREAKS
        last = step
