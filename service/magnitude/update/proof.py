"""Real inference through the running service, compared with what the models computed when they were imported.

The service proves each model by its golden set once for a (model, ONNX Runtime, CPU) and remembers it. This goes the
whole way at each boot: socket, queue, engine, tokenizer, answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from magnitude.errors import MagnitudeError, ModelError
from magnitude.models.description import ModelDescription
from magnitude.models.golden_texts import COSINE_TOLERANCE, GOLDEN_FILE, GOLDEN_VERSION
from magnitude.models.untrusted import CONFIG_MAX_BYTES, read_capped
from magnitude.text.tokenizer import TextTokenizer

# Enough to go through prefill and several decode steps, few enough for the slowest board in some seconds.
NEW_TOKENS = 8
# Golden texts that are asked of a model. The service runs the whole set itself when that has not been done on this
# board; here the way to it is on trial, and a text of 200 tokens takes a small board a second.
GOLDEN_TEXTS = 3
TEXT = "The quick brown fox jumps over the lazy dog."


class Service(Protocol):
    """The client of a running service (`cli/client.py`). Every method raises `MagnitudeError`."""

    def get(self, path: str) -> Any: ...

    def post(self, path: str, body: object) -> Any: ...


class Wrong(ModelError):
    """The service answered, and the answer is not what the model gave at import."""

    code = "golden_failed"


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What was done: `model`, in `words`, with `compared` golden texts (0: the model has none)."""

    model: str
    words: str
    compared: int


class _Prompt(msgspec.Struct, frozen=True):
    ids: list[int]
    top: list[int]


class _Vector(msgspec.Struct, frozen=True):
    ids: list[int]
    vector: list[float]


class _Golden(msgspec.Struct, frozen=True):
    """As much of a golden set as can be asked over HTTP; read without NumPy, which costs a small board a second."""

    version: int
    model_hash: str
    prompts: list[_Prompt] = []
    vectors: list[_Vector] = []


def prove(service: Service, known: Callable[[str], ModelDescription | None]) -> list[Proof]:
    """Have the default chat model and an embedder answer, as far as there are such. `known` gives the model folder of
    a name. Raises `Wrong` for a wrong answer, and what the service raises when it gives none."""
    served = service.get("/v1/models")["data"]
    proofs = []
    if chat := _first(served, "decoder"):
        proofs.append(_decoder(service, chat, known(chat)))
    if embedder := _first(served, "embedder"):
        proofs.append(_embedder(service, embedder, known(embedder)))
    return proofs


def _first(served: Iterable[dict[str, Any]], kind: str) -> str:
    """The default chat model is listed first; for embeddings the first one stands for all."""
    return next((str(entry["id"]) for entry in served if entry.get("kind") == kind), "")


def _decoder(service: Service, name: str, model: ModelDescription | None) -> Proof:
    answer = _complete(service, name, TEXT, NEW_TOKENS)
    if not answer["usage"]["completion_tokens"]:
        raise Wrong(f"{name} was asked to go on with a text and gave no token", hint="Look at the service's log")
    golden, tokenizer = _golden(model), _tokenizer(model)
    compared = 0
    if golden is not None and tokenizer is not None:
        for prompt in golden.prompts[:GOLDEN_TEXTS]:
            said = _complete(service, name, prompt.ids, 1)["choices"][0]["logprobs"]["tokens"]
            expected = tokenizer.token_bytes(prompt.top[0]).decode("utf-8", "replace")
            if said[:1] != [expected]:
                raise Wrong(
                    f"{name} goes on with {said[0] if said else ''!r} where it said {expected!r} at import",
                    hint="Its numbers are wrong on this system: look at the service's log for its golden set",
                )
            compared += 1
    return Proof(model=name, words=f"{answer['usage']['completion_tokens']} tokens", compared=compared)


def _complete(service: Service, name: str, prompt: str | list[int], tokens: int) -> Any:
    body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 0}
    return service.post("/v1/completions", body)


def _embedder(service: Service, name: str, model: ModelDescription | None) -> Proof:
    vector = _embed(service, name, TEXT)
    if not vector or not all(map(math.isfinite, vector)) or not any(vector):
        raise Wrong(f"{name} gave a vector that means nothing", hint="Look at the service's log")
    golden, tokenizer = _golden(model), _tokenizer(model)
    compared = 0
    if golden is not None and tokenizer is not None:
        for item in golden.vectors[:GOLDEN_TEXTS]:
            body = unframed(item.ids, tokenizer)
            if body is None:
                continue  # it ends without the special tokens that a client's text gets, having been cut
            found = cosine(_embed(service, name, body), item.vector)
            if not found >= COSINE_TOLERANCE:
                raise Wrong(
                    f"{name} gives a vector with cosine {found:.4f} to the one at import, below {COSINE_TOLERANCE}",
                    hint="Its numbers are wrong on this system: look at the service's log for its golden set",
                )
            compared += 1
    return Proof(model=name, words=f"a vector of {len(vector)}", compared=compared)


def _embed(service: Service, name: str, given: str | list[int]) -> list[float]:
    answer = service.post("/v1/embeddings", {"model": name, "input": given if isinstance(given, str) else [given]})
    return [float(value) for value in answer["data"][0]["embedding"]]


def unframed(ids: list[int], tokenizer: TextTokenizer) -> list[int] | None:
    """`ids` without the special tokens that the service puts around a text's own; None when they cannot be told."""
    # Two on either side are more than any known encoder has.
    for first in range(3):
        for last in range(3):
            body = ids[first : len(ids) - last]
            if body and tokenizer.frame_single(body).ids == ids:
                return body
    return None


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Of two vectors; 0 when their lengths differ or one of them has none."""
    if len(one) != len(other):
        return 0.0
    lengths = math.sqrt(math.fsum(x * x for x in one)) * math.sqrt(math.fsum(y * y for y in other))
    return math.fsum(x * y for x, y in zip(one, other, strict=True)) / lengths if lengths else 0.0


def _golden(model: ModelDescription | None) -> _Golden | None:
    """The model's golden set; None where there is none of this model and version. A damaged one is the service's to
    report: it runs the set before the model serves."""
    if model is None:
        return None
    try:
        data = read_capped(Path(model.folder) / GOLDEN_FILE, CONFIG_MAX_BYTES, what="golden set")
        golden = msgspec.json.decode(data, type=_Golden)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError, MagnitudeError):
        return None
    return golden if golden.version == GOLDEN_VERSION and golden.model_hash == model.model_hash else None


def _tokenizer(model: ModelDescription | None) -> TextTokenizer | None:
    if model is None or not model.tokenizer_file:
        return None
    return TextTokenizer.load(Path(model.folder) / model.tokenizer_file, model.special)
