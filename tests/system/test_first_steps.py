"""What a newcomer does first: scripts/run, then the ordinary `openai` client. Real models, real processes."""

from __future__ import annotations

import base64
import json
import os
import signal
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import httpx
import jsonschema
import openai
import pytest
from started_service import RunningService

pytestmark = pytest.mark.models

CHAT = "smollm2-135m-instruct"
EMBEDDER = "all-minilm-l6-v2"


@pytest.fixture
def client(service: RunningService) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=120)


def ask(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_the_capital_of_france_is_paris(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=CHAT, messages=ask("Name the capital of France."), temperature=0, max_tokens=32
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_a_streamed_answer_is_the_whole_answer_in_pieces(client: openai.OpenAI) -> None:
    question = {"model": CHAT, "messages": ask("Name three colours."), "temperature": 0, "max_tokens": 48}
    whole = client.chat.completions.create(**question)
    chunks = list(client.chat.completions.create(**question, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(chunks) > 5
    # The second request finds most of its prompt in the cache; everything else is the same.
    counted = [(usage.prompt_tokens, usage.completion_tokens) for usage in (chunks[-1].usage, whole.usage)]
    assert counted[0] == counted[1]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(client: openai.OpenAI) -> None:
    def answer(seed: int) -> str | None:
        reply = client.chat.completions.create(
            model=CHAT, messages=ask("Tell me a story."), temperature=1.2, seed=seed, max_tokens=40
        )
        return reply.choices[0].message.content

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_an_answer_that_must_follow_a_json_schema_does(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "population_millions": {"type": "number"},
            "coastal": {"type": "boolean"},
        },
        "required": ["city", "population_millions", "coastal"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=CHAT,
        messages=ask("Describe the city of Oslo as JSON."),
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
        temperature=0,
    )
    assert answer.choices[0].finish_reason == "stop"
    content = answer.choices[0].message.content or ""
    jsonschema.validate(json.loads(content), schema)
    assert content == json.dumps(json.loads(content), ensure_ascii=False)


def test_a_tool_call_parses_and_fits_the_tool(client: openai.OpenAI) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    }
    question = {
        "model": CHAT,
        "messages": ask("What is the weather in Oslo?"),
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}],
        "tool_choice": "required",
        "temperature": 0,
    }
    answer = client.chat.completions.create(**question).choices[0]
    calls = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls"
    assert {call.function.name for call in calls} == {"get_weather"}
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), parameters)
    streamed: dict[int, str] = defaultdict(str)
    for chunk in client.chat.completions.create(**question, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            streamed[call.index] += call.function.arguments or ""
    assert [json.loads(streamed[index]) for index in sorted(streamed)] == [
        json.loads(call.function.arguments) for call in calls
    ]
    alone = client.chat.completions.create(**question, parallel_tool_calls=False).choices[0]
    assert len(alone.message.tool_calls) == 1


def test_embeddings_put_like_beside_like(client: openai.OpenAI) -> None:
    texts = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "The stock market fell by two percent."]
    rows = [row.embedding for row in client.embeddings.create(model=EMBEDDER, input=texts).data]
    assert cosine(rows[0], rows[1]) > 0.5 > cosine(rows[0], rows[2]) + 0.2
    assert cosine(rows[0], rows[0]) == pytest.approx(1, abs=1e-4)


def test_base64_embeddings_are_the_same_numbers(service: RunningService) -> None:
    body = {"model": EMBEDDER, "input": "one text"}
    floats = httpx.post(f"{service.url}/v1/embeddings", json=body, timeout=60).json()["data"][0]["embedding"]
    coded = httpx.post(f"{service.url}/v1/embeddings", json={**body, "encoding_format": "base64"}, timeout=60).json()
    raw = base64.b64decode(coded["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(floats, rel=1e-6)


def test_documents_are_ranked_by_the_cross_encoder(service: RunningService) -> None:
    body = {"model": "tiny-reranker", "query": "paris", "documents": ["cats sleep", "paris is in france"], "top_n": 2}
    reply = httpx.post(f"{service.url}/v1/rerank", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    scores = [result["relevance_score"] for result in reply.json()["results"]]
    assert scores == sorted(scores, reverse=True)
    assert {result["index"] for result in reply.json()["results"]} == {0, 1}


def test_any_other_graph_takes_and_gives_plain_tensors(service: RunningService) -> None:
    url = f"{service.url}/v2/models/affine"
    described = httpx.get(url, timeout=60).json()
    assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}]}
    reply = httpx.post(f"{url}/infer", json=body, timeout=60)
    assert reply.json()["outputs"][0]["data"] == [3, 5, 7, 9, 11, 13]
    body["inputs"][0]["shape"] = [3, 2]
    refused = httpx.post(f"{url}/infer", json=body, timeout=60)
    assert refused.status_code == 400
    assert "x" in refused.json()["error"]


