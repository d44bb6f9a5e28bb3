"""Streams that are computed together, and clients that leave in every phase."""

from __future__ import annotations

import httpx
import pytest
from agent_client import CHAT, ENDLESS, Agent, instructions, measured, said, until
from started_service import RunningService

pytestmark = pytest.mark.models


def test_ragged_prompts_computed_together_give_the_texts_that_they_give_alone(agents: RunningService) -> None:
    alone, together = Agent(agents, "second"), Agent(agents, "first")
    sentences = (0, 1, 3, 6, 9, 13, 20, 32)
    prompts = [
        said(f"Say what the number {n} means.", system=instructions(f"{n} things", n) if n else "") for n in sentences
    ]
    texts = []
    for prompt in prompts:
        answer = alone.chat(prompt, max_tokens=24, headers={"X-Magnitude-Keep": "no"})
        assert answer.cached_tokens == 0
        texts.append(answer.text)
    batched = measured(agents, "magnitude_batch_size_sum")
    streams = [together.stream(prompt, max_tokens=24) for prompt in prompts]
    assert [stream.whole() for stream in streams] == texts
    # Else this would say nothing about batches.
    assert measured(agents, "magnitude_batch_size_sum") > batched + len(prompts)


def test_clients_that_leave_in_any_phase_harm_nobody_and_leak_no_slot(agents: RunningService) -> None:
    agent = Agent(agents, "first")
    prompt = said("Tell me a long story.")
    expected = agent.chat(prompt, max_tokens=100, logit_bias=ENDLESS).text
    staying = agent.stream(prompt, max_tokens=100, logit_bias=ENDLESS)
    staying.begun()
    decoding = [agent.stream(said(f"Count to {n}."), max_tokens=4000, logit_bias=ENDLESS) for n in range(5)]
    until(lambda: any(stream.pieces for stream in decoding))
    queued = [agent.stream(said(f"Wait for {n}."), max_tokens=4000, logit_bias=ENDLESS) for n in range(3)]
    until(lambda: agents.state()["health"]["queue_depth"] >= 3)
    for stream in (*queued, *decoding):
        stream.leave()
    gone = 0
    for system in ("", instructions("leaving", 200)):
        # With the long prompt in its prefill, with the short one in its decode.
        try:
            agent.chat(said("Go on.", system=system), timeout=0.5, max_tokens=4000, logit_bias=ENDLESS)
        except httpx.ReadTimeout:
            gone += 1
    assert gone == 2
    assert staying.whole() == expected
    agents.until_idle()
    until(lambda: measured(agents, "magnitude_slots", state="cleaning") == 0)
    assert measured(agents, "magnitude_slots", state="running") == 0
    assert agents.state()["figures"][f"generate {CHAT}"]["failed"] == 0
    assert agent.chat(said("Name a colour.")).text
