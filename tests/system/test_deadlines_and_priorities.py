"""Who goes first, who waits, and what becomes of those who cannot wait: one generation at a time shows it."""

from __future__ import annotations

import threading

import httpx
import pytest
from agent_client import CHAT, ENDLESS, Agent, Stream, measured, said, until
from started_service import RunningService

pytestmark = pytest.mark.models

LONG = {"max_tokens": 1900, "logit_bias": ENDLESS}


def waiting(service: RunningService, requests: int) -> None:
    until(lambda: service.state()["health"]["queue_depth"] == requests)


def test_a_hard_deadline_that_passes_in_the_queue_is_told_with_nothing_done(narrow: RunningService) -> None:
    agent = Agent(narrow, "first")
    with agent.stream(said("Count."), **LONG) as running:
        running.begun()
        answer = agent.chat(said("Name a colour."), headers={"X-Magnitude-Deadline-Ms": "300"})
        assert answer.status == 504
        assert answer.error["code"] == "deadline_exceeded"
        assert answer.error["hint"]
        assert answer.error["done"] == {"prompt_tokens": 0, "completion_tokens": 0, "text": ""}
        running.begun(len(running.pieces) + 1)
    narrow.until_idle()


def test_a_hard_deadline_that_passes_in_the_answer_is_told_with_what_was_done(narrow: RunningService) -> None:
    agent = Agent(narrow, "first")
    question = said("Tell me a long story.")
    prompt_tokens = agent.chat(question, max_tokens=1).prompt_tokens
    answer = agent.chat(question, headers={"X-Magnitude-Deadline-Ms": "2000"}, **LONG)
    assert answer.status == 504
    done = answer.error["done"]
    assert done["prompt_tokens"] == prompt_tokens
    assert 0 < done["completion_tokens"] < 1900
    assert done["text"]
    assert answer.headers["x-should-retry"] == "false"
    narrow.until_idle()


def test_a_soft_deadline_makes_the_answer_shorter_and_says_why(narrow: RunningService) -> None:
    agent = Agent(narrow, "first")
    headers = {"X-Magnitude-Deadline-Ms": "1500", "X-Magnitude-Deadline-Mode": "soft"}
    missed = measured(narrow, "magnitude_deadline_misses_total", mode="soft")
    answer = agent.chat(said("Tell me a story about the sea."), headers=headers, **LONG)
    assert answer.status == 200
    assert answer.reason == "length"
    assert answer.headers["x-magnitude-cut"] == "deadline"
    assert 0 < answer.completion_tokens < 1900
    assert ", prefill;dur=0.0" not in answer.headers["server-timing"]
    assert measured(narrow, "magnitude_deadline_misses_total", mode="soft") == missed + 1
    streamed = agent.stream(said("Tell me a story about the sky."), headers=headers, **LONG)
    assert streamed.whole()
    assert (streamed.reason, streamed.cost["cut"]) == ("length", "deadline")


def test_interactive_requests_overtake_others_in_the_queue(narrow: RunningService) -> None:
    agent = Agent(narrow, "first")
    ended: list[str] = []

    def ask(priority: str) -> None:
        agent.chat(said(f"Say {priority}."), headers={"X-Magnitude-Priority": priority})
        ended.append(priority)

    threads = []
    with agent.stream(said("Count."), **LONG) as running:
        running.begun()
        for depth, priority in enumerate(("normal", "interactive"), start=1):
            threads.append(threading.Thread(target=ask, args=(priority,)))
            threads[-1].start()
            waiting(narrow, depth)
    for thread in threads:
        thread.join()
    assert ended == ["interactive", "normal"]


def test_a_background_answer_gives_way_and_ends_as_if_nothing_had_been(narrow: RunningService) -> None:
    agent, other = Agent(narrow, "first"), Agent(narrow, "second")
    story = said("Tell me a story without an end.")
    paused = measured(narrow, "magnitude_preemptions_total")
    with agent.stream(story, headers={"X-Magnitude-Priority": "background"}, **LONG) as background:
        background.begun()
        answer = other.chat(said("Name a colour."), headers={"X-Magnitude-Priority": "interactive"})
        assert answer.text
        assert measured(narrow, "magnitude_preemptions_total") == paused + 1
        assert not background.reason
        pieces = len(background.pieces) + 30
        background.begun(pieces)
    with other.stream(story, **LONG) as undisturbed:
        undisturbed.begun(pieces)
    assert undisturbed.pieces[:pieces] == background.pieces[:pieces]
    assert "is computed again" not in narrow.log.read_text()
    narrow.until_idle()


def test_a_full_queue_says_where_one_would_have_stood_and_when_to_come_again(narrow: RunningService) -> None:
    agent = Agent(narrow, "first")
    held: list[Stream] = []
    try:
        for number in range(3):
            held.append(agent.stream(said(f"Count to {number}."), **LONG))
            if number:
                waiting(narrow, number)
            else:
                held[0].begun()
        refused = agent.chat(said("Name a colour."))
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-magnitude-queue-position"] == str(refused.error["queue_position"]) == "3"
        assert refused.error["hint"]
    finally:
        for stream in reversed(held):
            stream.leave()
    narrow.until_idle()


def test_what_was_reserved_is_held_for_who_reserved_it(steady: RunningService) -> None:
    owner, other = Agent(steady, "first"), Agent(steady, "second")
    slots = int(measured(steady, "magnitude_compute_slots"))
    url = f"{steady.url}/v1/magnitude/reserve"
    reserved = httpx.post(url, headers=owner.authorization, json={"requests": slots, "hold_s": 60}, timeout=30).json()
    # One is always left to everybody.
    assert (reserved["model"], reserved["granted"]) == (CHAT, slots - 1)
    assert reserved["reason"]
    try:
        with other.stream(said("Count."), **LONG) as running, other.stream(said("Count on."), **LONG) as next_one:
            running.begun()
            waiting(steady, 1)
            if slots > 1:
                assert owner.chat(said("Name a colour.")).text
            httpx.delete(url, headers=owner.authorization, timeout=30).raise_for_status()
            if slots > 1:
                next_one.begun()
    finally:
        httpx.delete(url, headers=owner.authorization, timeout=30)
    steady.until_idle()