def test_an_error_can_be_read(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=ask("hi"))
    assert unknown.value.code == "model_not_found"
    assert CHAT in unknown.value.body["hint"]
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(model=CHAT, messages=ask("word " * 9000))
    assert too_long.value.code == "context_length_exceeded"
    assert too_long.value.param == "messages"


def test_several_clients_are_served_at_once(client: openai.OpenAI) -> None:
    answers: dict[int, str | None] = {}

    def one(number: int) -> None:
        reply = client.chat.completions.create(
            model=CHAT, messages=ask(f"Say the number {number}."), temperature=0, max_tokens=12
        )
        answers[number] = reply.choices[0].message.content

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(6))
    assert all(answers.values())


def test_a_client_that_leaves_frees_its_slot_and_counts_as_cancelled(
    service: RunningService, client: openai.OpenAI
) -> None:
    before = service.state()["figures"][f"generate {CHAT}"]
    stream = client.chat.completions.create(model=CHAT, messages=ask("Count."), max_tokens=4000, stream=True)
    next(iter(stream))
    stream.close()
    prefill = httpx.Client(timeout=0.2)
    with pytest.raises(httpx.ReadTimeout):
        body = {"model": CHAT, "messages": ask("word " * 6000), "max_tokens": 4000}
        prefill.post(f"{service.url}/v1/chat/completions", json=body)
    prefill.close()
    service.until_idle()
    after = service.state()["figures"][f"generate {CHAT}"]
    assert after["cancelled"] == before["cancelled"] + 2
    assert after["failed"] == before["failed"]


def test_the_memory_of_a_deleted_conversation_is_given_back(service: RunningService, client: openai.OpenAI) -> None:
    client.chat.completions.create(model=CHAT, messages=ask("word " * 1500), max_tokens=4)
    service.until_idle()

    def held_bytes() -> int:
        (chat,) = [model for model in service.state()["models"] if model["name"] == CHAT]
        return chat["kv_resident_bytes"]

    assert held_bytes() > 10_000_000
    with service.admin() as admin:
        assert admin.delete("/v1/magnitude/kv").json()["deleted"] > 0
    # What is left are the borders that slots share with their neighbours: less than a page a tensor.
    for _ in range(200):  # it is given back beside the next requests, not before them
        if held_bytes() < 1_000_000:
            return
        time.sleep(0.05)
    pytest.fail(f"{held_bytes()} bytes are still held")


def test_numbers_for_prometheus_are_the_admins(service: RunningService, client: openai.OpenAI) -> None:
    client.chat.completions.create(model=CHAT, messages=ask("hi"), max_tokens=4)
    assert httpx.get(f"{service.url}/metrics", timeout=10).status_code == 401
    with service.admin() as admin:
        text = admin.get("/metrics").text
    assert "magnitude_generated_tokens_total" in text
    assert 'magnitude_resident_bytes{process="engine"}' in text


def counted(client: openai.OpenAI) -> tuple[Iterator[object], list[str]]:
    """A stream of a hundred tokens or so, and its text as it comes."""
    text: list[str] = []

    def chunks() -> Iterator[object]:
        for chunk in client.chat.completions.create(
            model=CHAT, messages=ask("Count."), max_tokens=100, temperature=0.7, seed=5, stream=True
        ):
            text.extend(choice.delta.content or "" for choice in chunk.choices)
            yield chunk

    return chunks(), text


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_engine_costs_a_stream_no_token(
    service: RunningService, client: openai.OpenAI, how: signal.Signals
) -> None:
    undisturbed, expected = counted(client)
    for _ in undisturbed:
        pass
    chunks, text = counted(client)
    for _ in range(5):
        next(chunks)
    os.kill(service.state()["health"]["engine_pid"], how)
    for _ in chunks:
        pass
    assert "".join(text) == "".join(expected)
    assert service.process.poll() is None


def test_a_stopped_engine_is_noticed_and_replaced(service: RunningService, client: openai.OpenAI) -> None:
    restarts = service.state()["health"]["engine_restarts"]
    pid = service.state()["health"]["engine_pid"]
    os.kill(pid, signal.SIGSTOP)
    assert client.chat.completions.create(model=CHAT, messages=ask("hi"), max_tokens=4).usage.completion_tokens > 0
    assert service.state()["health"]["engine_restarts"] == restarts + 1
