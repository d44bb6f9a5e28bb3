"""The dialogue that is measured: what the client sends, and how the turns are judged."""

import json
from typing import Any

from bench.chat import Reply, read_reply
from bench.dialogue import TURNS, WARM_GOAL, Dialogue, TurnPair, turn_result
from bench.dialogue_script import QUESTIONS, RESULTS

CALL = {"id": "call_1", "type": "function", "function": {"name": "read_sensor", "arguments": '{"sensor": "rain"}'}}


def reply(message: dict[str, Any] | None = None, *, prompt: int = 900, cached: int = 0, wall_s: float = 1.0) -> Reply:
    return Reply(
        message=message or {"role": "assistant", "content": "Good."},
        finish_reason="stop",
        prompt_tokens=prompt,
        cached_tokens=cached,
        new_tokens=10,
        wall_s=wall_s,
        queue_s=0.0,
        prefill_s=0.5,
        decode_s=0.25,
        total_s=0.9,
    )


def test_a_reply_carries_the_services_own_times_and_the_message_as_it_came() -> None:
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]}
    usage = {"prompt_tokens": 50, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}
    body = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage}).encode()
    timing = "queue;dur=1.5, prefill;dur=200.0, decode;dur=300.0, total;dur=510.0"
    read = read_reply(body, [("Server-Timing", timing), ("X-Magnitude-Batch", "2.50")], 0.6)
    assert read.message == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert (read.recomputed_tokens, read.new_tokens, read.batch) == (10, 9, 2.5)
    assert round(read.ttft_s, 3) == 0.3
    assert round(read.before_prefill_s, 3) == 0.01


def test_a_call_is_followed_by_its_result_and_a_text_by_the_next_question() -> None:
    dialogue = Dialogue(1)
    dialogue.ask_more()
    assert dialogue.messages[-1] == {"role": "user", "content": QUESTIONS[0]}
    dialogue.answered(reply({"role": "assistant", "content": None, "tool_calls": [CALL]}))
    dialogue.ask_more()
    assert dialogue.messages[-1] == {"role": "tool", "tool_call_id": "call_1", "content": RESULTS[0]}
    dialogue.answered(reply())
    dialogue.ask_more()
    assert dialogue.messages[-1] == {"role": "user", "content": QUESTIONS[2]}
    assert dialogue.messages[-2]["content"] == "Good."


def test_dialogues_differ_from_their_first_words_on_and_have_something_for_every_turn() -> None:
    first, second = (Dialogue(number).messages[0]["content"] for number in (1, 2))
    assert first[:11] != second[:11]
    assert first[11:] == second[11:]
    assert len(QUESTIONS) == len(RESULTS) == TURNS + 1


def test_a_turn_that_computes_more_than_its_new_tokens_and_the_last_answer_is_counted() -> None:
    pairs = [
        TurnPair(turn=2, round=number, warm=reply(prompt=960, cached=cached), cold=reply(), allowed_tokens=60)
        for number, cached in enumerate((900, 899, 930))
    ]
    assert turn_result("2", pairs, WARM_GOAL).recomputed_too_much == 1


def test_a_ratio_is_formed_in_each_round() -> None:
    pairs = [
        TurnPair(
            turn=2, round=number, warm=reply(wall_s=0.25 + warm), cold=reply(wall_s=0.25 + cold), allowed_tokens=60
        )
        for number, (warm, cold) in enumerate(((1.0, 10.0), (4.0, 20.0), (3.0, 10.0)))
    ]
    ratio = turn_result("2", pairs, WARM_GOAL).ratio
    assert [round(value, 6) for value in (ratio.low, ratio.median, ratio.high)] == [0.1, 0.2, 0.3]
