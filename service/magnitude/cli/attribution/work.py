"""The work that `magnitude attribute` replays: a built-in mix, or requests from a file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Literal

import msgspec

from magnitude.errors import ConfigError

# Words of every language model's vocabulary; what they mean together does not matter, only how many there are.
WORDS = (
    "river stone market engine winter letter garden silver number window paper morning signal bridge field water "
    "station record music colour planet doctor summer harbour copper forest machine island village question answer"
)
MOST_REQUESTS = 1000


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request: the body that goes to the route."""

    route: Literal["chat", "embeddings"]
    body: dict[str, Any]


# Requests of a step are sent at once, steps one after another.
Work = tuple[tuple[Ask, ...], ...]


def built_in(seed: int, chat: str, embedder: str) -> Work:
    """What agents do in half a minute: short turns, one after a long tool result, several agents at once, and vectors
    in between. "": there is no such model. The same seed gives the same work."""
    chance = random.Random(seed)  # noqa: S311 - only words

    def text(words: int) -> str:
        return " ".join(chance.choices(WORDS.split(), k=words))

    def turn(words: int, new_tokens: int) -> tuple[Ask, ...]:
        if not chat:
            return ()
        content = f"Continue this list of words as long as you can: {text(words)}"
        body = {
            "model": chat,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": new_tokens,
            "temperature": 0,
        }
        return (Ask(route="chat", body=body),)

    def vectors(texts: int, words: int) -> tuple[Ask, ...]:
        body = {"model": embedder, "input": [text(words) for _ in range(texts)]}
        return (Ask(route="embeddings", body=body),) if embedder else ()

    steps = (
        turn(20, 32),
        vectors(4, 40),
        turn(300, 16),
        (*turn(20, 24), *turn(40, 24)),
        vectors(1, 12),
        turn(100, 32),
        (*turn(16, 24), *turn(16, 24), *turn(16, 24), *vectors(2, 30)),
    )
    return tuple(step for step in steps if step)


def read_work(path: Path, model: str) -> Work:
    """Requests from a file of JSON lines: a body of a chat (`messages`) or of embeddings (`input`) each; with
    `"together": true` it is sent at once with the one above. Those that name no model go to `model`. Raises
    `ConfigError` that names the line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the work {path} cannot be read: {error}", hint="Give a file of JSON lines") from error
    steps: list[list[Ask]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        ask, together = _ask(line, f"{path}, line {number}", model)
        if together and steps:
            steps[-1].append(ask)
        else:
            steps.append([ask])
    if not steps:
        raise ConfigError(f"the work {path} has no request", hint="Give one JSON object a line")
    if sum(map(len, steps)) > MOST_REQUESTS:
        raise ConfigError(
            f"the work {path} has more than {MOST_REQUESTS} requests", hint="It is replayed many times: take fewer"
        )
    return tuple(tuple(step) for step in steps)


def _ask(line: str, where: str, model: str) -> tuple[Ask, bool]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON: {error}", hint="One JSON object a line") from error
    if not isinstance(body, dict) or ("messages" in body) == ("input" in body):
        raise ConfigError(
            f"{where} is no request", hint='Give {"messages": [...]} for a chat or {"input": [...]} for vectors'
        )
    together = bool(body.pop("together", False))
    for name in ("stream", "stream_options"):
        body.pop(name, None)
    if "messages" in body:
        return Ask(route="chat", body={"model": model, "temperature": 0, "max_tokens": 64, **body}), together
    return Ask(route="embeddings", body=body), together
