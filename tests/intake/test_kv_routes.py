"""Who sees and who deletes conversations whose KV is kept."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import httpx
import pytest
from service_under_test import InProcess

from magnitude.config import ApiKey, ServerSettings, Settings
from magnitude.schedule.inference import KeptConversation

PATH = "/v1/magnitude/kv"


def key(name: str, *, admin: bool = False) -> ApiKey:
    return ApiKey(name=name, sha256=hashlib.sha256(f"secret-{name}".encode()).hexdigest(), admin=admin)


def kept(owner: str, model: str = "tiny-chat") -> KeptConversation:
    return KeptConversation(model=model, owner=owner, tokens=900, size_bytes=5000, where="disk", idle_s=7.5)


@pytest.fixture
def service() -> InProcess:
    keys = [key("ann"), key("bob"), key("root", admin=True)]
    made = InProcess(Settings(server=ServerSettings(api_keys=keys)))
    made.inference.conversations = [kept("ann"), kept("bob"), kept("bob", "gone-model"), kept("")]
    return made


def as_client(name: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer secret-{name}"}}


def owners(reply: httpx.Response) -> list[str]:
    assert reply.status_code == 200, reply.text
    return [one["owner"] for one in reply.json()["data"]]


def over_unix(service: InProcess, method: str, path: str, **kwargs: Any) -> httpx.Response:
    """A request as it comes in over a unix socket: the server has a path, the client no address."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await service.app({**scope, "server": ("/run/magnitude.sock", None), "client": None}, receive, send)

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
            return await client.request(method, path, **kwargs)

    return asyncio.run(run())


def test_what_is_kept_is_told_without_any_text(service: InProcess) -> None:
    (one,) = service.call("GET", PATH, **as_client("ann")).json()["data"]
    assert one == {
        "model": "tiny-chat",
        "owner": "ann",
        "tokens": 900,
        "size_bytes": 5000,
        "where": "disk",
        "idle_s": 7.5,
    }


def test_a_key_sees_and_deletes_its_own_and_nothing_else(service: InProcess) -> None:
    assert owners(service.call("GET", PATH, **as_client("bob"))) == ["bob", "bob"]
    assert service.call("DELETE", PATH, **as_client("bob")).json() == {"deleted": 2}
    assert [one.owner for one in service.inference.conversations] == ["ann", ""]
    assert service.call("DELETE", PATH, **as_client("bob")).json() == {"deleted": 0}


def test_an_admin_key_and_the_unix_socket_see_and_delete_all(service: InProcess) -> None:
    everybody = ["ann", "bob", "bob", ""]
    assert owners(service.call("GET", PATH, **as_client("root"))) == everybody
    assert owners(over_unix(service, "GET", PATH)) == everybody
    assert owners(over_unix(service, "GET", PATH, **as_client("ann"))) == ["ann"]
    assert over_unix(service, "DELETE", PATH).json() == {"deleted": 4}


def test_without_a_key_nothing_is_told_over_tcp(service: InProcess) -> None:
    for method in ("GET", "DELETE"):
        assert service.call(method, PATH).status_code == 401
    assert len(service.inference.conversations) == 4


def test_without_configured_keys_a_local_client_sees_what_local_clients_left() -> None:
    service = InProcess()
    service.inference.conversations = [kept(""), kept("of a key that is gone")]
    assert owners(service.call("GET", PATH)) == [""]


@pytest.mark.parametrize(("named", "left"), [("default", ["gone-model"]), ("gone-model", ["tiny-chat"])])
def test_deleting_can_be_limited_to_a_model_also_to_one_that_is_gone(
    service: InProcess, named: str, left: list[str]
) -> None:
    reply = service.call("DELETE", PATH, params={"model": named}, **as_client("bob"))
    assert reply.json() == {"deleted": 1}
    assert [one.model for one in service.inference.conversations if one.owner == "bob"] == left


def test_a_misspelt_parameter_deletes_nothing(service: InProcess) -> None:
    reply = service.call("DELETE", PATH, params={"modle": "tiny-chat"}, **as_client("root"))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "modle")
    assert len(service.inference.conversations) == 4


def test_other_methods_are_told_the_right_ones(service: InProcess) -> None:
    reply = service.call("POST", PATH, **as_client("ann"))
    assert reply.status_code == 405
    assert {"GET", "DELETE"} <= set(reply.headers["Allow"].replace(" ", "").split(","))
