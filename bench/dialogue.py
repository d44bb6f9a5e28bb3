"""An agent's dialogue turn by turn: the time to the first token with what is cached of it, beside the same prompt
computed from its first token, and after a restart of the service.

Every turn is asked twice, one right after the other and in alternating order: as the dialogue's next turn, and
*cold*, with `X-Magnitude-Keep: no`, which neither uses nor leaves anything in the cache. A dialogue's first turn is
cold by itself: its system prompt begins with a number of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bench.chat import COLD, Reply, chat
from bench.dialogue_script import QUESTIONS, RESULTS, SYSTEM, TOOLS
from bench.service_process import ServiceProcess
from bench.spread import Spread, paired_ratio

TURNS = 6
MAX_TOKENS = 60
# What the time to the first token is to be at most, as a multiple of the cold one.
WARM_GOAL = 0.15
RESTORED_GOAL = 0.25


class TurnPair(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, and the same prompt cold. `allowed_tokens`: new tokens of the prompt and the last answer, which is
    all that may be computed; 0 for a first turn, where all is new."""

    turn: int
    round: int
    warm: Reply
    cold: Reply
    allowed_tokens: int

    @property
    def recomputed_too_much(self) -> int:
        return max(0, self.warm.recomputed_tokens - self.allowed_tokens) if self.allowed_tokens else 0


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """One turn over all rounds. `recomputed_too_much`: in how many rounds more was computed than the new tokens and
    the last answer; `calls`: in how many the answer was a tool call."""

    turn: str
    prompt_tokens: Spread
    recomputed_tokens: Spread
    allowed_tokens: Spread
    warm_ttft_s: Spread
    cold_ttft_s: Spread
    ratio: Spread
    goal: float | None
    recomputed_too_much: int
    calls: int


class DialogueResult(msgspec.Struct, frozen=True, kw_only=True):
    """`turns` of the dialogue, and the `restored` one: the next turn after a restart. `restart_s`: from SIGTERM until
    the service was ready again; `saved`: conversations that were on disk then."""

    rounds: int
    turns: list[TurnResult]
    restored: TurnResult
    restart_s: float
    saved: int
    pairs: list[TurnPair]

    @property
    def missed(self) -> list[str]:
        """What was not reached, in words."""
        found = []
        for turn in (*self.turns, self.restored):
            if turn.goal is not None and turn.ratio.median > turn.goal:
                found.append(f"turn {turn.turn}: {turn.ratio.median:.3f} x cold, goal {turn.goal}")
            if turn.recomputed_too_much:
                found.append(
                    f"turn {turn.turn}: more than new tokens and last answer {turn.recomputed_too_much} times"
                )
        return found


class Dialogue:
    """One conversation as a client holds it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM.format(number=number)}]
        self.turn = 0
        self.last: Reply | None = None

    def body(self) -> dict[str, Any]:
        """The next turn's request. The client's part of it has been added by `ask_more`."""
        return {
            "model": "default",
            "messages": self.messages,
            "tools": list(TOOLS),
            # Every other turn calls a tool, whatever the model would rather do; between them it chooses.
            "tool_choice": "required" if self.turn % 2 else "auto",
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }

    def ask_more(self) -> None:
        """Begin the next turn: results for what the last answer called, or the next question."""
        calls = self.last.message.get("tool_calls", []) if self.last else []
        for call in calls:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": RESULTS[self.turn - 1]})
        if not calls:
            self.messages.append({"role": "user", "content": QUESTIONS[self.turn]})
        self.turn += 1

    def answered(self, reply: Reply) -> None:
        self.messages.append(reply.message)
        self.last = reply


def measure_dialogue(
    service: ServiceProcess, rounds: int, progress: Callable[[str], None] = lambda _: None
) -> DialogueResult:
    """Hold `rounds` dialogues, restart the service, and continue each. Raises `ServiceFailed`."""
    _warm_up(service)
    dialogues = [Dialogue(number) for number in range(1, rounds + 1)]
    pairs: list[TurnPair] = []
    for dialogue in dialogues:
        for _ in range(TURNS):
            progress(f"round {dialogue.number}, turn {dialogue.turn + 1}")
            pairs.append(_turn(service, dialogue))
    progress("restart")
    restart_s = service.restart()
    saved = sum(model.kv.saved_copies for model in service.state().schedule.models.values())
    _warm_up(service)
    restored = []
    for dialogue in dialogues:
        progress(f"round {dialogue.number}, after the restart")
        restored.append(_turn(service, dialogue))
    return DialogueResult(
        rounds=rounds,
        turns=[
            turn_result(str(turn), [pair for pair in pairs if pair.turn == turn], WARM_GOAL if turn > 1 else None)
            for turn in range(1, TURNS + 1)
        ],
        restored=turn_result("restored", restored, RESTORED_GOAL),
        restart_s=restart_s,
        saved=saved,
        pairs=[*pairs, *restored],
    )


def _turn(service: ServiceProcess, dialogue: Dialogue) -> TurnPair:
    last = dialogue.last
    dialogue.ask_more()
    body = dialogue.body()
    cold_body = {**body, "max_tokens": 1}
    if (dialogue.number + dialogue.turn) % 2:
        cold = chat(service.port, cold_body, COLD)
        warm = chat(service.port, body)
    else:
        warm = chat(service.port, body)
        cold = chat(service.port, cold_body, COLD)
    dialogue.answered(warm)
    allowed = warm.prompt_tokens - last.prompt_tokens if last else 0
    return TurnPair(turn=dialogue.turn, round=dialogue.number, warm=warm, cold=cold, allowed_tokens=allowed)


def _warm_up(service: ServiceProcess) -> None:
    """The first requests pay for packing, paging in and the first grammar; no measurement is about that."""
    body = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    for more in ({}, {"tools": list(TOOLS), "tool_choice": "required"}):
        chat(service.port, {**body, **more}, COLD)


def turn_result(turn: str, pairs: list[TurnPair], goal: float | None) -> TurnResult:
    """The rounds of one turn, in figures. Raises `ValueError` without rounds."""
    return TurnResult(
        turn=turn,
        prompt_tokens=Spread.of([pair.warm.prompt_tokens for pair in pairs]),
        recomputed_tokens=Spread.of([pair.warm.recomputed_tokens for pair in pairs]),
        allowed_tokens=Spread.of([pair.allowed_tokens or pair.warm.prompt_tokens for pair in pairs]),
        warm_ttft_s=Spread.of([pair.warm.ttft_s for pair in pairs]),
        cold_ttft_s=Spread.of([pair.cold.ttft_s for pair in pairs]),
        ratio=paired_ratio([pair.warm.ttft_s for pair in pairs], [pair.cold.ttft_s for pair in pairs]),
        goal=goal,
        recomputed_too_much=sum(bool(pair.recomputed_too_much) for pair in pairs),
        calls=sum(bool(pair.warm.message.get("tool_calls")) for pair in pairs),
    )
