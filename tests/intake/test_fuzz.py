"""Whatever is sent, the answer is well formed, never a fault of the service, and nothing stays behind."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from service_under_test import InProcess

SERVICE = InProcess()
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v2/models/adder/infer"]
HEADERS = ["Priority", "Deadline-Ms", "Deadline-Mode", "May-Cut", "Conversation", "Expect", "Task", "Keep"]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
SENSIBLE: dict[str, Any] = {
    "model": st.sampled_from(["tiny-chat", "tiny-embed", "tiny-rerank", "", None]),
    "messages": st.just([{"role": "user", "content": "hello"}]),
    "prompt": st.just("hello") | st.just([260, 261]),
    "input": st.just("hello") | st.just(["hello"]),
    "query": st.just("paris"),
    "documents": st.just(["hello", "world"]),
    "inputs": st.just(
        [
            {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
            {"name": "flag", "datatype": "BOOL", "shape": [1], "data": [True]},
        ]
    ),
}
FIELDS = [
    *SENSIBLE,
    *("stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("n", "seed", "stop", "logprobs", "top_logprobs", "logit_bias", "tools", "tool_choice", "response_format"),
    *("parallel_tool_calls", "repetition_penalty", "echo", "encoding_format", "dimensions", "truncate", "top_n"),
    *("return_documents", "outputs", "id", "chat_template_kwargs", "modalities", "store", "truncation"),
    *("requests", "hold_s"),
]


@st.composite
def bodies(draw: Any) -> dict[str, Any]:
    """Mostly right requests with some fields of any value."""
    body = {name: draw(value) for name, value in SENSIBLE.items()}
    for name in draw(st.lists(st.sampled_from(FIELDS), max_size=4, unique=True)):
        body[name] = draw(JSON)
    return body


def check(reply: Any, path: str) -> None:
    assert reply.status_code < 500, reply.text
    assert reply.headers["X-Request-Id"]
    assert SERVICE.inference.open == 0
    if reply.status_code >= 400:
        error = reply.json()["error"]
        assert isinstance(error, str) if path.startswith("/v2") else error["message"] and error["code"]


@settings(max_examples=250, deadline=None)
@given(path=st.sampled_from(PATHS), body=bodies())
def test_requests_with_strange_fields_are_answered_or_refused(path: str, body: dict[str, Any]) -> None:
    check(SERVICE.post(path, body), path)


@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from([*PATHS, "/v1/magnitude/reserve"]),
    body=bodies(),
    headers=st.dictionaries(
        st.sampled_from(HEADERS).map("X-Magnitude-{}".format),
        st.sampled_from(["soft", "hard", "tokens", "interactive", "no", "500", "1"])
        | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30),
        max_size=5,
    ),
)
def test_requests_with_strange_terms_are_answered_or_refused(
    path: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    check(SERVICE.post(path, body, headers=headers), path)


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=200))
def test_requests_of_any_bytes_are_refused(path: str, body: bytes) -> None:
    check(SERVICE.call("POST", path, content=body), path)


@settings(max_examples=100, deadline=None)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"]),
    path=st.text(alphabet=st.sampled_from("/v12modelschatinferx%?#.-_ "), max_size=30),
)
def test_any_path_is_answered(method: str, path: str) -> None:
    reply = SERVICE.call(method, "/" + path.replace("?", "").replace("#", "").lstrip("/"))
    assert reply.status_code < 500
    assert SERVICE.chat().status_code == 200
