"""A real server: the real client, clients that go away, clients that dawdle."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from service_under_test import Live

from magnitude.config import ServerSettings
from magnitude.errors import DeadlineExceeded, EngineNotReady, Overloaded

TALK: list[Any] = [{"role": "user", "content": "hello"}]
BODY = {"messages": TALK}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path) as running:
        yield running


def client_of(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0, timeout=20)


def eventually(fact: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether `fact` comes true; generous, because the test machine may be busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if fact():
            return True
        time.sleep(0.01)
    return fact()


def raw(live: Live, path: str, body: Any, headers: str = "") -> socket.socket:
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", live.port), timeout=20)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    sock.sendall(head.encode() + data)
    return sock


# --- the openai client ---


def test_the_openai_client_gets_an_answer_and_its_usage(live: Live) -> None:
    answer = client_of(live).chat.completions.create(model="tiny-chat", messages=TALK)
    assert answer.choices[0].message.content == "hi"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_the_openai_client_reads_a_stream(live: Live) -> None:
    live.inference.answer = "a😀é你"
    stream = client_of(live).chat.completions.create(
        model="tiny-chat", messages=TALK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "a😀é你"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None


@pytest.mark.parametrize("include_usage", [True, False])
def test_the_openai_client_takes_the_time_split_of_a_stream_as_an_extra(live: Live, include_usage: bool) -> None:
    client = client_of(live)
    options: Any = {"include_usage": include_usage}
    chat = client.chat.completions.create(model="tiny-chat", messages=TALK, stream=True, stream_options=options)
    *_, last = list(chat)
    assert (last.model_extra or {})["magnitude"]["times_ms"]["prefill"] == 10.0
    raw = client.completions.create(model="tiny-chat", prompt="hello", stream=True, stream_options=options)
    *_, end = list(raw)
    assert (end.model_extra or {})["magnitude"]["slot"] == 2
    with client.chat.completions.stream(model="tiny-chat", messages=TALK, stream_options=options) as stream:
        assert stream.get_final_completion().choices[0].message.content == "hi"


def test_the_openai_client_sends_terms_as_headers_and_store_as_a_field(live: Live) -> None:
    client_of(live).chat.completions.create(
        model="tiny-chat",
        messages=TALK,
        store=False,
        extra_headers={"X-Magnitude-Priority": "interactive"},
        extra_body={"truncation": "auto"},
    )
    task = live.inference.tasks[-1]
    assert (task.priority, task.save_kv, task.overflow) == ("interactive", False, "slide")


def test_the_openai_client_does_not_repeat_what_missed_its_deadline(live: Live) -> None:
    live.inference.fail_at = 1
    live.inference.error = DeadlineExceeded("Too late", prompt_tokens=9, new_tokens=1, hint="Allow more time.")
    patient = client_of(live).with_options(max_retries=2)
    with pytest.raises(openai.InternalServerError) as caught:
        patient.chat.completions.create(
            model="tiny-chat", messages=TALK, extra_headers={"X-Magnitude-Deadline-Ms": "50"}
        )
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    done: Any = caught.value.body
    assert done["done"] == {"prompt_tokens": 9, "completion_tokens": 1, "text": "h"}
    assert live.inference.opened == 1


def test_the_openai_client_assembles_a_streamed_tool_call(live: Live) -> None:
    live.inference.answer = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"]}}\n</tool_call>'
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    with client_of(live).chat.completions.stream(model="tiny-chat", messages=TALK, tools=tools) as stream:
        final = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0]  # type: ignore[index]
    assert json.loads(call.function.arguments) == {"a": [1, "}"]}
    assert final.choices[0].finish_reason == "tool_calls"


def test_the_openai_client_gets_vectors_by_its_own_default(live: Live) -> None:
    answer = client_of(live).embeddings.create(model="tiny-embed", input=["hello", "hello world"])
    assert [d.embedding for d in answer.data] == [[3.0] * 4, [4.0] * 4]


def test_the_openai_client_reads_code_param_and_type_of_an_error(live: Live) -> None:
    live.inference.context = 8
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(live).chat.completions.create(model="tiny-chat", messages=TALK)
    assert (caught.value.code, caught.value.param, caught.value.type) == (
        "context_length_exceeded",
        "messages",
        "invalid_request_error",
    )


def test_the_openai_client_raises_what_breaks_in_the_middle_of_a_stream(live: Live) -> None:
    live.inference.answer, live.inference.fail_at = "hello you", 2
    live.inference.error = EngineNotReady("The engine died", hint="Send it again.")
    with pytest.raises(openai.APIError, match="The engine died") as caught:
        for _ in client_of(live).chat.completions.create(model="tiny-chat", messages=TALK, stream=True):
            pass
    assert caught.value.code == "engine_not_ready"


def test_the_openai_client_knows_a_full_queue(live: Live) -> None:
    live.inference.refuse = Overloaded("The queue is full")
    with pytest.raises(openai.RateLimitError):
        client_of(live).chat.completions.create(model="tiny-chat", messages=TALK)


# --- clients that go away ---


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("when", ["after two chunks", "during prefill", "without a stream"])
def test_a_client_that_goes_away_frees_its_slot_once(live: Live, path: str, when: str) -> None:
    live.inference.answer, live.inference.eos = "x" * 10_000, False
    live.inference.context = 100_000
    live.inference.token_s, live.inference.prefill_s = 0.02, 600 if when == "during prefill" else 0
    body = {**BODY, "prompt": "x", "max_tokens": 10_000, "stream": when != "without a stream"}
    sock = raw(live, path, body)
    if when == "after two chunks":
        seen = b""
        while seen.count(b"data: ") < 2:
            seen += sock.recv(4096)
    else:
        assert eventually(lambda: live.inference.open == 1)
    sock.close()
    assert eventually(lambda: live.inference.open == 0)
    assert live.inference.freed == 1
    assert len(live.inference.cancels) == 1
    emitted = live.inference.emitted
    route = path
    assert eventually(
        lambda: live.metrics.registry.get_sample_value("magnitude_requests_cancelled_total", {"route": route}) == 1
    )
    assert live.inference.emitted == emitted

    live.inference.answer, live.inference.eos, live.inference.prefill_s = "hi", True, 0
    reply = httpx.post(f"{live.url}{path}", json={**BODY, "prompt": "x"}, timeout=20)
    assert reply.status_code == 200
    assert (
        live.metrics.registry.get_sample_value("magnitude_requests_total", {"route": path, "status": "500"}) is None
    )


def test_members_of_a_batch_that_go_away_stop_none_of_the_others(live: Live) -> None:
    leaver = "background"
    live.inference.answer, live.inference.token_s = "hello you", 0.02
    live.inference.stalls = lambda task: task.priority == leaver
    staying: list[str] = []

    def ask() -> None:
        reply = httpx.post(f"{live.url}/v1/chat/completions", json=BODY, timeout=20)
        staying.append(reply.json()["choices"][0]["message"]["content"])

    header = f"X-Magnitude-Priority: {leaver}\r\n"
    leaving = [raw(live, "/v1/chat/completions", {**BODY, "stream": n % 2 == 0}, header) for n in range(4)]
    assert eventually(lambda: live.inference.open == 4)
    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    assert eventually(lambda: live.inference.opened == 7)
    for sock in leaving:
        sock.close()
    for asker in askers:
        asker.join(20)
    assert staying == ["hello you"] * 3
    assert eventually(lambda: live.inference.open == 0)
    assert (live.inference.freed, len(live.inference.cancels)) == (7, 4)


def test_a_client_that_sent_its_next_request_ahead_is_missed_as_well(live: Live) -> None:
    live.inference.prefill_s = 600
    sock = raw(live, "/v1/chat/completions", BODY)
    assert eventually(lambda: live.inference.open == 1)
    sock.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
    time.sleep(0.1)
    sock.close()
    assert eventually(lambda: live.inference.open == 0)


def test_requests_sent_ahead_are_answered_in_order(live: Live) -> None:
    with raw(live, "/v1/chat/completions", BODY) as sock:
        sock.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert answer.index(b"chat.completion") < answer.index(b'"version"')


def test_a_client_that_goes_away_while_texts_are_embedded_is_counted_as_cancelled(live: Live) -> None:
    live.inference.embed_s = 600
    sock = raw(live, "/v1/embeddings", {"input": "hello"})
    time.sleep(0.1)
    sock.close()
    name, labels = "magnitude_requests_cancelled_total", {"route": "/v1/embeddings"}
    assert eventually(lambda: live.metrics.registry.get_sample_value(name, labels) == 1)


def test_health_answers_while_a_generation_waits(live: Live) -> None:
    live.inference.prefill_s = 600
    sock = raw(live, "/v1/chat/completions", BODY)
    assert eventually(lambda: live.inference.open == 1)
    assert httpx.get(f"{live.url}/healthz", timeout=20).json()["status"] == "ok"
    sock.close()


# --- ways in ---


def test_the_unix_socket_opens_admin_routes_and_loopback_does_not(live: Live) -> None:
    transport = httpx.HTTPTransport(uds=live.unix_path)
    with httpx.Client(transport=transport, base_url="http://any-name") as client:
        assert "magnitude_requests_total" in client.get("/metrics").text
        assert client.get("/v1/magnitude/state").json()["health"]["ready"] is True
        assert client.post("/v1/chat/completions", json=BODY).status_code == 200
    assert httpx.get(f"{live.url}/metrics").status_code == 401


def test_a_foreign_host_name_is_refused_on_the_wire(live: Live) -> None:
    reply = httpx.get(f"{live.url}/v1/models", headers={"Host": "evil.com"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00garbage\r\n\r\n", b"GET / HTTP/9.9 x\r\n\r\n", b"\r\n\r\n\x00"]
)
def test_what_is_no_http_gets_the_envelope_and_the_door(live: Live, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as sock:
        sock.sendall(data)
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert b" 400 " in answer.split(b"\r\n", 1)[0]
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "invalid_http"


def test_several_requests_on_one_connection_are_answered(live: Live) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=20)
    for _ in range(3):
        connection.request("GET", "/version")
        assert connection.getresponse().read()
    connection.close()


# --- clients that dawdle ---


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, ServerSettings(client_timeout_s=0.3, max_connections=4)) as running:
        yield running


def closed(sock: socket.socket) -> bool:
    try:
        return all(iter(lambda: sock.recv(65536), b""))
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "start", [b"", b"POST /v1/completions HT", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"]
)
def test_a_client_that_never_finishes_its_head_is_cut_off(strict: Live, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=20) as sock:
        sock.sendall(start)
        assert closed(sock)


def test_a_client_that_never_finishes_its_body_gets_408(strict: Live) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=20) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert b" 408 " in answer.split(b"\r\n", 1)[0]
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "request_timeout"


def test_a_client_that_does_not_take_our_bytes_is_cut_off_and_its_slot_freed(strict: Live) -> None:
    strict.inference.answer, strict.inference.eos = "x" * 200_000, False
    strict.inference.context = 1_000_000
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", strict.port))
    data = json.dumps({**BODY, "stream": True, "max_tokens": 500_000}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)
    assert eventually(lambda: strict.inference.opened == 1)
    assert eventually(lambda: strict.inference.open == 0, 30)
    assert strict.inference.emitted < 200_000
    sock.close()


def test_more_requests_than_allowed_get_503_and_health_still_answers(strict: Live) -> None:
    strict.inference.prefill_s = 600
    socks = [raw(strict, "/v1/chat/completions", BODY) for _ in range(4)]
    assert eventually(lambda: strict.inference.open == 4)
    reply = httpx.post(f"{strict.url}/v1/chat/completions", json=BODY, timeout=20)
    assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")
    assert reply.json()["error"]["code"] == "too_many_connections"
    assert httpx.get(f"{strict.url}/healthz", timeout=20).status_code == 200
    for sock in socks:
        sock.close()
    assert eventually(lambda: strict.inference.open == 0)


def test_more_connections_than_allowed_get_503_at_once(tmp_path: Path) -> None:
    with Live(tmp_path, ServerSettings(max_connections=2)) as live:
        idle = [socket.create_connection(("127.0.0.1", live.port), timeout=20) for _ in range(10)]
        with socket.create_connection(("127.0.0.1", live.port), timeout=20) as sock:
            answer = b"".join(iter(lambda: sock.recv(4096), b""))
        assert b" 503 " in answer.split(b"\r\n", 1)[0]
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "too_many_connections"
        for sock in idle:
            sock.close()
        assert eventually(lambda: httpx.get(f"{live.url}/healthz").status_code == 200)


def test_a_body_beyond_the_limit_is_413_for_a_client_that_sends_first_and_reads_later(tmp_path: Path) -> None:
    with Live(tmp_path, ServerSettings(max_request_bytes=1024)) as live:
        with pytest.raises(openai.APIStatusError) as caught:
            client_of(live).completions.create(model="tiny-chat", prompt="x" * 2_000_000)
        assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")


def test_stopping_lets_an_open_answer_end(tmp_path: Path) -> None:
    with Live(tmp_path) as live:
        live.inference.answer, live.inference.token_s = "hello you", 0.03
        results: list[str] = []

        def ask() -> None:
            reply = httpx.post(f"{live.url}/v1/chat/completions", json=BODY, timeout=20)
            results.append(reply.json()["choices"][0]["message"]["content"])

        asking = threading.Thread(target=ask)
        asking.start()
        assert eventually(lambda: live.inference.open == 1)
    asking.join()
    assert results == ["hello you"]
    assert not Path(live.unix_path).exists()
