"""`POST /v1/completions`: raw prompts. The client is its own template, so control strings in a prompt count."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from magnitude.config import Settings
from magnitude.errors import DeadlineExceeded, RequestError
from magnitude.intake.answer import AnswerPiece, TokenChoice
from magnitude.intake.body import read_json
from magnitude.intake.chat_request import parse_stream
from magnitude.intake.connected import while_connected
from magnitude.intake.context import Context, context_of
from magnitude.intake.fields import Fields
from magnitude.intake.generation import answer_headers, start_generation
from magnitude.intake.logprobs import completion_logprobs
from magnitude.intake.replies import json_reply
from magnitude.intake.sampling import Sampling, parse_sampling
from magnitude.intake.sse import HEADERS_WAIT_S, AnswerStream
from magnitude.intake.terms import terms_of
from magnitude.intake.timing import queue_header
from magnitude.intake.token_input import token_ids
from magnitude.text.tokenizer import TextTokenizer
from magnitude.text.tool_parser import TextPiece


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`prompt` is text, or token ids that are taken as they are."""

    model: str
    prompt: str | list[int]
    sampling: Sampling
    stream: bool
    include_usage: bool
    top_logprobs: int | None
    echo: bool


def parse_completion(data: dict[str, Any], settings: Settings) -> CompletionRequest:
    """Check a completion request. Raises `RequestError` naming the field that is wrong."""
    fields = Fields(data)
    if fields.text("suffix"):
        raise fields.wrong("suffix", "is not supported", hint="Put the suffix into the prompt in the model's format.")
    if (fields.integer("best_of", low=1) or 1) != 1:
        raise fields.wrong("best_of", "may only be 1")
    stream, include_usage = parse_stream(fields)
    return CompletionRequest(
        model=fields.text("model", max_chars=256),
        prompt=_prompt(fields),
        sampling=parse_sampling(fields, settings.engine),
        stream=stream,
        include_usage=include_usage,
        top_logprobs=fields.integer("logprobs", low=0, high=20),
        echo=fields.boolean("echo"),
    )


async def completions(request: Request) -> ASGIApp:
    """Continue a prompt, whole or as a stream."""
    context = context_of(request)
    wanted = parse_completion(await read_json(request, context.settings.server), context.settings)
    return await while_connected(request.receive, _answer(request, context, wanted))


async def _answer(request: Request, context: Context, wanted: CompletionRequest) -> ASGIApp:
    terms = terms_of(request, task="completion")
    model = context.model_of_kind(wanted.model, "decoder", "a completion")
    tokenizer = (await context.text_of(model)).tokenizer
    if isinstance(wanted.prompt, str):
        prompt = await asyncio.to_thread(tokenizer.encode_prompt, wanted.prompt)
    else:
        vocab_size = model.decoder.vocab_size if model.decoder else tokenizer.vocab_size
        prompt = token_ids(wanted.prompt, vocab_size, "prompt")
    if not prompt:
        raise RequestError("prompt is empty", hint="Send at least one token.", param="prompt", code="invalid_value")
    reader = await start_generation(
        request,
        context,
        model=model,
        tokenizer=tokenizer,
        prompt=prompt,
        sampling=wanted.sampling,
        terms=terms,
        grammar=None,
        logprobs=wanted.top_logprobs,
        param="prompt",
    )
    kept = False
    try:
        echo = ""
        if wanted.echo:
            echo = wanted.prompt if isinstance(wanted.prompt, str) else tokenizer.decode(prompt)
        shape = _Shape(wanted, model.name, tokenizer, echo=echo, created_s=int(context.wall_clock()))
        if wanted.stream:
            await reader.ready(HEADERS_WAIT_S)
            stream = AnswerStream(
                reader,
                opening=[shape.chunk(echo)] if echo else [],
                chunks=shape.chunks,
                headers={**answer_headers(wanted.sampling.sampler, reader.variant), **queue_header(reader.waited_s)},
            )
            kept = True
            return stream
        text, choices = echo, list[TokenChoice]()
        while True:
            try:
                piece = await reader.next()
            except DeadlineExceeded as error:
                error.text = text
                raise
            text += _text_of(piece)
            choices += piece.choices
            if piece.end is not None:
                break
        body = {
            **shape.head(),
            "choices": [shape.choice(text, reason=piece.end.reason, choices=choices)],
            "usage": piece.end.cost.usage.as_json(),
        }
        return json_reply(
            body, {**answer_headers(wanted.sampling.sampler, reader.variant), **piece.end.cost.headers()}
        )
    finally:
        if not kept:
            reader.close("request over")


def _prompt(fields: Fields) -> str | list[int]:
    """One prompt: a text, token ids, or a list with one of either."""
    given = fields.raw("prompt")
    if isinstance(given, list) and given and isinstance(given[0], str | list):
        if len(given) > 1:
            raise fields.wrong("prompt", f"holds {len(given)} prompts; one a request is taken")
        given = given[0]
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given:
        return given
    raise fields.wrong("prompt", "must be a text or a list of token ids, and not empty")


def _text_of(piece: AnswerPiece) -> str:
    return "".join(event.text for event in piece.events if isinstance(event, TextPiece))


class _Shape:
    """The JSON around the text: the same id, model and time in every chunk of one answer."""

    def __init__(
        self, wanted: CompletionRequest, model: str, tokenizer: TextTokenizer, *, echo: str, created_s: int
    ) -> None:
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": created_s,
            "model": model,
        }
        self._wanted = wanted
        self._tokenizer = tokenizer
        self._offset = len(echo)
        self._waiting: list[TokenChoice] = []

    def head(self) -> dict[str, Any]:
        return dict(self._head)

    def choice(
        self, text: str, *, reason: str | None = None, choices: list[TokenChoice] | None = None
    ) -> dict[str, Any]:
        logprobs = None
        if self._wanted.top_logprobs is not None and choices:
            logprobs = completion_logprobs(self._tokenizer, choices, self._wanted.top_logprobs, offset=self._offset)
            self._offset += sum(map(len, logprobs["tokens"]))
        return {"index": 0, "text": text, "finish_reason": reason, "logprobs": logprobs}

    def chunk(self, text: str) -> dict[str, Any]:
        return self._with_usage({**self._head, "choices": [self.choice(text)]})

    def chunks(self, piece: AnswerPiece) -> Iterator[dict[str, Any]]:
        self._waiting += piece.choices
        if text := _text_of(piece):
            yield self._with_usage({**self._head, "choices": [self.choice(text, choices=self._waiting)]})
            self._waiting = []
        if piece.end is None:
            return
        last = self.choice("", reason=piece.end.reason, choices=self._waiting)
        chunk = self._with_usage({**self._head, "choices": [last]})
        cost = piece.end.cost
        if self._wanted.include_usage:
            yield chunk
            chunk = {**self._head, "choices": [], "usage": cost.usage.as_json()}
        yield {**chunk, "magnitude": cost.extension()}

    def _with_usage(self, chunk: dict[str, Any]) -> dict[str, Any]:
        return {**chunk, "usage": None} if self._wanted.include_usage else chunk
