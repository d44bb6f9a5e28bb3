from __future__ import annotations

import json
from typing import Any

import pytest
from fake_inference import EMBEDDER, RERANKER
from service_under_test import InProcess

DOCUMENTS = ["cats sleep here", "paris is in france", "cats are in paris"]


@pytest.fixture
def service() -> InProcess:
    return InProcess()


def ask(service: InProcess, **fields: Any) -> Any:
    body = {"query": "paris in france", "documents": DOCUMENTS, "top_k": 2, "generate": {"max_tokens": 20}, **fields}
    return service.post("/v1/magnitude/pipeline", body)


def prompt_of(service: InProcess) -> str:
    return service.inference.texts.chat.decode(service.inference.tasks[-1].prompt)


def test_the_nearest_documents_enter_the_prompt_and_are_told_with_scores_and_times(service: InProcess) -> None:
    service.inference.without.add(RERANKER.name)
    reply = ask(service)
    assert reply.status_code == 200
    body = reply.json()
    assert body["choices"][0]["message"]["content"] == "hi"
    shown = body["pipeline"]
    assert [entry["index"] for entry in shown["documents"]] == [1, 2]
    scores = [entry["embedding_score"] for entry in shown["documents"]]
    assert scores == sorted(scores, reverse=True)
    assert (shown["embedding_model"], shown["rerank_model"]) == (EMBEDDER.name, None)
    assert shown["times_ms"]["embed_and_rank"]["run"] == 3.0
    assert set(shown["times_ms"]) == {"embed_and_rank", "generate"}
    prompt = prompt_of(service)
    assert prompt.index(DOCUMENTS[1]) < prompt.index(DOCUMENTS[2]) < prompt.index("paris in france")
    assert DOCUMENTS[0] not in prompt


def test_a_reranker_that_is_served_chooses_among_more_candidates(service: InProcess) -> None:
    # The fake's rerank scores are the lengths of the pairs, so the longest document wins.
    documents = ["b", "a", "b b b", "c"]
    shown = ask(service, query="a", documents=documents, top_k=1).json()["pipeline"]
    assert (shown["rerank_model"], shown["candidates"]) == (RERANKER.name, 4)
    assert [entry["index"] for entry in shown["documents"]] == [2]
    assert 0 <= shown["documents"][0]["rerank_score"] <= 1
    assert set(shown["times_ms"]) == {"embed_and_rank", "rerank", "generate"}
    shown = ask(service, rerank_model=False, top_k=1).json()["pipeline"]
    assert (shown["rerank_model"], shown["documents"][0]["index"]) == (None, 1)


def test_a_stream_tells_the_choice_first(service: InProcess) -> None:
    reply = ask(service, generate={"max_tokens": 20, "stream": True})
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    assert [entry["index"] for entry in events[0]["pipeline"]["documents"]]
    assert "embed_and_rank" in events[0]["pipeline"]["times_ms"]
    assert all("pipeline" not in event for event in events[1:])
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "hi"
    assert reply.text.endswith("data: [DONE]\n\n")


def test_messages_of_the_client_get_the_documents_and_keep_their_settings(service: InProcess) -> None:
    messages = [{"role": "system", "content": "brief"}, {"role": "user", "content": "where"}]
    assert ask(service, generate={"messages": messages, "max_tokens": 5, "temperature": 0}).status_code == 200
    task = service.inference.tasks[-1]
    assert task.max_new_tokens == 5
    prompt = prompt_of(service)
    assert prompt.index("brief") < prompt.index("[1]") < prompt.index("where")


def test_documents_that_do_not_fit_the_prompt_are_left_out_and_named(service: InProcess) -> None:
    service.inference.without.add(RERANKER.name)
    long = "paris in france " * 40
    shown = ask(service, documents=[long, "paris is in france"]).json()["pipeline"]
    assert [entry["index"] for entry in shown["documents"]] == [1]
    assert shown["left_out"] == [0]
    reply = ask(service, documents=[long])
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"


def test_a_long_document_is_cut_for_the_embedder_and_the_answer_says_so(service: InProcess) -> None:
    service.inference.without.add(RERANKER.name)
    shown = ask(service, documents=["paris in france " * 8]).json()["pipeline"]
    assert shown["documents"][0]["truncated_tokens"] > 0
    assert all(len(ids) <= 16 for ids in service.inference.ranked[-1][1])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": [3]}, "documents[0]"),
        ({"documents": ["a", "  "]}, "documents[1]"),
        ({"query": " "}, "query"),
        ({"query": "paris " * 40}, "query"),
        ({"top_k": 0}, "top_k"),
        ({"generate": 3}, "generate"),
        ({"generate": {"temperature": 9}}, "generate.temperature"),
        ({"generate": {"messages": []}}, "generate.messages"),
        ({"rerank_model": True}, "rerank_model"),
        ({"rerank_model": EMBEDDER.name}, "model"),
        ({"embedding_model": RERANKER.name}, "model"),
    ],
)
def test_what_is_wrong_is_named(service: InProcess, fields: dict[str, Any], param: str) -> None:
    reply = ask(service, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_without_an_embedder_the_hint_says_what_to_do(service: InProcess) -> None:
    service.inference.without.add(EMBEDDER.name)
    reply = ask(service)
    assert reply.status_code == 404
    assert reply.json()["error"]["hint"]
    assert service.inference.tasks == []
