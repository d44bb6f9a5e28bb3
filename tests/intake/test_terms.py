"""Headers that say who goes first, until when, and what may be kept."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_under_test import InProcess
from starlette.datastructures import Headers

from magnitude.config import ApiKey, ServerSettings, Settings
from magnitude.errors import RequestError
from magnitude.intake.terms import Terms, read_terms
from magnitude.schedule.inference import Deadline, GenerationTask

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
INFER = {
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
        {"name": "flag", "datatype": "BOOL", "shape": [1], "data": [True]},
    ]
}
RUNS = [
    ("/v1/embeddings", {"input": "hello"}),
    ("/v1/rerank", {"query": "paris", "documents": ["hello"]}),
    ("/v2/models/adder/infer", INFER),
]


@pytest.fixture
def service() -> InProcess:
    return InProcess(clock=lambda: 50.0)


def terms(**headers: str) -> Terms:
    given = {f"x-magnitude-{name.replace('_', '-')}": value for name, value in headers.items()}
    return read_terms(Headers(given), arrived_s=50.0, task="chat")


def task_of(service: InProcess, headers: dict[str, str], **fields: Any) -> GenerationTask:
    reply = service.chat(headers=headers, **fields)
    assert reply.status_code == 200, reply.text
    return service.inference.tasks[-1]


def test_without_headers_a_request_is_normal_has_no_deadline_and_is_kept(service: InProcess) -> None:
    task = task_of(service, {})
    assert (task.priority, task.deadline, task.conversation, task.expect) == ("normal", None, "", 0)
    assert (task.keep_kv, task.save_kv, task.overflow) == (True, True, "stop")


def test_all_terms_reach_the_schedule(service: InProcess) -> None:
    task = task_of(
        service,
        {
            "X-Magnitude-Priority": "Interactive",
            "X-Magnitude-Deadline-Ms": "2500",
            "X-Magnitude-Deadline-Mode": "soft",
            "X-Magnitude-May-Cut": "model, tokens",
            "X-Magnitude-Conversation": "agent-7/turn",
            "X-Magnitude-Expect": "5",
            "X-Magnitude-Task": "Plan",
            "X-Magnitude-Keep": "no",
        },
    )
    assert task.priority == "interactive"
    assert task.deadline == Deadline(at_s=52.5, hard=False, may_cut=("tokens", "model"))
    assert (task.conversation, task.expect, task.task) == ("agent-7/turn", 5, "plan")
    assert (task.keep_kv, task.save_kv) == (False, False)


def test_a_deadline_is_hard_unless_it_says_otherwise_and_a_soft_one_cuts_tokens() -> None:
    assert terms(deadline_ms="10").deadline == Deadline(at_s=50.01, hard=True)
    assert terms(deadline_ms="10", deadline_mode="soft").deadline == Deadline(
        at_s=50.01, hard=False, may_cut=("tokens",)
    )


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"priority": "urgent"}, "X-Magnitude-Priority"),
        ({"priority": ""}, "X-Magnitude-Priority"),
        ({"deadline_ms": "0"}, "X-Magnitude-Deadline-Ms"),
        ({"deadline_ms": "-5"}, "X-Magnitude-Deadline-Ms"),
        ({"deadline_ms": "1.5"}, "X-Magnitude-Deadline-Ms"),
        ({"deadline_ms": "1_000"}, "X-Magnitude-Deadline-Ms"),
        ({"deadline_ms": "9" * 5000}, "X-Magnitude-Deadline-Ms"),
        ({"deadline_ms": "soon"}, "X-Magnitude-Deadline-Ms"),
        ({"deadline_ms": "5", "deadline_mode": "firm"}, "X-Magnitude-Deadline-Mode"),
        ({"deadline_ms": "5", "deadline_mode": "soft", "may_cut": "quality"}, "X-Magnitude-May-Cut"),
        ({"deadline_ms": "5", "deadline_mode": "soft", "may_cut": ""}, "X-Magnitude-May-Cut"),
        ({"deadline_ms": "5", "may_cut": "tokens"}, "X-Magnitude-May-Cut"),
        ({"deadline_mode": "soft"}, "X-Magnitude-Deadline-Mode"),
        ({"may_cut": "tokens"}, "X-Magnitude-May-Cut"),
        ({"conversation": ""}, "X-Magnitude-Conversation"),
        ({"conversation": "x" * 129}, "X-Magnitude-Conversation"),
        ({"conversation": "two words"}, "X-Magnitude-Conversation"),
        ({"conversation": "caf\xe9"}, "X-Magnitude-Conversation"),
        ({"expect": "-1"}, "X-Magnitude-Expect"),
        ({"expect": "many"}, "X-Magnitude-Expect"),
        ({"expect": "1000000"}, "X-Magnitude-Expect"),
        ({"task": "x" * 33}, "X-Magnitude-Task"),
        ({"task": 'a"b'}, "X-Magnitude-Task"),
        ({"keep": "maybe"}, "X-Magnitude-Keep"),
    ],
)
def test_a_header_that_cannot_be_meant_is_named_with_what_would_be_right(headers: dict[str, str], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        terms(**headers)
    assert caught.value.param == param
    assert caught.value.hint
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", *(path for path, _ in RUNS)])
def test_a_wrong_header_is_400_on_every_route_that_runs_a_model(service: InProcess, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", **dict(RUNS).get(path, {})}
    reply = service.post(path, body, headers={"X-Magnitude-Priority": "urgent"})
    assert reply.status_code == 400
    assert "X-Magnitude-Priority" in reply.text
    assert service.inference.tasks == service.inference.runs == []


def test_the_same_header_twice_is_taken_once_and_two_different_ones_are_refused() -> None:
    same = Headers(raw=[(b"x-magnitude-priority", b"background")] * 2)
    assert read_terms(same, arrived_s=0, task="chat").priority == "background"
    different = Headers(raw=[(b"x-magnitude-priority", b"background"), (b"x-magnitude-priority", b"normal")])
    with pytest.raises(RequestError, match="more than once"):
        read_terms(different, arrived_s=0, task="chat")


@given(
    st.dictionaries(
        st.sampled_from(
            ["priority", "deadline-ms", "deadline-mode", "may-cut", "conversation", "expect", "task", "keep"]
        ),
        st.text(st.characters(max_codepoint=255), max_size=40) | st.integers().map(str),
    )
)
def test_whatever_the_headers_hold_they_are_understood_or_refused(headers: dict[str, str]) -> None:
    named = Headers(
        raw=[(f"x-magnitude-{name}".encode(), value.encode("latin-1")) for name, value in headers.items()]
    )
    try:
        read = read_terms(named, arrived_s=7.0, task="chat")
    except RequestError:
        return
    assert read.deadline is None or read.deadline.at_s > 7.0
    assert read.expect >= 0


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "chat"),
        ({"tools": [TOOL]}, "tool"),
        ({"tools": [TOOL], "tool_choice": "none"}, "chat"),
        ({"response_format": {"type": "json_object"}}, "json"),
        ({"response_format": {"type": "text"}}, "chat"),
    ],
)
def test_the_kind_of_task_is_told_by_what_bounds_the_answer(
    service: InProcess, fields: dict[str, Any], kind: str
) -> None:
    assert task_of(service, {}, **fields).task == kind


def test_a_raw_prompt_is_a_task_of_its_own_kind(service: InProcess) -> None:
    service.post("/v1/completions", {"prompt": "hello"})
    assert service.inference.tasks[0].task == "completion"


@pytest.mark.parametrize(("path", "body"), RUNS)
def test_runs_of_encoders_and_tensors_have_priority_deadline_and_client(path: str, body: Any) -> None:
    key = "secret"
    keys = [ApiKey(name="ann", sha256=hashlib.sha256(key.encode()).hexdigest())]
    service = InProcess(Settings(server=ServerSettings(api_keys=keys)), clock=lambda: 50.0)
    headers = {
        "X-Magnitude-Priority": "background",
        "X-Magnitude-Deadline-Ms": "100",
        "Authorization": f"Bearer {key}",
    }
    assert service.post(path, body, headers=headers).status_code == 200
    assert service.inference.runs == [("background", Deadline(at_s=50.1), "ann")]


# --- what may be kept, and what happens when the context is full ---


def test_an_answer_that_is_not_to_be_stored_is_cached_but_never_saved(service: InProcess) -> None:
    """The openai client sends `store` when it is set, and there it is about what is kept after the answer: prompts
    are cached there with `store: false` as well."""
    task = task_of(service, {}, store=False)
    assert (task.keep_kv, task.save_kv) == (True, False)
    assert task_of(service, {}, store=True).save_kv
    assert task_of(service, {}, store=None).save_kv
    assert service.chat(store="no").json()["error"]["param"] == "store"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_truncation_auto_lets_an_answer_outgrow_the_context(service: InProcess, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "max_tokens": 5000}
    for truncation, overflow in (("auto", "slide"), ("disabled", "stop"), (None, "stop")):
        assert service.post(path, {**body, "truncation": truncation}).status_code == 200
        task = service.inference.tasks[-1]
        assert task.overflow == overflow
        assert task.max_new_tokens == (5000 if overflow == "slide" else 256 - len(task.prompt))
    assert service.post(path, {**body, "truncation": "middle"}).json()["error"]["param"] == "truncation"


def test_an_answer_that_may_slide_is_still_bounded(service: InProcess) -> None:
    assert task_of(service, {}, truncation="auto", max_tokens=10**30).max_new_tokens == 1_048_576


def test_a_prompt_beyond_the_context_is_refused_even_where_the_answer_may_slide(service: InProcess) -> None:
    service.inference.context = 8
    reply = service.chat(truncation="auto")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
