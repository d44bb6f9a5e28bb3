"""Reads one generation as text: tokens in, pieces of the answer out.

Whole answers and streams are both made from these pieces. The reader owns the generation from the moment it is
made: whoever makes a reader calls `close` in a `finally`, and the slot is free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from magnitude.engine.protocol import TokenLogprob
from magnitude.errors import Cancelled, EngineError, MagnitudeError
from magnitude.feedback.metrics import Metrics
from magnitude.intake.timing import AnswerCost
from magnitude.schedule.inference import Emission, Generation
from magnitude.text.stops import StopFilter
from magnitude.text.stream_decoder import StreamDecoder
from magnitude.text.tokenizer import TextTokenizer
from magnitude.text.tool_parser import CallEnd, ParserEvent, TextPiece, ToolCallParser
from magnitude.text.usage import Usage

# After a stop string the generation is told to end; its last word brings the times. It comes within one step,
# and a client should not wait longer for numbers.
_LAST_WORD_S = 0.5

AnswerReason = Literal["stop", "length", "tool_calls"]


class TokenChoice(msgspec.Struct, frozen=True):
    """A token of the answer with its log probability and the best alternatives."""

    token: int
    logprob: TokenLogprob


class AnswerEnd(msgspec.Struct, frozen=True, kw_only=True):
    reason: AnswerReason
    cost: AnswerCost


class AnswerPiece(msgspec.Struct, frozen=True, kw_only=True):
    """What became known at once; the last piece has an `end`."""

    events: list[ParserEvent] = []
    choices: list[TokenChoice] = []
    end: AnswerEnd | None = None


class AnswerReader:
    """One answer. `next` until a piece has an `end`; `close` in every case.

    `hidden` are the ids without text. With `tools` the answer's text is searched for tool calls. `started_s` is
    when the request arrived, by `clock`; `notes` gets counts and times for the log. `transcript`, where given, is
    called once at the end with all ids of the answer.
    """

    def __init__(
        self,
        generation: Generation,
        tokenizer: TextTokenizer,
        *,
        model: str,
        prompt_tokens: int,
        stops: tuple[str, ...],
        hidden: frozenset[int],
        tools: bool,
        metrics: Metrics,
        clock: Callable[[], float],
        started_s: float,
        notes: dict[str, Any] | None = None,
        transcript: Callable[[list[int]], None] | None = None,
    ) -> None:
        self._transcript = transcript
        self._ids: list[int] = []
        self._generation = generation
        self._decoder = StreamDecoder(tokenizer, hidden=hidden)
        self._parser = ToolCallParser() if tools else None
        self._stops = StopFilter(stops)
        self._hidden = hidden
        self._model = model
        self._metrics = metrics
        self._clock = clock
        self._started_s = started_s
        self._first_token_s: float | None = None
        self._last_token_s: float | None = None
        self._notes = notes if notes is not None else {}
        self._prompt_tokens = prompt_tokens
        self._tokens = 0
        self._calls = 0
        self._coming: asyncio.Task[Emission] | None = None
        self._ended = False

    @property
    def variant(self) -> str:
        """Of the named model: the one that computes or has computed of it; "": none has."""
        return self._generation.variant

    @property
    def waited_s(self) -> float | None:
        """How long the generation waited to be started; None while it waits."""
        return self._generation.waited_s

    async def ready(self, timeout_s: float) -> bool:
        """Whether `next` has something within `timeout_s`. Raises the generation's error if that is what came."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._generation.next())
        done, _ = await asyncio.wait({self._coming}, timeout=timeout_s)
        if not done:
            return False
        if (error := self._coming.exception()) is not None:
            raise error
        return True

    async def next(self) -> AnswerPiece:
        """The next piece. Raises a `MagnitudeError` when the generation failed."""
        emission = await self._emission()
        events: list[ParserEvent] = []
        choices: list[TokenChoice] = []
        if emission.ids:
            self._observe(len(emission.ids))
        for place, token in enumerate(emission.ids):
            self._tokens += 1
            if self._transcript is not None:
                self._ids.append(token)
            if token not in self._hidden:
                if emission.logprobs:
                    choices.append(TokenChoice(token, emission.logprobs[place]))
                events += self._pass(self._decoder.push(token))
            if self._stops.stopped:
                self._generation.complete()
                return AnswerPiece(events=events, choices=choices, end=self._end("stop", await self._last_word()))
        if emission.reason is None:
            return AnswerPiece(events=events, choices=choices)
        events += self._pass(self._decoder.finish())
        cut = emission.reason == "length"
        events += self._pass_events(self._parser.finish(cut=cut) if self._parser else [])
        if rest := self._stops.finish():
            events.append(TextPiece(rest))
        return AnswerPiece(events=events, choices=choices, end=self._end(emission.reason, emission))

    def close(self, why: str) -> None:
        """Give the generation back; harmless after its end."""
        if self._coming is not None:
            self._coming.cancel()
            # An error that nobody waits for any more is not news.
            self._coming.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._coming = None
        self._generation.cancel(why)
        if not self._ended:
            self._ended = True
            self._count()

    async def _emission(self) -> Emission:
        if self._coming is None:
            return await self._generation.next()
        coming, self._coming = self._coming, None
        try:
            return await coming
        finally:
            coming.cancel()

    async def _last_word(self) -> Emission:
        """The times of a generation that was told to stop: its own, or else as they looked from here."""
        emission = Emission(reason="cancelled")
        with contextlib.suppress(TimeoutError, MagnitudeError):
            async with asyncio.timeout(_LAST_WORD_S):
                while (emission := await self._generation.next()).reason is None:
                    pass
        if emission.prefill_s or self._first_token_s is None:
            return emission
        return msgspec.structs.replace(
            emission,
            prefill_s=max(0.0, self._first_token_s - self._started_s - emission.queue_s),
            decode_s=self._clock() - self._first_token_s,
        )

    def _pass(self, text: str) -> list[ParserEvent]:
        if not text:
            return []
        return self._pass_events(self._parser.push(text) if self._parser else [TextPiece(text)])

    def _pass_events(self, events: list[ParserEvent]) -> list[ParserEvent]:
        """Stop strings count in the answer's text only, never inside a call's arguments."""
        passed: list[ParserEvent] = []
        for event in events:
            if self._stops.stopped:
                break
            if isinstance(event, TextPiece):
                if text := self._stops.push(event.text):
                    passed.append(TextPiece(text))
            else:
                if rest := self._stops.finish():
                    passed.append(TextPiece(rest))
                self._calls += isinstance(event, CallEnd)
                passed.append(event)
        return passed

    def _end(self, reason: str, last: Emission) -> AnswerEnd:
        if reason == "cancelled":
            raise Cancelled("The generation was cancelled")
        if reason == "error":
            raise EngineError("The engine ended the generation with an error", hint="Send the request again.")
        self._ended = True
        self._count()
        usage = Usage(
            prompt_tokens=self._prompt_tokens, completion_tokens=self._tokens, cached_tokens=last.cached_tokens
        )
        cost = AnswerCost.of(last, usage, total_s=self._clock() - self._started_s)
        self._metrics.observe_answer(
            self._model, queue_s=cost.queue_s, prefill_s=cost.prefill_s, decode_s=cost.decode_s, total_s=cost.total_s
        )
        if cost.batch:
            self._metrics.batch_size.labels(self._model).observe(cost.batch)
        self._metrics.cached_tokens.labels(self._model).inc(usage.cached_tokens)
        self._metrics.drafted_tokens.labels(self._model).inc(cost.drafted_tokens)
        self._metrics.accepted_tokens.labels(self._model).inc(cost.accepted_tokens)
        if cost.cut == "deadline":
            self._metrics.deadline_misses.labels(self._model, "soft").inc()
        self._notes.update(cost.notes())
        shown: AnswerReason = "length" if reason == "length" else "tool_calls" if self._calls else "stop"
        return AnswerEnd(reason=shown, cost=cost)

    def _observe(self, tokens: int) -> None:
        now_s = self._clock()
        if self._last_token_s is None:
            self._first_token_s = now_s
            self._metrics.time_to_first_token_s.labels(self._model).observe(now_s - self._started_s)
        else:
            between = self._metrics.inter_token_s.labels(self._model)
            for _ in range(tokens):
                between.observe((now_s - self._last_token_s) / tokens)
        self._last_token_s = now_s

    def _count(self) -> None:
        self._notes.update(model=self._model, prompt_tokens=self._prompt_tokens, new_tokens=self._tokens)
        self._metrics.prompt_tokens.labels(self._model).inc(self._prompt_tokens)
        self._metrics.generated_tokens.labels(self._model).inc(self._tokens)
        if self._transcript is not None:
            self._transcript(self._ids)
