"""Room for requests that are coming."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from service_under_test import InProcess

from magnitude.config import ApiKey, ServerSettings, Settings

ROUTE = "/v1/magnitude/reserve"
KEYS = [ApiKey(name=name, sha256=hashlib.sha256(name.encode()).hexdigest()) for name in ("ann", "bob")]


@pytest.fixture
def service() -> InProcess:
    return InProcess(Settings(server=ServerSettings(api_keys=KEYS)), clock=lambda: 101.0)


def by(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def test_a_reservation_says_what_is_kept_and_for_how_long(service: InProcess) -> None:
    headers = {**by("ann"), "X-Magnitude-Priority": "interactive"}
    reply = service.post(ROUTE, {"requests": 2, "hold_s": 10}, headers=headers)
    assert reply.status_code == 200
    assert reply.json() == {
        "model": "tiny-chat",
        "requests": 2,
        "granted": 2,
        "expires_in_s": 9.0,
        "reason": None,
    }
    assert service.inference.reserved_for == ["interactive"]


def test_less_than_asked_is_granted_with_a_reason(service: InProcess) -> None:
    reply = service.post(ROUTE, {"requests": 8, "model": "default"}, headers=by("ann")).json()
    assert (reply["granted"], reply["reason"]) == (3, "there are 3 slots")


def test_a_reservation_belongs_to_the_key_that_made_it(service: InProcess) -> None:
    service.post(ROUTE, {"requests": 2}, headers=by("ann"))
    assert service.call("DELETE", ROUTE, headers=by("bob")).json() == {"model": "tiny-chat", "released": 0}
    assert service.call("DELETE", f"{ROUTE}?model=tiny-chat", headers=by("ann")).json()["released"] == 2
    assert service.call("DELETE", ROUTE, headers=by("ann")).json()["released"] == 0
    assert service.call("DELETE", ROUTE).status_code == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "requests"),
        ({"requests": 0}, "requests"),
        ({"requests": 5000}, "requests"),
        ({"requests": "2"}, "requests"),
        ({"requests": 2, "hold_s": 0}, "hold_s"),
        ({"requests": 2, "hold_s": 1e9}, "hold_s"),
        ({"requests": 2, "model": "tiny-embed"}, "model"),
        ({"requests": 2, "model": "nope"}, "model"),
    ],
)
def test_what_cannot_be_reserved_is_refused_with_the_field(service: InProcess, body: Any, param: str) -> None:
    reply = service.post(ROUTE, body, headers=by("ann"))
    assert reply.status_code in (400, 404)
    assert reply.json()["error"]["param"] == param
    assert service.inference.reservations == {}


def test_other_methods_are_told_the_right_ones(service: InProcess) -> None:
    reply = service.call("PUT", ROUTE, headers=by("ann"))
    assert reply.status_code == 405
    assert {"POST", "DELETE"} <= set(reply.headers["Allow"].replace(" ", "").split(","))
