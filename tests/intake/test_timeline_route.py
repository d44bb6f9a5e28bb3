"""What was decided lately: who may ask, and how."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from service_under_test import InProcess

from magnitude.config import ApiKey, ServerSettings, Settings
from magnitude.feedback.record_file import RecordLimits
from magnitude.feedback.record_store import RecordStore
from tests.feedback.record_samples import STRATEGY, MovingClocks, decision, row

PATH = "/v1/magnitude/timeline"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    clocks = MovingClocks()
    made = RecordStore(tmp_path / "records.db", RecordLimits(reserve_bytes=0), clocks=clocks)
    made.start()
    asyncio.run(made.opened())
    for number in range(3):
        made.add_decision(decision(number, when=clocks.now(), strategy=STRATEGY))
        made.add(row(number, when=clocks.now(), model="m" if number else "n"))
        if number == 1:
            made.flush()  # some are written, some not yet
        clocks.passes(100.0)
    yield made
    made.stop()


def with_store(store: RecordStore | None) -> InProcess:
    def key(name: str, *, admin: bool) -> ApiKey:
        return ApiKey(name=name, sha256=hashlib.sha256(f"secret-{name}".encode()).hexdigest(), admin=admin)

    keys = [key("ann", admin=False), key("root", admin=True)]
    return InProcess(Settings(server=ServerSettings(api_keys=keys)), records=store)


def asked(store: RecordStore | None, query: str = "", name: str = "root") -> httpx.Response:
    return with_store(store).call("GET", PATH + query, headers={"Authorization": f"Bearer secret-{name}"})


def test_decisions_and_tasks_come_the_oldest_first_written_or_not(store: RecordStore) -> None:
    reply = asked(store)
    assert reply.status_code == 200, reply.text
    said = reply.json()
    assert (said["object"], said["persistence"], said["cut_off"]) == ("timeline", "on", False)
    assert [(one["reason"], one["ago_s"]) for one in said["decisions"]] == [("0", 300.0), ("1", 200.0), ("2", 100.0)]
    assert [task["ago_s"] for task in said["tasks"]] == [300.0, 200.0, 100.0]
    assert said["lanes"][0] == {
        "model": "m",
        "part": "decode",
        "spans": [{"begin_ago_s": 300.0, "end_ago_s": 0.0, "choice": "2 threads on 2-3"}],
    }


def test_time_number_and_model_can_be_narrowed(store: RecordStore) -> None:
    assert len(asked(store, "?since_s=250").json()["decisions"]) == 2
    said = asked(store, "?limit=1").json()
    assert ([one["reason"] for one in said["decisions"]], said["cut_off"]) == (["2"], True)
    assert len(asked(store, "?model=n").json()["tasks"]) == 1


@pytest.mark.parametrize(
    "query",
    ["?since_s=0", "?since_s=-1", "?since_s=nan", "?since_s=x", "?since_s=inf", "?limit=0", "?limit=x", "?x=1"],
)
def test_what_is_not_understood_is_refused(store: RecordStore, query: str) -> None:
    reply = asked(store, query)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "invalid_request"


def test_only_an_admin_may_ask(store: RecordStore) -> None:
    assert asked(store, name="ann").status_code == 403
    assert with_store(store).call("GET", PATH).status_code == 401


def test_a_service_that_keeps_none_says_so() -> None:
    said = asked(None, "?since_s=60").json()
    assert (said["persistence"], said["decisions"], said["tasks"], said["since_s"]) == ("off", [], [], 60.0)
