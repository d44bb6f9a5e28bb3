"""The agents of the measured load, and what they say."""

from __future__ import annotations

import random
from typing import Any

from bench.chat import Reply

TURNS = 5
# Tokens of an answer. The model's end tokens are forbidden, so that compute times are even where they are to be.
ANSWER_TOKENS = 32

SYSTEM = (
    "You are one of several agents that look after a greenhouse together. Each agent has one task, reads its "
    "sensors, and tells the others in short sentences what it sees and what it does next. "
    "Never repeat what was said before."
)
REPORTS = (
    "The thermometer near the door shows {a} degrees, the one at the back {b}.",
    "Row {a} was watered for {b} minutes. The soil is still dry at the edges.",
    "The fan ran {a} times since noon, and the window is open by {b} centimetres.",
    "A visitor has taken {a} tomatoes and left {b} seedlings on the table.",
    "The light was switched on at {a} past six and measured at {b} per cent.",
)


class Agent:
    """One agent's side of its conversations, endless. `number` and `draw` make it say things of its own."""

    def __init__(self, number: int, draw: random.Random, end_ids: tuple[int, ...]) -> None:
        self.number = number
        self._draw = draw
        self._end_ids = end_ids
        self._conversation = 0
        self._messages: list[dict[str, Any]] = []
        self._turn = TURNS

    @property
    def conversation(self) -> str:
        """The name of the conversation under way."""
        return f"{self.number}-{self._conversation}"

    def next_body(self) -> dict[str, Any]:
        """The next turn's request; after the last turn of a conversation, the first of another."""
        if self._turn == TURNS:
            self._turn = 0
            self._conversation += 1
            self._messages = [{"role": "system", "content": SYSTEM}]
        report = REPORTS[(self.number + self._turn) % len(REPORTS)]
        said = report.format(a=self._draw.randint(1, 59), b=self._draw.randint(1, 59))
        opening = f"Agent {self.number}, day {self._conversation}. " if self._turn == 0 else ""
        self._messages.append({"role": "user", "content": opening + said})
        self._turn += 1
        return {
            "model": "default",
            "messages": self._messages,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0.7,
            "seed": self._draw.randint(0, 1 << 30),
            "logit_bias": {str(end): -100 for end in self._end_ids},
        }

    def answered(self, reply: Reply) -> None:
        self._messages.append(reply.message)
