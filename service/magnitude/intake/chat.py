"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from magnitude.engine.protocol import GrammarSpec
from magnitude.errors import DeadlineExceeded
from magnitude.intake.answer import AnswerPiece, AnswerReader, TokenChoice
from magnitude.intake.body import read_json
from magnitude.intake.chat_request import ChatRequest, parse_chat
from magnitude.intake.connected import while_connected
from magnitude.intake.context import Context, context_of
from magnitude.intake.generation import answer_headers, start_generation
from magnitude.intake.logprobs import chat_logprobs
from magnitude.intake.replies import json_reply
from magnitude.intake.sse import HEADERS_WAIT_S, AnswerStream
from magnitude.intake.terms import terms_of
from magnitude.intake.timing import queue_header
from magnitude.text.catalogue import ModelText
from magnitude.text.chat_prompt import chat_prompt
from magnitude.text.tokenizer import TextTokenizer
from magnitude.text.tool_grammar import json_grammar, tool_grammar
from magnitude.text.tool_parser import CallArguments, CallEnd, CallStart, TextPiece
from magnitude.text.tool_prompt import CALL_CLOSE, CALL_OPEN


async def chat_completions(request: Request) -> ASGIApp:
    """Answer a chat, whole or as a stream."""
    context = context_of(request)
    chat = parse_chat(await read_json(request, context.settings.server), context.settings)
    return await while_connected(request.receive, answer_chat(request, context, chat))


async def answer_chat(request: Request, context: Context, chat: ChatRequest) -> ASGIApp:
    """The answer to a checked request: a whole one, or a stream that runs when it is called."""
    terms = terms_of(request, task=_kind_of(chat))
    model = context.model_of_kind(chat.model, "decoder", "chat")
    text = await context.text_of(model)
    markers = _marker_ids(text.tokenizer) if chat.callable_tools else None
    prompt, grammar = await asyncio.to_thread(_prepare, chat, text, markers)
    reader = await start_generation(
        request,
        context,
        model=model,
        tokenizer=text.tokenizer,
        prompt=prompt,
        sampling=chat.sampling,
        terms=terms,
        grammar=grammar,
        logprobs=chat.top_logprobs,
        shown_ids=frozenset(markers or ()),
        tools=bool(chat.callable_tools),
        param="messages",
    )
    kept = False
    try:
        shape = _Shape(chat, model.name, text.tokenizer, created_s=int(context.wall_clock()))
        if not chat.stream:
            return await _whole(reader, shape, chat)
        await reader.ready(HEADERS_WAIT_S)
        stream = AnswerStream(
            reader,
            opening=[{**shape.chunk({"role": "assistant", "content": ""}), **chat.extension}],
            chunks=shape.chunks,
            headers={**answer_headers(chat.sampling.sampler, reader.variant), **queue_header(reader.waited_s)},
        )
        kept = True
        return stream
    finally:
        if not kept:
            reader.close("request over")


def _kind_of(chat: ChatRequest) -> str:
    """The kind of task where the client names none: what bounds the answer says most about how long it takes."""
    if chat.callable_tools:
        return "tool"
    return "json" if chat.answer_schema is not None else "chat"


def _prepare(
    chat: ChatRequest, text: ModelText, markers: tuple[int, int] | None
) -> tuple[list[int], GrammarSpec | None]:
    """Everything that takes long: rendering, encoding, compiling a grammar. Runs in a worker thread."""
    prompt = chat_prompt(text.tokenizer, text.templates, chat.messages, tools=chat.tools, extra=chat.template_extra)
    if chat.tool_mode != "none":
        return prompt, tool_grammar(
            chat.callable_tools,
            mode=chat.tool_mode,
            parallel=chat.parallel_calls,
            marker_ids=markers,
            answer_schema=chat.answer_schema,
        )
    if chat.answer_schema is not None:
        where = "response_format.json_schema.schema"
        return prompt, json_grammar(chat.answer_schema, strict=chat.answer_schema_strict, param=where)
    return prompt, None


