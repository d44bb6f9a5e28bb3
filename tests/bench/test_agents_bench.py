"""The agents' load: theory, conversations, and figures from finished requests."""

import random
from typing import Any

import pytest

from bench.agents import Done, figures_of, predicted_even, predicted_uneven
from bench.chat import Reply
from bench.greenhouse import ANSWER_TOKENS, TURNS, Agent


def reply(compute_s: float = 1.0, wall_s: float = 1.5, cached: int = 60) -> Reply:
    return Reply(
        message={"role": "assistant", "content": "Good."},
        finish_reason="length",
        prompt_tokens=100,
        cached_tokens=cached,
        new_tokens=ANSWER_TOKENS,
        wall_s=wall_s,
        queue_s=wall_s - compute_s,
        prefill_s=compute_s / 2,
        decode_s=compute_s / 2,
        total_s=wall_s,
        batch=2.0,
    )


@pytest.mark.parametrize(("agents", "share"), [(4, 0.25), (8, 0.5), (16, 1.0), (32, 1.0)])
def test_even_agents_fill_the_slots_by_the_formula(agents: int, share: float) -> None:
    assert predicted_even(agents, 4, 2.0, 6.0) == pytest.approx(share)


@pytest.mark.parametrize(("agents", "share"), [(4, 0.25), (8, 0.5), (11, 0.67), (16, 0.89), (24, 1.0)])
def test_uneven_agents_fill_them_by_the_machine_repair_model(agents: int, share: float) -> None:
    assert predicted_uneven(agents, 4, 2.0, 6.0) == pytest.approx(share, abs=0.006)


def test_a_conversation_grows_by_question_and_answer_and_then_another_one_begins() -> None:
    agent = Agent(3, random.Random(1), (2, 0))
    lengths = []
    for _ in range(TURNS + 1):
        body: dict[str, Any] = agent.next_body()
        lengths.append(len(body["messages"]))
        agent.answered(reply())
    assert lengths == [2, 4, 6, 8, 10, 2]
    assert body["logit_bias"] == {"2": -100, "0": -100}
    assert body["messages"][1]["content"].startswith("Agent 3, day 2.")


def test_figures_count_new_tokens_and_the_time_outside_compute_slots() -> None:
    done = [Done(at_s=float(at), reply=reply(), total_s=3.0) for at in range(10)]
    figures = figures_of(done, 20.0)
    assert figures["tokens_per_s"] == 10 * ANSWER_TOKENS / 20.0
    assert figures["queue_p95_s"] == 2.0
    assert figures["compute_s"] == 1.0
    assert figures["wait_s"] == 3.0
    assert figures["cached_share"] == 0.6


def test_a_load_too_short_for_any_request_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="longer"):
        figures_of([], 5.0)
