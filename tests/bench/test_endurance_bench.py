"""What the endurance run sends, how it judges answers, and what it takes for a leak."""

import msgspec
import pytest

from bench.endurance import FIRST_PART, faults_in, held_in, part_ends, problem_with, status_in
from bench.endurance_jobs import ENDINGS, KINDS, Ending, Job, Kind, job
from magnitude.schedule.figures import ModelFigures, ScheduleFigures
from magnitude.schedule.inference import ServiceHealth, ServiceState
from magnitude.schedule.segments import Capacity
from magnitude.schedule.slot_terms import KvFigures

JOBS = [job(1, number) for number in range(1500)]
OK = b"HTTP/1.1 200 OK\r\n\r\n"


def one(kind: Kind = "chat", ending: Ending = "read", *, stream: bool = False) -> Job:
    found = next(todo for todo in JOBS if todo.kind == kind)
    return msgspec.structs.replace(found, ending=ending, body={**found.body, "stream": stream})


def state(*, engine: int = 0, running: int = 0, slots: int = 0) -> ServiceState:
    kv = KvFigures(
        hits=0,
        misses={},
        reused_tokens=0,
        copied_tokens=0,
        restored_tokens=0,
        evictions=0,
        resident_tokens=900,
        resident_bytes=9000,
        budget_bytes=90000,
        running_slots=slots,
        idle_slots=3,
        free_slots=4,
        cleaning_slots=0,
        saved_copies=0,
    )
    figures = ModelFigures(
        kv=kv,
        capacity=Capacity(compute_slots=4, conversations=4.0, limit=2.8, alive=0),
        segments=(),
        running=running,
        waiting={"normal": 0},
        paused=0,
        reserved=0,
        preemptions=0,
        saved_bytes=0,
    )
    health = ServiceHealth(
        live=True,
        ready=True,
        reasons=[],
        engine_pid=7,
        engine_restarts=0,
        queue_depth=0,
        running=running,
        uptime_s=1.0,
    )
    return ServiceState(
        version="0",
        health=health,
        engine_phase="up",
        engine_steps=1,
        engine_rss_bytes=1,
        service_rss_bytes=1,
        models=[],
        figures={},
        schedule=ScheduleFigures(models={"m": figures}),
        engine_open_requests=engine,
    )


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    assert [job(1, number) for number in range(50)] == JOBS[:50]
    assert [job(2, number) for number in range(50)] != JOBS[:50]


def test_every_kind_meets_every_ending() -> None:
    met = {(todo.kind, todo.ending) for todo in JOBS}
    assert {kind for kind, _ in met} == set(KINDS)
    for kind in ("chat", "embeddings", "completion"):
        assert {ending for met_kind, ending in met if met_kind == kind} == set(ENDINGS)


@pytest.mark.parametrize(("ending", "whole"), [("read", True), ("head", False), ("body", False), ("answer", True)])
def test_a_client_sends_as_much_as_its_ending_says(ending: Ending, whole: bool) -> None:
    todo = one(ending=ending)
    payload = todo.payload()
    assert (todo.sent_bytes() == len(payload)) == whole
    assert (b"\r\n\r\n" in payload[: todo.sent_bytes()]) == (ending != "head")


def test_a_stream_without_its_end_is_a_problem() -> None:
    todo = one(stream=True)
    assert problem_with(todo, status_in(OK + b"data: {}\n\ndata: [DONE]\n\n", todo)) is None
    assert problem_with(todo, status_in(OK + b"data: {}\n\n", todo)) is not None


def test_a_deadline_in_the_middle_of_a_stream_counts_as_its_status() -> None:
    todo = one("hard deadline", stream=True)
    answer = status_in(OK + b'data: {"error": {"code": "deadline_exceeded"}}\n\n', todo)
    assert answer == "504"
    assert problem_with(todo, answer) is None
    assert problem_with(one("chat"), "504") is not None


def test_clients_that_left_have_nothing_to_complain_of_but_a_refused_connection() -> None:
    todo = one(ending="later")
    assert problem_with(todo, "later") is None
    assert problem_with(one(), "no connection: refused") is not None


def test_kept_conversations_are_no_leak_and_everything_that_runs_is() -> None:
    assert held_in(state()) == []
    assert held_in(state(engine=2)) == ["2 requests open in the engine"]
    assert held_in(state(running=1, slots=1)) == [
        "1 requests running",
        "1 generations of m",
        "1 running slots of m",
    ]


def test_the_first_look_comes_after_500_requests_and_the_last_at_the_end() -> None:
    assert part_ends(5000)[0] == FIRST_PART
    assert part_ends(5000)[-1] == 5000
    assert part_ends(200)[0] == 20


def test_faults_in_the_log_are_found_and_usual_lines_are_not() -> None:
    log = (
        "2026-01-01T00:00:00 info    engine up\n2026-01-01T00:00:01 error   it broke\nTraceback (most recent call)\n"
    )
    assert faults_in(log) == ["2026-01-01T00:00:01 error   it broke", "Traceback (most recent call)"]