def _marker_ids(tokenizer: TextTokenizer) -> tuple[int, int] | None:
    """Ids of the call markers where the vocabulary has them as special tokens."""
    opening, closing = tokenizer.token_id(CALL_OPEN), tokenizer.token_id(CALL_CLOSE)
    if opening in tokenizer.special_ids and closing in tokenizer.special_ids:
        return (opening, closing) if opening is not None and closing is not None else None
    return None


async def _whole(reader: AnswerReader, shape: _Shape, chat: ChatRequest) -> ASGIApp:
    answer = _WholeAnswer()
    while True:
        try:
            piece = await reader.next()
        except DeadlineExceeded as error:
            error.text = answer.text
            raise
        answer.add(piece)
        if piece.end is not None:
            break
    end = piece.end
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.complete:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": _call_id(), "type": "function", "function": answer.calls[n]} for n in sorted(answer.complete)
        ]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": end.reason,
        "logprobs": shape.logprobs(answer.choices),
    }
    body = {**shape.head("chat.completion"), "choices": [choice], "usage": end.cost.usage.as_json()}
    return json_reply(body, {**answer_headers(chat.sampling.sampler, reader.variant), **end.cost.headers()})


class _WholeAnswer:
    """Collects pieces. A call counts only once it is complete."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: dict[int, dict[str, str]] = {}
        self.complete: set[int] = set()
        self.choices: list[TokenChoice] = []

    def add(self, piece: AnswerPiece) -> None:
        self.choices += piece.choices
        for event in piece.events:
            match event:
                case TextPiece():
                    self.text += event.text
                case CallStart():
                    self.calls[event.index] = {"name": event.name, "arguments": ""}
                case CallArguments():
                    self.calls[event.index]["arguments"] += event.piece
                case CallEnd():
                    self.complete.add(event.index)


class _Shape:
    """The JSON around the pieces: the same id, model and time in every chunk of one answer."""

    def __init__(self, chat: ChatRequest, model: str, tokenizer: TextTokenizer, *, created_s: int) -> None:
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._chat = chat
        self._model = model
        self._created_s = created_s
        self._tokenizer = tokenizer
        self._waiting: list[TokenChoice] = []

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created_s, "model": self._model}

    def logprobs(self, choices: list[TokenChoice]) -> dict[str, Any] | None:
        if self._chat.top_logprobs is None:
            return None
        return chat_logprobs(self._tokenizer, choices, self._chat.top_logprobs)

    def chunk(
        self, delta: dict[str, Any], *, reason: str | None = None, choices: list[TokenChoice] | None = None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": reason}
        if self._chat.top_logprobs is not None:
            choice["logprobs"] = self.logprobs(choices) if choices else None
        chunk = {**self.head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self._chat.include_usage else chunk

    def chunks(self, piece: AnswerPiece) -> Iterator[dict[str, Any]]:
        """Chunks for `piece`. Log probabilities go with the first text after their tokens."""
        self._waiting += piece.choices
        for event in piece.events:
            delta = _delta(event)
            if delta is not None:
                yield self.chunk(delta, choices=self._waiting)
                self._waiting = []
        if piece.end is None:
            return
        last = self.chunk({}, reason=piece.end.reason, choices=self._waiting)
        cost = piece.end.cost
        if self._chat.include_usage:
            yield last
            last = {**self.head("chat.completion.chunk"), "choices": [], "usage": cost.usage.as_json()}
        yield {**last, "magnitude": cost.extension()}


def _delta(event: msgspec.Struct) -> dict[str, Any] | None:
    match event:
        case TextPiece():
            return {"content": event.text}
        case CallStart():
            function = {"name": event.name, "arguments": ""}
            call = {"index": event.index, "id": _call_id(), "type": "function", "function": function}
            return {"tool_calls": [call]}
        case CallArguments():
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.piece}}]}
    return None


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
