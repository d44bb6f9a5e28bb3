"""Documents, a question, an answer: through the real service with the embedded models."""

from __future__ import annotations

import json

import httpx
import pytest
from started_service import RunningService

pytestmark = pytest.mark.models

DOCUMENTS = [
    "The office kitchen is cleaned every Friday afternoon.",
    "The spare key of the server room is kept in the red box behind the printer.",
    "Invoices are paid within thirty days.",
    "The printer on the second floor needs black toner.",
    "Visitors park in the yard behind the house.",
]
QUESTION = "Where is the spare key of the server room?"


def ask(service: RunningService, **fields: object) -> httpx.Response:
    body = {
        "query": QUESTION,
        "documents": DOCUMENTS,
        "top_k": 2,
        "rerank_model": False,
        "generate": {"temperature": 0, "max_tokens": 40},
        **fields,
    }
    return httpx.post(f"{service.url}/v1/magnitude/pipeline", json=body, timeout=120)


def test_the_answer_is_written_from_the_document_that_has_it(service: RunningService) -> None:
    body = ask(service).json()
    assert body["pipeline"]["documents"][0]["index"] == 1
    assert body["pipeline"]["documents"][0]["embedding_score"] > body["pipeline"]["documents"][1]["embedding_score"]
    assert "behind the printer" in body["choices"][0]["message"]["content"]
    assert set(body["pipeline"]["times_ms"]) == {"embed_and_rank", "generate"}


def test_the_engine_ranks_as_the_vectors_that_it_hands_out_would(service: RunningService) -> None:
    texts = [QUESTION, *DOCUMENTS]
    reply = httpx.post(f"{service.url}/v1/embeddings", json={"input": texts}, timeout=120)
    query, *rows = (entry["embedding"] for entry in reply.json()["data"])
    cosines = [sum(a * b for a, b in zip(query, row, strict=True)) for row in rows]
    shown = ask(service, top_k=5).json()["pipeline"]["documents"]
    assert [entry["index"] for entry in shown] == sorted(range(5), key=lambda n: -cosines[n])
    for entry in shown:
        assert entry["embedding_score"] == pytest.approx(cosines[entry["index"]], abs=1e-3)


def test_a_reranker_scores_the_candidates_and_a_stream_tells_them_first(service: RunningService) -> None:
    generate = {"temperature": 0, "max_tokens": 8, "stream": True}
    reply = ask(service, rerank_model="tiny-reranker", generate=generate)
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    shown = events[0]["pipeline"]
    assert shown["rerank_model"] == "tiny-reranker"
    scores = [entry["rerank_score"] for entry in shown["documents"]]
    assert scores == sorted(scores, reverse=True)
    assert events[-1]["choices"][0]["finish_reason"] in ("length", "stop")
