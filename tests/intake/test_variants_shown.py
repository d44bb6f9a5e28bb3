"""What clients see of variants: one entry a model, and a header that says who has computed."""

from __future__ import annotations

from typing import Any

import pytest
from service_under_test import InProcess

from magnitude.schedule.inference import VariantState

CHAT: dict[str, Any] = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}]}
COMPLETION: dict[str, Any] = {"model": "tiny-chat", "prompt": "hello"}
TEXTS: dict[str, Any] = {"model": "tiny-embed", "input": "hello"}
REQUESTS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/completions", COMPLETION),
    ("/v1/completions", {**COMPLETION, "stream": True}),
    ("/v1/embeddings", TEXTS),
]


@pytest.fixture
def service() -> InProcess:
    return InProcess()


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=["chat", "chat stream", "completion", "stream", "texts"])
def test_an_answer_of_a_variant_names_it_and_the_model_that_was_asked(
    service: InProcess, path: str, body: dict[str, Any]
) -> None:
    service.inference.variant = "tiny-chat-int8"
    reply = service.post(path, body)
    assert reply.headers["X-Magnitude-Variant"] == "tiny-chat-int8"
    assert f'"model":"{body["model"]}"' in reply.text


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=["chat", "chat stream", "completion", "stream", "texts"])
def test_the_model_s_own_answer_names_no_variant(service: InProcess, path: str, body: dict[str, Any]) -> None:
    assert "X-Magnitude-Variant" not in service.post(path, body).headers


def test_a_model_and_its_variants_are_one_entry(service: InProcess) -> None:
    assert all("variants" not in entry for entry in service.call("GET", "/v1/models").json()["data"])
    service.inference.variants = [
        VariantState(
            name="tiny-chat-int8", precision="int8", weight_bytes=9, residency="absent", outside="KL 0.3 nats"
        )
    ]
    entries = service.call("GET", "/v1/models").json()["data"]
    assert [entry["id"] for entry in entries].count("tiny-chat-int8") == 0
    chat = next(entry for entry in entries if entry["id"] == "tiny-chat")
    assert chat["variants"] == [
        {
            "name": "tiny-chat-int8",
            "precision": "int8",
            "weight_bytes": 9,
            "residency": "absent",
            "outside": "KL 0.3 nats",
        }
    ]
