"""What the last tasks came to: who may ask, and how."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_under_test import InProcess

from magnitude.config import ApiKey, ServerSettings, Settings
from magnitude.feedback.record_file import RecordLimits
from magnitude.feedback.record_store import RecordStore
from tests.feedback.record_samples import MovingClocks, row

PATH = "/v1/magnitude/records"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    made = RecordStore(tmp_path / "records.db", RecordLimits(reserve_bytes=0), clocks=MovingClocks())
    made.start()
    asyncio.run(made.opened())
    outcomes = ("ok", "killed", "cancelled", "refused", "ok")
    for number, outcome in enumerate(outcomes):
        made.add(row(number, outcome=outcome))
        if number == 1:
            made.flush()  # some are written, some not yet
    yield made
    made.stop()


@pytest.fixture
def service(store: RecordStore) -> InProcess:
    return with_store(store)


def with_store(store: RecordStore | None) -> InProcess:
    def key(name: str, *, admin: bool) -> ApiKey:
        return ApiKey(name=name, sha256=hashlib.sha256(f"secret-{name}".encode()).hexdigest(), admin=admin)

    keys = [key("ann", admin=False), key("root", admin=True)]
    return InProcess(Settings(server=ServerSettings(api_keys=keys)), records=store)


def asked(service: InProcess, query: str = "", name: str = "root") -> httpx.Response:
    return service.call("GET", PATH + query, headers={"Authorization": f"Bearer secret-{name}"})


def numbers(reply: httpx.Response) -> list[int]:
    assert reply.status_code == 200, reply.text
    return [entry["task"]["prompt_tokens"] for entry in reply.json()["data"]]


def test_the_newest_come_first_whether_they_are_written_or_not(service: InProcess) -> None:
    reply = asked(service)
    assert numbers(reply) == [4, 3, 2, 1, 0]
    body: dict[str, Any] = reply.json()
    assert body["counts"] == {"ok": 2, "killed": 1, "cancelled": 1, "refused": 1}
    assert body["persistence"] == "on"
    assert body["data"][0]["circumstances"]["plan"]["threads"] == 4


def test_some_can_be_picked_by_outcome_and_number(service: InProcess) -> None:
    assert numbers(asked(service, "?outcome=failures")) == [3, 1]
    assert numbers(asked(service, "?outcome=ok,cancelled&limit=2")) == [4, 2]
    assert numbers(asked(service, "?outcome=&limit=1")) == [4]


@pytest.mark.parametrize(
    "query", ["?outcome=lost", "?limit=0", "?limit=-1", "?limit=x", "?limit=10001", "?limit=²", "?x=1"]
)
def test_what_is_not_understood_is_refused(service: InProcess, query: str) -> None:
    reply = asked(service, query)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "invalid_request"


def test_only_an_admin_may_ask(service: InProcess) -> None:
    assert asked(service, name="ann").status_code == 403
    assert service.call("GET", PATH).status_code == 401


def test_a_service_that_keeps_none_says_so() -> None:
    assert asked(with_store(None)).json() == {"object": "list", "data": [], "counts": {}, "persistence": "off"}


def test_what_cannot_be_kept_shows_in_readiness_and_does_not_end_it(service: InProcess) -> None:
    assert service.call("GET", "/readyz").json()["persistence"] == "on"
    service.inference.storage_off = ["records of tasks are not kept: the disk is full"]
    reply = service.call("GET", "/readyz")
    assert (reply.status_code, reply.json()["persistence"]) == (200, "off")
    assert reply.json()["reasons"] == service.inference.storage_off
