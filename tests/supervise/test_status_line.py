from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.supervise.status_line import MIN_INTERVAL_S, RATE_WINDOW_S, StatusFacts, TokenRate, due, status_line


def test_a_busy_service_shows_model_work_rate_and_what_is_known_of_the_board() -> None:
    facts = StatusFacts(
        model="tiny-chat",
        further_models=2,
        running=3,
        waiting=4,
        tokens_per_s=123.4,
        temp_c=61.4,
        memory="shrinking KV",
        degraded="embedder: could not be loaded",
        note="reload failed: line 3 (old configuration kept)",
    )
    assert status_line(facts) == (
        "tiny-chat and 2 more: 3 running, 4 waiting; 120 tokens/s; 61 \u00b0C; memory: shrinking KV; "
        "degraded: embedder: could not be loaded; reload failed: line 3 (old configuration kept)"
    )


def test_an_idle_service_is_one_short_line() -> None:
    assert status_line(StatusFacts(model="tiny-chat")) == "tiny-chat: idle"


def test_a_start_says_what_it_is_at() -> None:
    facts = StatusFacts(model="tiny-chat", started=False, engine="engine loading: loading models")
    assert status_line(facts) == "starting: engine loading: loading models; tiny-chat"


def test_an_engine_that_is_gone_stands_where_the_work_would() -> None:
    facts = StatusFacts(model="tiny-chat", running=2, engine="engine backing_off: next start in 0.25 s")
    assert status_line(facts) == "tiny-chat: engine backing_off: next start in 0.25 s"


@given(st.text(max_size=400), st.text(max_size=400), st.floats(0.01, 1e6))
def test_it_is_always_one_line_of_bounded_length(name: str, reason: str, rate: float) -> None:
    line = status_line(StatusFacts(model=name, degraded=reason, tokens_per_s=rate))
    assert line.isprintable()
    assert len(line) < len(name) + 200


def test_a_line_is_due_at_once_then_on_change_and_not_too_often() -> None:
    assert due("", None, "a", 100.0)
    assert not due("a", 100.0, "a", 1000.0)
    assert not due("a", 100.0, "b", 100.0 + MIN_INTERVAL_S / 2)
    assert due("a", 100.0, "b", 100.0 + MIN_INTERVAL_S)


def test_the_rate_is_that_of_the_last_seconds_and_none_when_nothing_is_generated() -> None:
    rate, now_s, tokens = TokenRate(), 50.0, 1000
    assert rate.of(tokens, now_s) is None
    for _ in range(60):
        now_s, tokens = now_s + 1, tokens + 20
        assert rate.of(tokens, now_s) == 20.0
    for _ in range(round(RATE_WINDOW_S) + 2):
        now_s += 1
        last = rate.of(tokens, now_s)
    assert last is None


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 100)), max_size=200))
def test_the_rate_is_never_negative_nor_infinite(looks: list[tuple[float, int]]) -> None:
    rate, now_s, tokens = TokenRate(), 0.0, 0
    for after_s, more in looks:
        now_s, tokens = now_s + after_s, tokens + more
        found = rate.of(tokens, now_s)
        assert found is None or 0 < found < float("inf")


def test_a_simulated_board_is_said_before_its_temperature() -> None:
    facts = StatusFacts(model="tiny-chat", simulated="pi5-bare", temp_c=71.6)
    assert status_line(facts) == "tiny-chat: idle; SIMULATED board pi5-bare; 72 °C"
    assert "SIMULATED" in status_line(StatusFacts(model="tiny-chat", simulated="pi5-bare", started=False))
