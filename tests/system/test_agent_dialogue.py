"""Agents that come back with all that was said before: what was computed once is found, by its owner only."""

from __future__ import annotations

import pytest
from agent_client import ENDLESS, Agent, instructions, measured, said
from started_service import RunningService

pytestmark = pytest.mark.models


def test_each_turn_finds_the_turns_before_it(agents: RunningService) -> None:
    agent = Agent(agents, "first")
    messages = said("Name a colour.", system=instructions("turns"))
    before = agent.chat(messages)
    assert before.cached_tokens == 0
    for question in ("Name another one.", "And a third?"):
        messages += [{"role": "assistant", "content": before.text}, {"role": "user", "content": question}]
        turn = agent.chat(messages)
        # All but the template's tokens around the answer, and the last token, which nobody has computed.
        assert turn.cached_tokens >= before.prompt_tokens
        assert turn.headers["x-magnitude-cached-tokens"] == str(turn.cached_tokens)
        assert turn.headers["x-magnitude-slot"] == before.headers["x-magnitude-slot"]
        before = turn


def test_what_one_key_computed_is_never_another_keys(agents: RunningService) -> None:
    messages = said("What is a secret?", system=instructions("secrets"))
    owner, stranger = Agent(agents, "first"), Agent(agents, "second")
    first = owner.chat(messages)
    missed = measured(agents, "magnitude_prefix_misses_total", reason="other_key")
    foreign = stranger.chat(messages)
    assert foreign.cached_tokens == 0
    assert measured(agents, "magnitude_prefix_misses_total", reason="other_key") == missed + 1
    assert "other_key" not in str(foreign.body) + str(foreign.headers)
    assert owner.chat(messages).cached_tokens > 0
    assert foreign.text == first.text


def test_what_is_not_to_be_kept_is_not_found(agents: RunningService) -> None:
    messages = said("What is today?", system=instructions("days"))
    agent = Agent(agents, "first")
    assert agent.chat(messages, headers={"X-Magnitude-Keep": "no"}).cached_tokens == 0
    assert agent.chat(messages).cached_tokens == 0
    missed = measured(agents, "magnitude_prefix_misses_total", reason="off")
    assert agent.chat(messages, headers={"X-Magnitude-Keep": "no"}).cached_tokens == 0
    assert measured(agents, "magnitude_prefix_misses_total", reason="off") == missed + 1
    assert agent.chat(messages).cached_tokens > 0


def test_a_cached_prompt_gives_the_answer_that_a_cold_one_gives(agents: RunningService) -> None:
    agent = Agent(agents, "first")
    for number, sentences in enumerate((0, 3, 11, 30)):
        messages = said(
            f"Tell me about the number {number}.", system=instructions(f"numbers like {number}", sentences)
        )
        cold = agent.chat(messages, max_tokens=32)
        warm = agent.chat(messages, max_tokens=32)
        assert cold.cached_tokens == 0 or sentences == 0
        assert warm.cached_tokens > cold.cached_tokens
        assert warm.text == cold.text


def test_a_second_conversation_takes_the_system_prompt_from_one_that_still_runs(agents: RunningService) -> None:
    system = instructions("sharing", 30)
    agent = Agent(agents, "first")
    with agent.stream(said("Count.", system=system), max_tokens=4000, logit_bias=ENDLESS) as running:
        running.begun()
        copied = measured(agents, "magnitude_reused_tokens_total", source="copy")
        beside = agent.chat(said("Name a colour.", system=system))
        assert beside.cached_tokens > beside.prompt_tokens * 0.8
        assert measured(agents, "magnitude_reused_tokens_total", source="copy") == copied + beside.cached_tokens
        more = len(running.pieces)
        running.begun(more + 1)
    cold = Agent(agents, "second").chat(said("Name a colour.", system=system))
    assert cold.cached_tokens == 0
    assert beside.text == cold.text
    agents.until_idle()
