"""The loop that every worker runs: a JSON request a line in, a JSON answer a line out.

    {"do": "start"}                        -> {"pid": ..., "facts": {...}}     libraries are in, no model yet
    {"do": "load", ...}                    -> {"load_s": ..., "facts": {...}}
    {"do": "generate", "ids": [...], "steps": n} -> {"prefill_s", "ttft_s", "decode_s"}
    {"do": "batch", "prompts": [[...], ...], "steps": n} -> the same, of contenders that run several rows at once
    {"do": "steps", "past": p, "rows": r, "steps": n}  -> {"decode_s"}    of contenders that can stand at any position
    {"do": "prompt", "tokens": n}          -> {"prefill_s"}               in an empty cache
    {"do": "logits", "ids": [...], "file": path}  -> {}                   float32 [ids, vocabulary], by NumPy's format
    {"do": "costs"}                        -> {name: {counter: sum}}      of operators since the last "costs"
    {"do": "stop"}                         -> {}

An answer to a request that failed is `{"error": "..."}`. Native libraries print to descriptor 1 as they like, so
the answers go to a copy of it and descriptor 1 itself is pointed at stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, Protocol, TypedDict, runtime_checkable


class Times(TypedDict):
    """Seconds of one generation, from the first token's id on: greedy, nothing stops it early.

    `prefill_s`: until the logits of the prompt's last token are there. `ttft_s`: from the request to the first
    token's id, in the caller's hands. `decode_s`: all further tokens.
    """

    prefill_s: float
    ttft_s: float
    decode_s: float


class Contender(Protocol):
    """What a worker measures."""

    def start(self) -> tuple[int, dict[str, str]]:
        """Load the libraries. Returns the pid whose memory counts, and versions."""

    def load(self, source: str, threads: int, context: int) -> dict[str, str]:
        """Load the model at `source` with room for `context` positions. Returns what is worth printing."""

    def generate(self, ids: list[int], steps: int) -> Times:
        """Prefill `ids` into an empty cache, then decode `steps` tokens after the first."""

    def stop(self) -> None:
        """Let go of everything."""


@runtime_checkable
class BatchContender(Contender, Protocol):
    """A contender that also runs several prompts side by side."""

    def batch(self, prompts: list[list[int]], steps: int) -> Times:
        """Like `generate`, with a row for each prompt and `steps` steps of all rows together."""


@runtime_checkable
class GraphContender(Contender, Protocol):
    """A contender that is timed at positions that it need not have computed up to first."""

    def steps(self, past: int, rows: int, steps: int) -> float:
        """Seconds that `steps` decode steps of `rows` rows take, the first of them at position `past`."""

    def prompt(self, tokens: int) -> float:
        """Seconds that a prompt of so many tokens takes in an empty cache."""

    def logits(self, ids: list[int]) -> Any:
        """Logits after each of `ids`, float32 `[ids, vocabulary]`."""

    def costs(self) -> dict[str, dict[str, int]]:
        """What operators have cost since the last call; empty where nothing is counted."""


def greedy(logits: Any) -> int:
    """Index of the largest logit of a one-dimensional NumPy array."""
    return int(logits.argmax())


def serve(contender: Contender) -> None:
    """Answer requests until stdin ends or `stop` comes."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        try:
            answer = _answer(contender, request)
        except Exception as error:  # whatever went wrong is the answer; the orchestrator decides
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if request["do"] == "stop":
            return


def _answer(contender: Contender, request: dict[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "start":
            pid, facts = contender.start()
            return {"pid": pid, "facts": facts}
        case "load":
            return {"facts": contender.load(request["source"], request["threads"], request["context"])}
        case "generate":
            return dict(contender.generate(request["ids"], request["steps"]))
        case "batch":
            if not isinstance(contender, BatchContender):
                raise TypeError("this contender runs one prompt at a time")
            return dict(contender.batch(request["prompts"], request["steps"]))
        case "steps" | "prompt" | "logits" | "costs":
            if not isinstance(contender, GraphContender):
                raise TypeError("this contender runs whole prompts only")
            return _graph_answer(contender, request)
        case "stop":
            contender.stop()
            return {}
        case other:
            raise ValueError(f"no such request: {other}")


def _graph_answer(contender: GraphContender, request: dict[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "steps":
            return {"decode_s": contender.steps(request["past"], request["rows"], request["steps"])}
        case "prompt":
            return {"prefill_s": contender.prompt(request["tokens"])}
        case "logits":
            import numpy

            numpy.save(request["file"], contender.logits(request["ids"]))
            return {}
        case _:
            return dict(contender.costs())
