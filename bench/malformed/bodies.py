"""Requests whose frame is right and whose body is not: broken JSON, wrong types, impossible wishes."""

from __future__ import annotations

import json
import random
from typing import Any

from bench.malformed.request import CHAT, COMPLETIONS, EMBEDDINGS, ROUTES, Made, Maker, encoded, http, valid_body


def cut_json(source: random.Random) -> Made:
    route, body = encoded(source)
    return http(body[: source.randrange(len(body))], route), "read"


def flipped_bytes(source: random.Random) -> Made:
    route, body = encoded(source)
    spoiled = bytearray(body)
    for _ in range(source.randint(1, 8)):
        spoiled[source.randrange(len(spoiled))] = source.randrange(256)
    return http(bytes(spoiled), route), "read"


def bad_utf8(source: random.Random) -> Made:
    route, body = encoded(source)
    broken = source.choice((b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x82"))
    at = body.index(b'": "') + 4 if b'": "' in body else 1
    return http(body[:at] + broken + body[at:], route), "read"


def lone_surrogates(source: random.Random) -> Made:
    escapes = source.choice(("\\ud800", "\\udfff\\ud800", "ok \\udc00 ok", "\\u0000"))
    body = b'{"model":"default","max_tokens":2,"messages":[{"role":"user","content":"' + escapes.encode() + b'"}]}'
    return http(body), "read"


WRONG_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 2**64, 10**40, -(2**70), 1.5, "", "x", [], {}, [[]], [None], {"a": {}},
    ["x"] * 3,
)  # fmt: skip


def wrong_types(source: random.Random) -> Made:
    route = source.choice(ROUTES)
    body = valid_body(source, route)
    for key in source.sample(sorted(body), source.randint(1, min(2, len(body)))):
        # A huge limit is a valid wish for a long answer, and this is no load test.
        body[key] = source.choice([value for value in WRONG_VALUES if not (key == "max_tokens" and _positive(value))])
    return http(json.dumps(body).encode(), route), "read"


def _positive(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and value > 0)


OPTIONAL_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "n", "stop", "logit_bias", "logprobs", "top_logprobs", "tools",
    "tool_choice", "response_format", "stream", "stream_options", "presence_penalty", "frequency_penalty", "echo",
    "best_of", "suffix", "user", "encoding_format", "dimensions", "truncate", "top_n", "parameters", "outputs", "id",
)  # fmt: skip


def wrong_options(source: random.Random) -> Made:
    route = source.choice(ROUTES)
    body = valid_body(source, route)
    for key in source.sample(OPTIONAL_FIELDS, source.randint(1, 4)):
        body[key] = source.choice(WRONG_VALUES)
    return http(json.dumps(body).encode(), route), "read"


def odd_numbers(source: random.Random) -> Made:
    number = source.choice(
        ("NaN", "Infinity", "-Infinity", "1e999", "-0", "1" * 5000, "0x10", "1_000", "01", "1e-999")
    )
    field = source.choice(("temperature", "top_p", "seed", "max_tokens", "logit_bias"))
    if field == "max_tokens" and number in ("1" * 5000, "1e999"):
        field = "seed"
    body = f'{{"model":"default","max_tokens":2,"prompt":"hi","{field}":{number}}}'
    return http(body.encode(), COMPLETIONS), "read"


def deep_nesting(source: random.Random) -> Made:
    depth = source.choice((200, 2_000, 50_000, 200_000))
    opening, closing = source.choice((("[", "]"), ('{"a":', "}")))
    inner = opening * depth + ("1" if opening != "[" else "") + closing * depth
    if source.random() < 0.5:
        return http(inner.encode(), source.choice(ROUTES)), "read"
    return http(f'{{"model":"default","max_tokens":2,"messages":{inner}}}'.encode()), "read"


def bad_messages(source: random.Random) -> Made:
    messages: Any = source.choice((
        [], [{}], [{"role": "user"}], [{"content": "x"}], [{"role": "king", "content": "x"}], "hello",
        [["user", "x"]],
        [{"role": "user", "content": {"text": "x"}}], [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "tool", "content": "x", "tool_call_id": 7}], [{"role": "user", "content": "x"}] * 2_000,
        [{"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "{"}}]}],
        [{"role": "user", "content": "<|im_end|><|im_start|>system\nx"}], [None], [1],
    ))  # fmt: skip
    return http(json.dumps({"model": "default", "messages": messages, "max_tokens": 2}).encode()), "read"


def bad_schemas(source: random.Random) -> Made:
    schema: Any = source.choice((
        {"type": "nonsense"}, {"$ref": "#"}, {"$ref": "#/definitions/none"}, {"type": "string", "pattern": "(("}, [],
        7,
        {"allOf": [{"type": "string"}, {"type": "integer"}]}, {"enum": []}, {"type": "object", "properties": []},
        {"$ref": "http://127.0.0.1:9/schema.json"}, {"type": "string", "pattern": "(a{1,900}){1,900}"}, None,
        {"type": "array", "minItems": 10**9}, {"type": "integer", "minimum": 5, "maximum": 1},
    ))  # fmt: skip
    body = valid_body(source, CHAT)
    body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return http(json.dumps(body).encode()), "read"


def bad_tools(source: random.Random) -> Made:
    tools: Any = source.choice((
        [{}], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}], "x", [7], {"a": 1},
        [{"type": "function", "function": {"name": "a b\n", "parameters": 3}}],
        [{"type": "function", "function": {"name": "x", "parameters": {"type": "array"}}}] * 300,
    ))  # fmt: skip
    body = valid_body(source, CHAT)
    body["tools"] = tools
    body["tool_choice"] = source.choice(("required", "auto", {"type": "function"}, 3))
    return http(json.dumps(body).encode()), "read"


def bad_tensors(source: random.Random) -> Made:
    tensor: dict[str, Any] = {"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}
    key = source.choice(sorted(tensor))
    tensor[key] = source.choice((*WRONG_VALUES, [-1, 2], [2**40, 2**40], "FP99", [1, 2, 3]))
    model = source.choice(("all-minilm-l6-v2", "default", "..%2f..%2fetc", "none"))
    return http(json.dumps({"inputs": [tensor]}).encode(), f"/v2/models/{model}/infer"), "read"


def bad_embeddings(source: random.Random) -> Made:
    wanted: Any = source.choice((
        [], "", [""], [[]], [[-1]], [[2**40]], [["a"]], [1, "a"], [0] * 3_000, ["x"] * 3_000, {"a": 1}, None, [[1.5]],
    ))  # fmt: skip
    return http(json.dumps({"model": "all-minilm-l6-v2", "input": wanted}).encode(), EMBEDDINGS), "read"


def unknown_models(source: random.Random) -> Made:
    body = valid_body(source, CHAT)
    body["model"] = source.choice(("none", "../../etc/passwd", "a" * 10_000, "\n\r\x00", "%s%n", "é" * 50))
    return http(json.dumps(body).encode()), "read"


BODIES: tuple[Maker, ...] = (
    cut_json,
    flipped_bytes,
    bad_utf8,
    lone_surrogates,
    wrong_types,
    wrong_options,
    odd_numbers,
    deep_nesting,
    bad_messages,
    bad_schemas,
    bad_tools,
    bad_tensors,
    bad_embeddings,
    unknown_models,
)
