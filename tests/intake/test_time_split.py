"""Where the time of an answer went: in headers, in a stream's last chunk, in the log and in the numbers."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from service_under_test import InProcess

from magnitude.config import ApiKey, ServerSettings, Settings
from magnitude.intake.gate import log as gate_log
from schedule_samples import BUSY

PATHS = ["/v1/chat/completions", "/v1/completions"]
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "prompt": "hello"}


class Ticking:
    """A clock that goes on by `step_s` each time it is read."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 1000.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def service() -> InProcess:
    keys = [ApiKey(name="root", sha256=hashlib.sha256(b"root").hexdigest(), admin=True)]
    service = InProcess(Settings(server=ServerSettings(api_keys=keys)), clock=Ticking(0.125))
    service.headers = {"Authorization": "Bearer root"}
    return service


@pytest.fixture
def logged() -> Iterator[list[dict[str, Any]]]:
    fields: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fields.append(record.__dict__.get("fields", {}))

    keep = Keep()
    gate_log.addHandler(keep)
    level = gate_log.level
    gate_log.setLevel(logging.INFO)
    yield fields
    gate_log.removeHandler(keep)
    gate_log.setLevel(level)


def durations(header: str) -> dict[str, float]:
    """The metrics of a `Server-Timing` header."""
    return {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([\d.]+)", header)}


def last_chunk(text: str) -> dict[str, Any]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    found: dict[str, Any] = json.loads(data[-2])
    return found


@pytest.mark.parametrize("path", PATHS)
def test_a_whole_answer_tells_its_times_tokens_slot_and_batch_in_headers(service: InProcess, path: str) -> None:
    reply = service.post(path, BODY)
    split = durations(reply.headers["Server-Timing"])
    assert {name: split[name] for name in ("queue", "prefill", "decode")} == {
        "queue": 1.0,
        "prefill": 10.0,
        "decode": 20.0,
    }
    assert split["total"] >= 125
    usage = reply.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3
    assert reply.headers["X-Magnitude-Prompt-Tokens"] == str(usage["prompt_tokens"])
    assert reply.headers["X-Magnitude-Completion-Tokens"] == str(usage["completion_tokens"])
    assert reply.headers["X-Magnitude-Cached-Tokens"] == "3"
    assert (reply.headers["X-Magnitude-Slot"], reply.headers["X-Magnitude-Batch"]) == ("2", "1.50")
    assert "X-Magnitude-Cut" not in reply.headers


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("include_usage", [True, False])
def test_a_stream_tells_the_queue_in_its_headers_and_all_in_its_last_chunk(
    service: InProcess, path: str, include_usage: bool
) -> None:
    reply = service.post(path, {**BODY, "stream": True, "stream_options": {"include_usage": include_usage}})
    assert durations(reply.headers["Server-Timing"]) == {"queue": 1.0}
    chunk = last_chunk(reply.text)
    told = chunk["magnitude"]
    assert told["times_ms"]["prefill"] == 10.0
    assert told["times_ms"]["total"] >= 125
    assert (told["cached_tokens"], told["slot"], told["batch"], told["cut"]) == (3, 2, 1.5, None)
    assert (told["drafted_tokens"], told["accepted_tokens"]) == (4, 3)
    if include_usage:
        assert chunk["choices"] == []
        assert chunk["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
        assert told["prompt_tokens"] == chunk["usage"]["prompt_tokens"]
    else:
        assert chunk["choices"][0]["finish_reason"] == "stop"
    assert reply.text.count('"magnitude"') == 1


def test_a_stream_that_starts_before_its_generation_says_nothing_of_the_queue(service: InProcess) -> None:
    service.inference.waited_s = None
    assert "Server-Timing" not in service.chat(stream=True).headers


@pytest.mark.parametrize("stream", [True, False])
def test_the_log_line_has_the_split_in_every_case(
    service: InProcess, logged: list[dict[str, Any]], stream: bool
) -> None:
    service.chat(stream=stream, headers={"X-Magnitude-Priority": "background"})
    line = logged[-1]
    assert (line["queue_ms"], line["prefill_ms"], line["decode_ms"]) == (1.0, 10.0, 20.0)
    assert line["ms"] >= 125
    assert (line["cached_tokens"], line["slot"], line["batch"]) == (3, 2, 1.5)
    assert (line["drafted"], line["accepted"]) == (4, 3)
    assert (line["task"], line["priority"]) == ("chat", "background")


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/embeddings", {"input": "hello"}), ("/v1/rerank", {"query": "a", "documents": ["b"]})]
)
def test_an_encoders_answer_tells_its_wait_its_run_and_its_batch(
    service: InProcess, logged: list[dict[str, Any]], path: str, body: Any
) -> None:
    reply = service.post(path, body)
    split = durations(reply.headers["Server-Timing"])
    assert (split["queue"], split["run"]) == (1.0, 2.0)
    assert split["total"] >= 125
    assert reply.headers["X-Magnitude-Batch"] == "2.00"
    assert reply.headers["X-Magnitude-Prompt-Tokens"] == str(reply.json()["usage"]["prompt_tokens"])
    assert (logged[-1]["queue_ms"], logged[-1]["run_ms"], logged[-1]["batch"]) == (1.0, 2.0, 2.0)
    assert logged[-1]["model"].startswith("tiny-")


def test_quantiles_of_all_parts_can_be_computed_by_model(service: InProcess) -> None:
    for _ in range(3):
        service.chat()
    service.post("/v1/embeddings", {"input": "hello"})
    for name in ("queue", "prefill", "decode", "answer"):
        assert service.count(f"magnitude_{name}_seconds_count", model="tiny-chat") == 3
    assert service.count("magnitude_prefill_seconds_bucket", model="tiny-chat", le="0.01") == 3
    assert service.count("magnitude_answer_seconds_count", model="tiny-embed") == 1
    assert service.count("magnitude_decode_seconds_count", model="tiny-embed") == 0


def test_cached_drafted_and_accepted_tokens_and_batches_are_counted(service: InProcess) -> None:
    for _ in range(2):
        service.chat()
    assert service.count("magnitude_cached_prompt_tokens_total", model="tiny-chat") == 6
    assert service.count("magnitude_drafted_tokens_total", model="tiny-chat") == 8
    assert service.count("magnitude_accepted_draft_tokens_total", model="tiny-chat") == 6
    assert service.count("magnitude_batch_size_sum", model="tiny-chat") == 3.0


def test_numbers_and_state_show_the_schedules_figures(service: InProcess) -> None:
    service.inference.schedule = BUSY
    assert service.count("magnitude_prefix_misses_total", model="tiny-chat", reason="evicted") == 5
    assert service.count("magnitude_conversation_limit", model="tiny-chat") == 11.2
    state = service.call("GET", "/v1/magnitude/state").json()
    assert state["schedule"]["models"]["tiny-chat"]["kv"]["idle_slots"] == 7
    assert state["schedule"]["models"]["tiny-chat"]["capacity"]["compute_slots"] == 4


# --- deadlines ---


def test_an_answer_that_was_cut_says_why(service: InProcess) -> None:
    service.inference.answer, service.inference.eos = "hello", False
    service.inference.last = msgspec.structs.replace(service.inference.last, cut="deadline")
    reply = service.chat()
    assert reply.json()["choices"][0]["finish_reason"] == "length"
    assert reply.headers["X-Magnitude-Cut"] == "deadline"
    chunk = last_chunk(service.chat(stream=True).text)
    assert chunk["choices"][0]["finish_reason"] == "length"
    assert chunk["magnitude"]["cut"] == "deadline"
    assert service.count("magnitude_deadline_misses_total", model="tiny-chat", mode="soft") == 2
