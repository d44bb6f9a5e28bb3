"""What a request is told when there is no room for it, or no time left."""

from __future__ import annotations

import json
from typing import Any

import pytest
from service_under_test import InProcess

from magnitude.config import ServerSettings, Settings
from magnitude.errors import DeadlineExceeded, Overloaded

PATHS = ["/v1/chat/completions", "/v1/completions"]
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "prompt": "hello"}


@pytest.fixture
def service() -> InProcess:
    return InProcess()


def late(prompt_tokens: int = 12, new_tokens: int = 2) -> DeadlineExceeded:
    return DeadlineExceeded(
        "The deadline passed after 2 tokens",
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        hint="Allow more time, or send a soft deadline.",
    )


@pytest.mark.parametrize("path", [*PATHS, "/v1/embeddings"])
def test_a_request_that_finds_the_queue_full_is_told_its_place_in_it(service: InProcess, path: str) -> None:
    service.inference.refuse = Overloaded("The queue is full", retry_after_s=2.5, position=17, hint="Ask again.")
    reply = service.post(path, {**BODY, "input": "hello"})
    assert reply.status_code == 429
    assert (reply.headers["Retry-After"], reply.headers["X-Magnitude-Queue-Position"]) == ("3", "17")
    assert reply.json()["error"]["queue_position"] == 17


def test_a_refusal_without_a_queue_names_no_place(service: InProcess) -> None:
    service.inference.refuse = Overloaded("The queue is full", hint="Ask again.")
    reply = service.chat()
    assert "X-Magnitude-Queue-Position" not in reply.headers
    assert "queue_position" not in reply.json()["error"]


@pytest.mark.parametrize("path", PATHS)
def test_a_hard_deadline_is_504_with_what_was_done(service: InProcess, path: str) -> None:
    service.inference.answer, service.inference.fail_at = "hello you", 2
    service.inference.error = late()
    reply = service.post(path, BODY)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (504, "deadline_exceeded", "server_error")
    assert error["done"] == {"prompt_tokens": 12, "completion_tokens": 2, "text": error["done"]["text"]}
    assert error["done"]["text"]
    assert "hello you".startswith(error["done"]["text"])
    # The openai client would send it again otherwise.
    assert reply.headers["X-Should-Retry"] == "false"
    assert service.inference.open == 0
    assert service.count("magnitude_deadline_misses_total", model="tiny-chat", mode="hard") == 1


@pytest.mark.parametrize("path", PATHS)
def test_a_hard_deadline_in_a_stream_is_an_event_after_what_was_sent(service: InProcess, path: str) -> None:
    service.inference.answer, service.inference.fail_at = "hello you", 2
    service.inference.error = late()
    reply = service.post(path, {**BODY, "stream": True})
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    assert reply.status_code == 200
    assert "[DONE]" not in reply.text
    assert len(events) > 1
    assert events[-1]["error"]["code"] == "deadline_exceeded"
    assert events[-1]["error"]["done"] == {"prompt_tokens": 12, "completion_tokens": 2, "text": ""}
    assert service.count("magnitude_deadline_misses_total", model="tiny-chat", mode="hard") == 1


def test_a_deadline_that_passes_before_the_first_token_has_a_status_in_a_stream_too(service: InProcess) -> None:
    service.inference.fail_at, service.inference.error = 0, late(prompt_tokens=5, new_tokens=0)
    reply = service.chat(stream=True)
    assert reply.status_code == 504
    assert reply.json()["error"]["done"]["prompt_tokens"] == 5


def test_a_deadline_that_has_passed_already_counts_for_its_model(service: InProcess) -> None:
    service.inference.refuse = late(0, 0)
    assert service.chat().status_code == 504
    assert service.count("magnitude_deadline_misses_total", model="tiny-chat", mode="hard") == 1


def test_a_deadline_that_passes_in_the_queue_of_an_encoder_is_504_in_each_protocols_shape(service: InProcess) -> None:
    service.inference.refuse = late(0, 0)
    reply = service.post("/v1/embeddings", {"input": "hello"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
    tensors = {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
            {"name": "flag", "datatype": "BOOL", "shape": [1], "data": [True]},
        ]
    }
    reply = service.post("/v2/models/adder/infer", tensors)
    assert reply.status_code == 504
    assert isinstance(reply.json()["error"], str)
    assert service.count("magnitude_deadline_misses_total", model="tiny-embed", mode="hard") == 1
    assert service.count("magnitude_deadline_misses_total", model="adder", mode="hard") == 1


def test_a_request_that_is_refused_before_the_router_counts_under_its_route() -> None:
    from test_gate import KEYS

    service = InProcess(Settings(server=KEYS))
    service.call("GET", "/v1/models/some-model")
    service.call("GET", "/metrics", headers={"Authorization": "Bearer secret-a"})
    assert service.count("magnitude_requests_total", route="/v1/models/{model:path}", status="401") == 1
    assert service.count("magnitude_requests_total", route="/metrics", status="403") == 1
    service = InProcess(Settings(server=ServerSettings()))
    service.call("GET", "/v1/models", headers={"Host": "evil.com"})
    assert service.count("magnitude_requests_total", route="/v1/models", status="403") == 1
