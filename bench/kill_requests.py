"""The requests of the campaign against the engine: what can make an answer depend on how it was computed.

Short and long prompts, beginnings that several share and long ones that nobody has cached, greedy and sampled with
seeds, penalties, log probabilities, grammars, stop strings, whole and streamed answers, embeddings. No prompt is the
continuation of another one's answer: with a float KV cache that is computed in other shapes than the answer was, and
need not be equal to the bit (docs/performance.md).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from bench.chat import COLD

Kind = Literal["completion", "chat", "long", "schema", "stops", "logprobs", "penalties", "embeddings"]

TOPICS = ("a lighthouse", "two lost keys", "the north wind", "bread", "fog", "an unpaid bill", "the night train")
SENTENCES = (
    "The lamp in the tower is lit at dusk and goes out at dawn.",
    "Whoever comes late to the harbour finds the gate closed.",
    "On Tuesdays the baker sells what is left from Monday for half the price.",
    "A letter without a stamp goes back to its sender.",
    "The old ferry carries eleven cars, or nine and a hay cart.",
    "Rain from the west lasts a day, rain from the east lasts three.",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "urgent": {"type": "boolean"},
    },
    "required": ["colour", "count", "urgent"],
    "additionalProperties": False,
}
STOPS = ([". "], ["\n"], [" the", ","], ["and", "in the"])
# How often each kind comes.
WEIGHTS: dict[Kind, int] = {
    "completion": 22, "chat": 20, "long": 16, "schema": 10, "stops": 10, "logprobs": 8, "penalties": 8,
    "embeddings": 6,
}  # fmt: skip
# The shared beginnings are of about so many sentences, a long prompt of so many.
SHARED_SENTENCES = 12
LONG_SENTENCES = (12, 45)
EMBEDDED_CHARACTERS = 240


class KillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `limit`: the answer has this many tokens for certain; 0: it may end earlier."""

    kind: Kind
    path: str
    body: dict[str, Any]
    headers: dict[str, str] = {}
    limit: int = 0

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: the chat model with the ids that end its answers, and the embedder, where there is one.
    `instructed`: the model has a chat template and is worth constraining. `scale` shortens prompts, `answers`
    lengthens answers."""

    chat: str
    eos: tuple[int, ...]
    embedder: str = ""
    instructed: bool = True
    scale: float = 1.0
    answers: float = 1.0


def requests(setting: Setting, seed: int, count: int, distinct: int) -> list[KillRequest]:
    """`count` requests of which `distinct` differ: the same seed gives the same ones."""
    dice = random.Random(seed)
    pool = [_one(setting, dice, kind, number) for number, kind in enumerate(_kinds(setting, dice, distinct))]
    chosen = [pool[number % len(pool)] for number in range(count)]
    dice.shuffle(chosen)
    return chosen


def _kinds(setting: Setting, dice: random.Random, count: int) -> Iterator[Kind]:
    weights = dict(WEIGHTS)
    if not setting.embedder:
        del weights["embeddings"]
    if not setting.instructed:
        for kind in ("chat", "schema"):
            del weights[kind]
    kinds = list(weights)
    yield from kinds[:count]  # each kind at least once
    yield from dice.choices(kinds, list(weights.values()), k=max(0, count - len(kinds)))


def _one(setting: Setting, dice: random.Random, kind: Kind, number: int) -> KillRequest:
    if kind == "embeddings":
        most = round(EMBEDDED_CHARACTERS * setting.scale)
        texts = [_text(dice, dice.randint(1, 3))[:most] for _ in range(dice.randint(1, 4))]
        return KillRequest(
            kind=kind, path="/v1/embeddings", body={"model": setting.embedder, "input": texts}
        )  # fmt: skip
    body: dict[str, Any] = {"model": setting.chat, **_drawn(dice)}
    limit = round(dice.randint(10, 40) * setting.answers)
    headers: dict[str, str] = {}
    path = "/v1/completions"
    prompt = f"{number}. {_text(dice, 1)} {dice.choice(['Once', 'Then', 'Therefore', 'But'])}"
    match kind:
        case "chat" | "schema":
            path = "/v1/chat/completions"
            # One of three rooms that everybody shares.
            rules = _text(random.Random(number % 3), round(SHARED_SENTENCES * setting.scale))
            question = f"Number {number}: what do you think of {dice.choice(TOPICS)}?"
            body["messages"] = [{"role": "system", "content": rules}, {"role": "user", "content": question}]
        case "long":
            prompt = f"{number}. {_text(dice, max(1, round(dice.randint(*LONG_SENTENCES) * setting.scale)))}"
            limit = round(12 * setting.answers)
            headers = COLD if dice.random() < 0.7 else {}
        case "penalties":
            body |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4}
        case "logprobs":
            body["logprobs"] = 2
        case "stops":
            body["stop"] = dice.choice(STOPS)
        case _:
            pass
    if path == "/v1/completions":
        body["prompt"] = prompt
    if kind == "schema":
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "label", "schema": SCHEMA, "strict": True},
        }
        limit = 60
    endless = kind not in ("schema", "stops")
    if endless:
        body["logit_bias"] = {str(token): -100 for token in setting.eos}
    body["max_tokens"] = limit
    if dice.random() < 0.7:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return KillRequest(kind=kind, path=path, body=body, headers=headers, limit=limit if endless else 0)


def _drawn(dice: random.Random) -> dict[str, Any]:
    """Half are greedy; each draw has a seed of its own."""
    if dice.random() < 0.5:
        return {"temperature": 0}
    ways: Sequence[Callable[[], dict[str, Any]]] = (
        lambda: {},
        lambda: {"top_p": 0.9},
        lambda: {"top_k": 20},
        lambda: {"min_p": 0.05},
    )
    return {"temperature": dice.choice([0.5, 0.8, 1.1]), "seed": dice.getrandbits(32), **dice.choice(ways)()}


def _text(dice: random.Random, sentences: int) -> str:
    return " ".join(
        f"{dice.choice(SENTENCES)} {dice.choice(TOPICS).capitalize()} comes next, {dice.randint(2, 99)} times."
        for _ in range(sentences)
    )
