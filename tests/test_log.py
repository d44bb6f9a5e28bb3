from __future__ import annotations

import io
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude import log
from magnitude.config import LogSettings
from magnitude.errors import ModelError

Logger = logging.getLogger("magnitude.test")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("magnitude")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], root.level, own.level = before[0], before[1], before[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_of(form: str, stream: io.StringIO | None = None) -> io.StringIO:
    stream = stream or io.StringIO()
    log.setup(LogSettings(format=form), stream, {})  # type: ignore[arg-type]
    return stream


def test_a_plain_event_is_one_line_with_level_request_and_numbers() -> None:
    stream = lines_of("plain")
    Logger.info("finished", extra={"request_id": "r1", "fields": {"tokens": 3, "decode_s": 0.25, "why": "a b"}})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith('info    finished request=r1 tokens=3 decode_s=0.25 why="a b"')


def test_text_from_a_client_cannot_forge_a_line_or_drive_a_terminal() -> None:
    for form in ("plain", "journal", "pretty", "json"):
        stream = lines_of(form)
        Logger.info("model %s", "x\n<0>fake\x1b[2J\u2028", extra={"fields": {"name": "a\r\nb"}})
        assert len(stream.getvalue().splitlines()) == 1, form
        assert "\x1b" not in stream.getvalue()


def test_the_request_of_the_running_task_is_named_without_being_passed() -> None:
    stream = lines_of("json")
    token = log.request_id.set("from-context")
    Logger.info("one")
    Logger.info("two", extra={"request_id": "its-own"})
    log.request_id.reset(token)
    Logger.info("three")
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event.get("request") for event in events] == ["from-context", "its-own", None]


@pytest.mark.parametrize(
    ("level", "prefix"),
    [(logging.DEBUG, "<7>"), (logging.INFO, "<6>"), (logging.WARNING, "<4>"), (logging.ERROR, "<3>")],
)
def test_journal_lines_carry_the_priority_and_no_time(level: int, prefix: str) -> None:
    stream = io.StringIO()
    log.setup(LogSettings(format="journal", level="debug"), stream, {})
    Logger.log(level, "hello")
    assert stream.getvalue() == f"{prefix}hello\n"


def test_every_line_of_a_stack_keeps_the_priority_and_expected_errors_have_no_stack() -> None:
    stream = lines_of("journal")
    try:
        raise KeyError("x")
    except KeyError:
        Logger.exception("unexpected")
    unexpected = stream.getvalue().splitlines()
    assert len(unexpected) > 2
    assert all(line.startswith("<3>") for line in unexpected)
    stream = lines_of("journal")
    try:
        raise ModelError("the file is torn", hint="import it again")
    except ModelError:
        Logger.exception("expected")
    assert stream.getvalue() == '<3>expected error="the file is torn"\n'


def test_json_events_are_objects_with_their_fields() -> None:
    stream = lines_of("json")
    Logger.warning("slow %d", 3, extra={"fields": {"wait_s": 1.5, "level": "not this one"}})
    event = json.loads(stream.getvalue())
    assert event["message"] == "slow 3"
    assert event["level"] == "warning"
    assert event["wait_s"] == 1.5


def test_auto_picks_the_journal_only_for_the_very_stream_that_systemd_named() -> None:
    with tempfile.TemporaryFile("w") as stream:
        status = os.fstat(stream.fileno())
        named = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        inherited = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}
        assert chosen(stream, named) == "journal"
        assert chosen(stream, inherited) == "plain"
        for garbage in ("", "x", "1:2:3", "1:"):
            assert chosen(stream, {"JOURNAL_STREAM": garbage}) == "plain"


def test_auto_is_pretty_in_a_terminal_that_can() -> None:
    assert chosen(Terminal(), {}) == "pretty"
    assert chosen(Terminal(), {"TERM": "dumb"}) == "plain"
    assert chosen(io.StringIO(), {}) == "plain"


