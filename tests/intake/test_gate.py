"""Access, limits and the shape of errors, for every route."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from service_under_test import InProcess

from magnitude.config import ApiKey, ServerSettings, Settings
from magnitude.errors import Forbidden, Unauthorized
from magnitude.intake.auth import Peer, authorize


def key(name: str, secret: str, *, admin: bool = False) -> ApiKey:
    return ApiKey(name=name, sha256=hashlib.sha256(secret.encode()).hexdigest(), admin=admin)


KEYS = ServerSettings(api_keys=[key("ann", "secret-a"), key("root", "secret-r", admin=True)])
OPEN = ServerSettings()
UNIX = Peer(unix=True)
LOOPBACK = Peer(unix=False, local_address="127.0.0.1")
OUTSIDE = Peer(unix=False, local_address="192.168.1.5")
LOCAL = {"host": "localhost:11500"}


def bearer(secret: str) -> dict[str, str]:
    return {**LOCAL, "authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("peer", [UNIX, LOOPBACK])
def test_without_keys_local_clients_use_the_api_with_any_key_or_none(peer: Peer) -> None:
    assert authorize(peer, "/v1/models", LOCAL, OPEN).name == ""
    assert authorize(peer, "/v1/models", bearer("whatever"), OPEN).name == ""


def test_with_keys_a_tcp_client_needs_one_of_them() -> None:
    assert authorize(LOOPBACK, "/v1/models", bearer("secret-a"), KEYS).name == "ann"
    assert authorize(OUTSIDE, "/v1/models", bearer("secret-r"), KEYS).name == "root"
    for headers in (LOCAL, bearer("wrong"), bearer(""), {**LOCAL, "authorization": "Basic secret-a"}):
        with pytest.raises(Unauthorized):
            authorize(LOOPBACK, "/v1/models", headers, KEYS)


def test_the_unix_socket_needs_no_key_but_a_wrong_one_is_wrong() -> None:
    assert authorize(UNIX, "/v1/models", {}, KEYS).name == ""
    assert authorize(UNIX, "/v1/models", bearer("secret-a"), KEYS).name == "ann"
    with pytest.raises(Unauthorized):
        authorize(UNIX, "/v1/models", bearer("wrong"), KEYS)


@pytest.mark.parametrize("path", ["/metrics", "/v1/magnitude/state", "/v1/magnitude/state/more"])
def test_admin_routes_open_to_the_unix_socket_or_an_admin_key_only(path: str) -> None:
    assert authorize(UNIX, path, {}, OPEN).admin
    assert authorize(LOOPBACK, path, bearer("secret-r"), KEYS).admin
    with pytest.raises(Unauthorized):
        authorize(LOOPBACK, path, LOCAL, OPEN)
    with pytest.raises(Forbidden):
        authorize(LOOPBACK, path, bearer("secret-a"), KEYS)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version", "/v2/health/live"])
def test_health_needs_no_key(path: str) -> None:
    authorize(OUTSIDE, path, {}, KEYS)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:11500", "127.0.0.1:9", "[::1]:11500", "LOCALHOST", "edge.lan", "edge.lan:80"]
)
def test_names_of_this_service_are_known_on_loopback(host: str) -> None:
    authorize(LOOPBACK, "/v1/models", {"host": host}, ServerSettings(allowed_hosts=["edge.lan"]))


@pytest.mark.parametrize(
    "host", ["evil.com", "evil.com:11500", "localhost.evil.com", "", "127.0.0.1@evil.com", "[::1"]
)
def test_a_foreign_host_name_on_loopback_is_refused(host: str) -> None:
    for path in ("/v1/models", "/healthz"):
        with pytest.raises(Forbidden):
            authorize(LOOPBACK, path, {"host": host}, OPEN)


@pytest.mark.parametrize(
    "origin", ["https://evil.com", "null", "http://localhost.evil.com", "file://", "http://[", ""]
)
def test_a_foreign_origin_on_loopback_is_refused(origin: str) -> None:
    with pytest.raises(Forbidden):
        authorize(LOOPBACK, "/v1/chat/completions", {**LOCAL, "origin": origin}, OPEN)


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "https://edge.lan"])
def test_an_own_origin_is_taken(origin: str) -> None:
    authorize(LOOPBACK, "/v1/models", {**LOCAL, "origin": origin}, ServerSettings(allowed_hosts=["edge.lan"]))


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1/models/nope", 404, "model_not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/healthz", 405, "method_not_allowed"),
        ("GET", "/metrics", 401, "admin_key_missing"),
        ("GET", "/v1/magnitude/state", 401, "admin_key_missing"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/healthz/", 404, "not_found"),
    ],
)
def test_every_refusal_has_the_envelope(method: str, path: str, status: int, code: str) -> None:
    reply = InProcess().call(method, path)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code", "hint"}
    assert error["message"]
    assert error["hint"]
    assert reply.headers["X-Request-Id"]


def test_a_wrong_method_is_told_the_right_ones() -> None:
    assert "POST" in InProcess().call("GET", "/v1/completions").headers["Allow"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'"x"',
        b'{"a": NaN}',
        b'{"temperature": 1e999}',
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b'{"a": "\\ud800"}',
        b"\xef\xbb\xbf{}",
        b"--boundary\r\n",
    ],
)
def test_a_body_that_is_no_json_object_is_400(body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank"):
        reply = InProcess().call("POST", path, content=body)
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "invalid_json"


def test_a_compressed_body_is_415() -> None:
    reply = InProcess().call("POST", "/v1/completions", content=b"x", headers={"content-encoding": "gzip"})
    assert reply.status_code == 415


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_beyond_the_limit_is_413(declared: bool) -> None:
    service = InProcess(Settings(server=ServerSettings(max_request_bytes=1024)))

    async def pieces() -> Any:
        for _ in range(64):
            yield b"x" * 1024

    content: Any = b"x" * 65536 if declared else pieces()
    reply = service.call("POST", "/v1/completions", content=content)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-123", "abc-123"), ("a b\tc<script>", "abcscript"), ("x" * 500, "x" * 64)],
)
def test_a_clients_request_id_is_kept_in_harmless_characters(given: str, kept: str) -> None:
    reply = InProcess().call("GET", "/version", headers={"X-Request-Id": given})
    assert reply.headers["X-Request-Id"] == kept


def test_ready_says_why_not() -> None:
    service = InProcess()
    assert service.call("GET", "/readyz").json()["ready"] is True
    service.inference.ready = False
    reply = service.call("GET", "/readyz")
    assert (reply.status_code, reply.json()["reasons"]) == (503, ["tiny-chat is loading"])
    assert service.call("GET", "/healthz").status_code == 200


def test_models_are_listed_with_the_chat_model_first() -> None:
    data = InProcess().call("GET", "/v1/models").json()["data"]
    assert [m["id"] for m in data] == ["tiny-chat", "tiny-embed", "tiny-rerank", "adder"]
    assert data[0]["context_length"] == 256


def test_the_description_names_every_route() -> None:
    from magnitude.intake.app import ROUTES

    described = set(InProcess().call("GET", "/openapi.json").json()["paths"])
    assert described == {route.path.replace(":path", "") for route in ROUTES}


def test_raw_paths_do_not_become_labels_of_metrics() -> None:
    service = InProcess()
    for n in range(3):
        service.call("GET", f"/nope-{n}")
    assert service.count("magnitude_requests_total", route="unmatched", status="404") == 3
