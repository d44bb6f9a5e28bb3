"""`POST /v1/embeddings`."""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnitude.errors import ContextLengthExceeded, ModelError
from magnitude.intake.body import read_json
from magnitude.intake.connected import while_connected
from magnitude.intake.context import Context, context_of, passage_of, principal_of, request_id_of
from magnitude.intake.fields import Fields
from magnitude.intake.replies import json_reply
from magnitude.intake.terms import terms_of
from magnitude.intake.timing import run_headers, run_notes
from magnitude.intake.token_input import token_ids
from magnitude.models.description import EncoderShape, ModelDescription
from magnitude.schedule.inference import VectorsResult
from magnitude.text.tokenizer import EncodedPair, TextTokenizer
from magnitude.text.usage import Usage

_MAX_INPUTS = 2048  # as OpenAI


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`inputs` are texts, or token ids without special tokens. With `truncate` a long input is cut, not refused."""

    model: str
    inputs: list[str] | list[list[int]]
    as_base64: bool
    dimensions: int | None
    truncate: bool


def parse_embedding(data: dict[str, Any]) -> EmbeddingRequest:
    """Check an embedding request. Raises `RequestError` naming the field that is wrong."""
    fields = Fields(data)
    return EmbeddingRequest(
        model=fields.text("model", max_chars=256),
        inputs=_inputs(fields),
        as_base64=fields.choice("encoding_format", ("float", "base64"), "float") == "base64",
        dimensions=fields.integer("dimensions", low=1),
        truncate=fields.boolean("truncate"),
    )


async def embeddings(request: Request) -> Response:
    """Vectors of texts, in the order of the inputs."""
    context = context_of(request)
    wanted = parse_embedding(await read_json(request, context.settings.server))
    return await while_connected(request.receive, _answer(request, context, wanted))


async def _answer(request: Request, context: Context, wanted: EmbeddingRequest) -> Response:
    terms = terms_of(request, task="embed")
    model = context.model_of_kind(wanted.model, "embedder", "embeddings")
    passage_of(request).notes["model"] = model.name
    shape = encoder_shape(model)
    if wanted.dimensions not in (None, shape.width):
        raise Fields({}).wrong(
            "dimensions",
            f"is {wanted.dimensions}, but {model.name} gives vectors of {shape.width}",
            hint="Leave it out; these vectors lose their meaning when they are cut.",
        )
    tokenizer = (await context.text_of(model)).tokenizer
    encoded = await asyncio.to_thread(_encode, tokenizer, wanted, shape.max_tokens)
    result = await context.inference.embed(
        model.name,
        [e.ids for e in encoded],
        [e.token_types for e in encoded] if shape.token_type_ids else [],
        request_key=request_id_of(request),
        priority=terms.priority,
        deadline=terms.deadline,
        client=principal_of(request).name,
    )
    tokens = sum(len(e.ids) for e in encoded)
    headers = account(request, context, model, result, tokens=tokens)
    rows = [
        {"object": "embedding", "index": n, "embedding": _vector(row, as_base64=wanted.as_base64)}
        for n, row in enumerate(result.rows)
    ]
    usage = Usage(prompt_tokens=tokens).as_json()
    body: dict[str, Any] = {"object": "list", "data": rows, "model": model.name, "usage": usage}
    if cut := [n for n, e in enumerate(encoded) if e.truncated_tokens]:
        body["truncated"] = cut
    return json_reply(body, headers)


def account(
    request: Request, context: Context, model: ModelDescription, result: VectorsResult, *, tokens: int
) -> dict[str, str]:
    """Write down what an encoder's answer took. Returns the headers that say so."""
    passage = passage_of(request)
    total_s = context.clock() - passage.started_s
    passage.notes.update(run_notes(result, tokens=tokens))
    context.metrics.prompt_tokens.labels(model.name).inc(tokens)
    context.metrics.observe_answer(model.name, queue_s=result.queue_s, prefill_s=result.run_s, total_s=total_s)
    if result.batch:
        context.metrics.batch_size.labels(model.name).observe(result.batch)
    return run_headers(result, tokens=tokens, total_s=total_s)


def encoder_shape(model: ModelDescription) -> EncoderShape:
    """The encoder's shape. Raises `ModelError` for a description without one."""
    if model.encoder is None:
        raise ModelError(
            f"The model {model.name} does not say how its inputs look", hint="Import it again.", param="model"
        )
    return model.encoder


def too_long(where: str, tokens: int, limit: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"{where} has {tokens} tokens with its special tokens; the model takes {limit}",
        hint="Send shorter texts, or set truncate to true to have the end cut off.",
        param=where.split("[", maxsplit=1)[0],
    )


def floats(row: bytes) -> list[float]:
    """Little-endian float32 as numbers."""
    values = array("f", row)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def _inputs(fields: Fields) -> list[str] | list[list[int]]:
    """A text, texts, token ids, or lists of token ids: told apart by what is inside, never read as text."""
    given = fields.raw("input")
    if given is None:
        raise fields.wrong("input", "is missing")
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        raise fields.wrong("input", "must be a text, token ids, or a list of either")
    if not given or any(item in ("", []) for item in given):
        raise fields.wrong("input", "is empty or holds an empty text")
    if isinstance(given[0], int) and not isinstance(given[0], bool):
        given = [given]
    if len(given) > _MAX_INPUTS:
        raise fields.wrong("input", f"has {len(given)} entries, at most {_MAX_INPUTS} are allowed")
    if all(isinstance(item, str) for item in given) or all(isinstance(item, list) for item in given):
        return given
    raise fields.wrong("input", "must hold texts only, or lists of token ids only")


def _encode(tokenizer: TextTokenizer, wanted: EmbeddingRequest, limit: int) -> list[EncodedPair]:
    encoded: list[EncodedPair] = []
    for n, item in enumerate(wanted.inputs):
        where = f"input[{n}]"
        if isinstance(item, str):
            one = tokenizer.encode_single(item, limit=limit if wanted.truncate else None)
        else:
            ids = token_ids(item, tokenizer.vocab_size, where)
            one = tokenizer.frame_single(ids, limit=limit if wanted.truncate else None)
        if len(one.ids) > limit:
            raise too_long(where, len(one.ids), limit)
        encoded.append(one)
    return encoded


def _vector(row: bytes, *, as_base64: bool) -> str | list[float]:
    return base64.b64encode(row).decode() if as_base64 else floats(row)