def chosen(stream: TextIO, environ: dict[str, str]) -> str:
    return log.choose_format(LogSettings(), stream, environ)


def test_libraries_are_quiet_below_warning() -> None:
    stream = lines_of("plain")
    logging.getLogger("uvicorn.error").info("started")
    Logger.debug("detail")
    assert stream.getvalue() == ""
    logging.getLogger("uvicorn.error").warning("odd")
    assert "odd" in stream.getvalue()


def test_a_repeated_cause_is_shown_once_a_minute_with_the_count_of_the_rest() -> None:
    limiter = log.Limiter()
    shown = {second: limiter.admit("sensor", float(second)) for second in range(181)}
    assert {second: count for second, count in shown.items() if count is not None} == {0: 0, 60: 59, 120: 59, 180: 59}


def test_causes_are_limited_apart() -> None:
    limiter = log.Limiter()
    assert limiter.admit("a", 0.0) == 0
    assert limiter.admit("b", 1.0) == 0
    assert limiter.admit("a", 2.0) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 30)), max_size=200))
def test_the_limiter_loses_no_event_and_stays_bounded(events: list[tuple[int, float]]) -> None:
    limiter = log.Limiter(max_causes=4)
    now, last_shown = 0.0, dict[int, float]()
    for cause, later_s in events:
        now += later_s
        if limiter.admit(cause, now) is not None:
            last_shown[cause] = now
        else:
            assert now - last_shown[cause] < log.QUIET_S
        assert len(limiter._causes) <= 4


def test_what_is_no_fault_may_come_a_few_times_a_minute() -> None:
    limiter = log.Limiter()
    shown = [limiter.admit("engine up", float(second), burst=5) for second in range(60)]
    assert [second for second, suppressed in enumerate(shown) if suppressed is not None] == [0, 1, 2, 3, 4]
    assert limiter.admit("engine up", 61.0, burst=5) == 55
    assert limiter.admit("engine up", 62.0, burst=5) == 0


def test_numbers_do_not_make_a_cause_but_words_do() -> None:
    stream = lines_of("plain")
    for age in range(5):
        Logger.warning("zone %s is silent for %d s", "cpu", age)
    Logger.warning("zone %s is silent for %d s", "gpu", 1)
    assert len(stream.getvalue().splitlines()) == 2


@pytest.mark.parametrize("subject", ["model", "folder"])
def test_events_about_two_models_are_two_causes(subject: str) -> None:
    stream = lines_of("plain")
    for name in ("one", "two", "one"):
        for took_s in (0.1, 0.2):
            Logger.error(
                "not loaded", extra={"fields": {subject: name, "took_s": took_s, "reason": f"after {took_s}"}}
            )
    lines = stream.getvalue().splitlines()
    assert [f"{subject}={name}" in line for name, line in zip(("one", "two"), lines, strict=True)] == [True, True]


def test_errors_of_two_kinds_are_two_causes() -> None:
    stream = lines_of("json")
    for kind in (ValueError, KeyError, ValueError):
        Logger.error("request failed", exc_info=kind("x"))
    assert len(stream.getvalue().splitlines()) == 2


def test_ordinary_events_are_not_limited_unless_they_name_a_cause() -> None:
    stream = lines_of("plain")
    for _ in range(3):
        Logger.info("request finished")
        Logger.info("still waiting", extra={"cause": "waiting"})
    assert len(stream.getvalue().splitlines()) == 4


def test_the_count_of_the_suppressed_is_written() -> None:
    times = iter([0.0, 1.0, 2.0, 70.0])
    limit = log.LimitFilter(log.Limiter(), clock=lambda: next(times))
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log.JournalFormatter())
    handler.addFilter(limit)
    logging.getLogger().handlers[:] = [handler]
    for _ in range(4):
        Logger.warning("flapping")
    assert stream.getvalue() == "<4>flapping\n<4>flapping suppressed=2\n"
