"""What real clients send: taken as meant, or refused with the field's name."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from service_under_test import InProcess

USER = {"role": "user", "content": "hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture
def service() -> InProcess:
    return InProcess()


def refused(service: InProcess, param: str, **fields: Any) -> None:
    reply = service.chat(**fields)
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert service.inference.tasks == []


@pytest.mark.parametrize("stop", [None, "", [], ["", ""]])
def test_no_stop_is_no_stop(service: InProcess, stop: Any) -> None:
    assert service.chat(stop=stop).json()["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize("stop", ["i", ["i"], ["x", "i"]])
def test_a_single_stop_and_a_list_mean_the_same(service: InProcess, stop: Any) -> None:
    assert service.chat(stop=stop).json()["choices"][0]["message"]["content"] == "h"


@pytest.mark.parametrize("stop", [["a", "b", "c", "d", "e"], 5, [5], {"a": 1}, True])
def test_a_wrong_stop_is_named(service: InProcess, stop: Any) -> None:
    refused(service, "stop", stop=stop)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"max_tokens": 7, "max_completion_tokens": 8}, 7),
        ({"max_tokens": 9, "max_completion_tokens": 8}, 8),
        ({"max_tokens": None, "max_completion_tokens": 8}, 8),
        ({"max_tokens": 10**30}, 1000),
        ({"max_tokens": None}, 256),
        ({}, 256),
    ],
)
def test_either_name_of_the_token_limit_works_and_there_always_is_one(
    service: InProcess, fields: dict[str, Any], limit: int
) -> None:
    service.chat()
    service.inference.context = len(service.inference.tasks[0].prompt) + 1000
    assert service.chat(**fields).status_code == 200
    assert service.inference.tasks[1].max_new_tokens == limit


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "7", True, [1]])
def test_a_wrong_token_limit_is_named(service: InProcess, name: str, value: Any) -> None:
    refused(service, name, **{name: value})


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "assistant", "tool_calls": None},
        {"role": "user", "content": None},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": []},
        {"role": "user", "content": "x", "name": "ann", "whatever": {"deep": [1]}},
    ],
)
def test_messages_as_clients_send_them_are_taken(service: InProcess, message: dict[str, Any]) -> None:
    assert service.chat(messages=[message, USER]).status_code == 200


def test_text_parts_are_joined(service: InProcess) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    service.chat(messages=[{"role": "user", "content": parts}])
    service.chat(messages=[USER])
    assert service.inference.tasks[0].prompt == service.inference.tasks[1].prompt


@pytest.mark.parametrize("messages", ["x", [], None, 5, {"role": "user"}])
def test_messages_that_are_none_are_refused_at_once(service: InProcess, messages: Any) -> None:
    refused(service, "messages", messages=messages)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("x", "messages[0]"),
        (None, "messages[0]"),
        ({}, "messages[0].role"),
        ({"role": "king", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": {"a": 1}}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "messages[0].tool_calls[0].function"),
    ],
)
def test_a_wrong_message_is_named_by_its_place(service: InProcess, message: Any, param: str) -> None:
    refused(service, param, messages=[message])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias.5"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"seed": 2**70}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 5}, "stream_options"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"model": 5}, "model"),
    ],
)
def test_a_wrong_value_is_named(service: InProcess, fields: dict[str, Any], param: str) -> None:
    refused(service, param, **fields)


def test_null_means_absent_everywhere(service: InProcess) -> None:
    names = (
        "stop max_tokens max_completion_tokens temperature top_p top_k min_p n seed stream stream_options logprobs "
    )
    names += "top_logprobs logit_bias tools tool_choice response_format functions user parallel_tool_calls modalities"
    reply = service.chat(**dict.fromkeys(names.split()))
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["logprobs"] is None


def test_unknown_fields_are_ignored(service: InProcess) -> None:
    assert service.chat(store=True, metadata={"a": "b"}, reasoning_effort="low", frob=[1]).status_code == 200


def test_sampling_fields_reach_the_engine(service: InProcess) -> None:
    service.chat(
        temperature=0, top_p=0.5, top_k=-1, min_p=0.1, repetition_penalty=1.1, logit_bias={"7": -100}, seed=-1
    )
    sampler = service.inference.tasks[0].sampler
    assert (sampler.temperature, sampler.top_p, sampler.top_k, sampler.min_p) == (0, 0.5, 0, 0.1)
    assert (sampler.repetition_penalty, sampler.logit_bias, sampler.seed) == (1.1, {7: -100.0}, 2**64 - 1)


def test_the_model_may_be_left_out(service: InProcess) -> None:
    assert service.post("/v1/chat/completions", {"messages": [USER]}).json()["model"] == "tiny-chat"


def test_an_unknown_model_is_404(service: InProcess) -> None:
    reply = service.chat(model="gpt-9")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"


def test_a_model_of_the_wrong_kind_is_refused_with_a_fitting_one(service: InProcess) -> None:
    error = service.chat(model="tiny-embed").json()["error"]
    assert error["code"] == "model_kind_mismatch"
    assert "tiny-chat" in error["hint"]


# --- completions ---


@pytest.mark.parametrize("prompt", ["hello", ["hello"]])
def test_a_completion_prompt_may_stand_in_a_list(service: InProcess, prompt: Any) -> None:
    reply = service.post("/v1/completions", {"prompt": prompt})
    assert reply.json()["choices"][0]["text"] == "hi"


@pytest.mark.parametrize("prompt", [[260, 261], [[260, 261]]])
def test_a_completion_prompt_of_token_ids_is_taken_as_it_is(service: InProcess, prompt: Any) -> None:
    assert service.post("/v1/completions", {"prompt": prompt}).status_code == 200
    assert service.inference.tasks[0].prompt == [260, 261]


@pytest.mark.parametrize("prompt", [None, "", [], ["a", "b"], [1, "a"], [-1], [10**9], [True], 5, {"a": 1}, [[]]])
def test_a_wrong_completion_prompt_is_named(service: InProcess, prompt: Any) -> None:
    reply = service.post("/v1/completions", {"prompt": prompt})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "prompt"


def test_a_completion_can_echo_its_prompt_and_give_log_probabilities(service: InProcess) -> None:
    reply = service.post("/v1/completions", {"prompt": "say ", "echo": True, "logprobs": 1})
    choice = reply.json()["choices"][0]
    assert choice["text"] == "say hi"
    assert "".join(choice["logprobs"]["tokens"]) == "hi"
    assert choice["logprobs"]["text_offset"][0] == 4


def test_control_strings_in_a_raw_prompt_count(service: InProcess) -> None:
    service.post("/v1/completions", {"prompt": "<|im_start|>user\nhi<|im_end|>"})
    assert [i for i in service.inference.tasks[0].prompt if i < 3] == [1, 2]


def test_a_completion_streams(service: InProcess) -> None:
    reply = service.post(
        "/v1/completions", {"prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
    )
    lines = [line for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    assert '"choices":[]' in lines[-2]


# --- embeddings ---


def test_vectors_are_floats_unless_base64_is_asked_for(service: InProcess) -> None:
    plain = service.post("/v1/embeddings", {"input": "hello world"}).json()["data"][0]["embedding"]
    coded = service.post("/v1/embeddings", {"input": "hello world", "encoding_format": "base64"}).json()
    assert plain == [4.0] * 4
    assert list(struct.unpack("<4f", base64.b64decode(coded["data"][0]["embedding"]))) == plain


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ("hello", [[2, 9, 3]]),
        (["hello", "world"], [[2, 9, 3], [2, 10, 3]]),
        ([9, 10], [[2, 9, 10, 3]]),
        ([[9], [10]], [[2, 9, 3], [2, 10, 3]]),
    ],
)
def test_texts_and_token_ids_are_embedded_with_the_models_special_tokens(
    service: InProcess, given: Any, ids: list[list[int]]
) -> None:
    reply = service.post("/v1/embeddings", {"input": given})
    assert [d["index"] for d in reply.json()["data"]] == list(range(len(ids)))
    assert service.inference.embedded == [ids]
    assert reply.json()["usage"]["prompt_tokens"] == sum(map(len, ids))


@pytest.mark.parametrize(
    "given", [None, "", [], [""], [[]], 5, {"a": 1}, ["a", 1], [1, "a"], [1.5], [[1], "a"], [-1]]
)
def test_a_wrong_embedding_input_is_named(service: InProcess, given: Any) -> None:
    reply = service.post("/v1/embeddings", {"input": given})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].split("[")[0] == "input"
    assert service.inference.embedded == []


@pytest.mark.parametrize("form", ["hex", 5, ["float"]])
def test_an_unknown_encoding_of_vectors_is_refused(service: InProcess, form: Any) -> None:
    reply = service.post("/v1/embeddings", {"input": "a", "encoding_format": form})
    assert reply.json()["error"]["param"] == "encoding_format"


def test_other_dimensions_than_the_models_are_refused(service: InProcess) -> None:
    assert service.post("/v1/embeddings", {"input": "a", "dimensions": 4}).status_code == 200
    assert service.post("/v1/embeddings", {"input": "a", "dimensions": 2}).json()["error"]["param"] == "dimensions"


def test_a_text_too_long_to_embed_is_refused_or_cut_as_asked(service: InProcess) -> None:
    long = "hello " * 40
    error = service.post("/v1/embeddings", {"input": [long]}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "42" in error["message"]
    assert "16" in error["message"]
    reply = service.post("/v1/embeddings", {"input": ["a", long], "truncate": True})
    assert reply.json()["truncated"] == [1]
    assert len(service.inference.embedded[0][1]) == 16


# --- rerank ---


def test_documents_come_back_best_first(service: InProcess) -> None:
    body = {"query": "paris", "documents": ["hello", {"text": "hello world"}, "a"], "return_documents": True}
    results = service.post("/v1/rerank", body).json()["results"]
    assert [r["index"] for r in results] == [1, 0, 2]
    assert results[0]["document"] == {"text": "hello world"}
    assert all(0 <= r["relevance_score"] <= 1 for r in results)


def test_top_n_bounds_the_results(service: InProcess) -> None:
    body = {"query": "paris", "documents": ["a", "b", "c"], "top_n": 2}
    assert len(service.post("/v1/rerank", body).json()["results"]) == 2


def test_a_long_document_is_cut_and_the_result_says_so(service: InProcess) -> None:
    results = service.post("/v1/rerank", {"query": "paris", "documents": ["hello " * 40]}).json()["results"]
    assert results[0]["truncated_tokens"] == 28
    assert len(service.inference.embedded[0][0]) == 16


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": "a"}, "documents"),
        ({"query": "a", "documents": [5]}, "documents[0]"),
        ({"query": "a", "documents": [{"title": "x"}]}, "documents[0].text"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "hello " * 40, "documents": ["a"]}, "query"),
    ],
)
def test_a_wrong_rerank_request_is_named(service: InProcess, body: dict[str, Any], param: str) -> None:
    reply = service.post("/v1/rerank", body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize("fields", [{"messages": "hi"}, {"temperature": 3}, {"stop": 5}, {"max_tokens": 0}])
def test_every_refusal_says_what_to_do_next(fields: dict) -> None:
    reply = InProcess().chat(**fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["hint"]
