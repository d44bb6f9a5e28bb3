"""Replacing the engine over HTTP."""

from __future__ import annotations

import hashlib

import pytest
from service_under_test import InProcess

from magnitude.config import ApiKey, ServerSettings, Settings

ROUTE = "/v1/magnitude/recycle"
KEYS = [
    ApiKey(name="root", sha256=hashlib.sha256(b"root").hexdigest(), admin=True),
    ApiKey(name="ann", sha256=hashlib.sha256(b"ann").hexdigest()),
]


def by(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


@pytest.fixture
def service() -> InProcess:
    return InProcess(Settings(server=ServerSettings(api_keys=KEYS)))


def test_the_answer_tells_the_new_engine_and_what_went_on_with_it(service: InProcess) -> None:
    reply = service.post(ROUTE, {"reason": "new weights"}, headers=by("root"))
    assert reply.status_code == 200
    assert reply.json() == {
        "reason": "on request: new weights",
        "engine_pid": 4,
        "took_s": 0.1,
        "open_requests": 1,
    }
    assert service.inference.recycled == ["on request: new weights"]


def test_only_an_admin_may(service: InProcess) -> None:
    assert service.post(ROUTE, {}, headers=by("ann")).status_code == 403
    assert service.post(ROUTE, {}).status_code == 401
    assert service.inference.recycled == []


def test_without_an_engine_there_is_none_to_replace(service: InProcess) -> None:
    service.inference.down = True
    reply = service.post(ROUTE, {}, headers=by("root"))
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "engine_not_ready"


@pytest.mark.parametrize("body", [{"reason": 5}, {"reason": "x" * 1000}, []])
def test_what_is_not_understood_replaces_nothing(service: InProcess, body: object) -> None:
    assert service.post(ROUTE, body, headers=by("root")).status_code == 400
    assert service.inference.recycled == []
