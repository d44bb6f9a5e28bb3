"""Answers that outgrow their context, answers that quote, and embeddings beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from agent_client import ENDLESS, Agent, link_models, measured, said, write_settings
from started_service import RunningService

pytestmark = pytest.mark.models

EMBEDDER = "all-minilm-l6-v2"
QUOTED = (
    "The spare key of the server room is kept in the red box behind the printer on the second floor, "
    "next to the window that faces the yard, and only the caretaker knows the number of its lock."
)


def test_an_answer_goes_on_beyond_the_context_where_that_is_asked_for(narrow: RunningService) -> None:
    agent = Agent(narrow, "first")
    prompt = said("word " * 1950)
    stopped = agent.chat(prompt, max_tokens=200, logit_bias=ENDLESS)
    assert stopped.reason == "length"
    assert stopped.prompt_tokens + stopped.completion_tokens == 2048
    longer = agent.chat(prompt, max_tokens=200, logit_bias=ENDLESS, truncation="auto")
    assert longer.completion_tokens == 200
    assert longer.text.startswith(stopped.text)
    assert agent.chat(said("Name a colour.")).text
    narrow.until_idle()


@pytest.fixture
def drafting(magnitude_home: Path, tmp_path: Path) -> Iterator[RunningService]:
    """A service that drafts, as one does by default."""
    link_models(tmp_path, magnitude_home)
    write_settings(tmp_path, engine={"speculation": "on"})
    running = RunningService(tmp_path)
    running.wait_ready()
    yield running
    running.stop()


def test_a_quote_is_drafted_ahead_and_reads_as_without_drafts(
    drafting: RunningService, agents: RunningService
) -> None:
    question = said(f"Repeat this text word by word, twice: {QUOTED}")
    drafted = Agent(drafting, "first").chat(question, max_tokens=90)
    plain = Agent(agents, "first").chat(question, max_tokens=90)
    assert drafted.text == plain.text
    assert measured(drafting, "magnitude_accepted_draft_tokens_total") > 0
    assert measured(agents, "magnitude_drafted_tokens_total") == 0


def test_embeddings_are_gathered_beside_a_generation_and_are_the_same_numbers(agents: RunningService) -> None:
    agent = Agent(agents, "first")

    def embed(text: str) -> httpx.Response:
        body = {"model": EMBEDDER, "input": text}
        return httpx.post(f"{agents.url}/v1/embeddings", headers=agent.authorization, json=body, timeout=120)

    texts = [f"The text with the number {number} has {'many ' * number}words." for number in range(12)]
    alone = [embed(text).json()["data"][0]["embedding"] for text in texts]
    with agent.stream(said("Count."), max_tokens=4000, logit_bias=ENDLESS) as running:
        running.begun()
        before = len(running.pieces)
        with ThreadPoolExecutor(len(texts)) as pool:
            replies = list(pool.map(embed, texts))
        running.begun(before + 2)
    for reply, vector in zip(replies, alone, strict=True):
        assert reply.json()["data"][0]["embedding"] == pytest.approx(vector, abs=1e-4)
    batches = [float(reply.headers.get("x-magnitude-batch", 1)) for reply in replies]
    assert max(batches) > 1, json.dumps(batches)
    agents.until_idle()
