"""Reading streamed answers and making up the prompts of the speculation benchmark."""

import json
import os
from collections.abc import Iterator

import psutil
import pytest

from bench.service_process import ServiceFailed
from bench.speculation import GOALS, LEAST_PARAGRAPH, PASSAGE, Answer, passages, prompts, read_answer


def events(*chunks: dict[str, object]) -> Iterator[bytes]:
    for chunk in chunks:
        yield b"data: " + json.dumps(chunk).encode() + b"\n"
        yield b"\n"
    yield b"data: [DONE]\n"


def piece(text: str, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}


def read(*chunks: dict[str, object]) -> Answer:
    return read_answer(events(*chunks), psutil.Process(os.getpid()))


def test_an_answers_tokens_are_counted_from_the_first_piece_on() -> None:
    answer = read(
        piece("Hello"), piece(" you"), piece("", "stop"), {"choices": [], "usage": {"completion_tokens": 9}}
    )
    assert (answer.text, answer.tokens) == ("Hello you", 8)
    assert answer.decode_s > 0
    assert answer.cpu_s >= 0


def test_an_answer_without_usage_is_no_measurement() -> None:
    with pytest.raises(ServiceFailed):
        read(piece("Hello", "stop"))


def test_quoted_passages_are_whole_paragraphs_of_the_pages() -> None:
    for passage in passages():
        assert LEAST_PARAGRAPH <= len(passage) <= PASSAGE


@pytest.mark.parametrize("task", GOALS)
def test_every_task_has_prompts_of_its_own(task: str) -> None:
    assert len(set(prompts(task))) == len(prompts(task)) == 8
