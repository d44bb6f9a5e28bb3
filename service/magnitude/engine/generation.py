"""One open generation: prefill in chunks, then one token a step.

`advance` does exactly one graph run, so that the loop can look at cancels and serve others in between. A
generation that an earlier engine began is rebuilt from its ids: positions that are still right are kept, the
rest is computed the way it was computed before (the prompt in the same chunks, the emitted ids one a step),
because other chunks would round differently and might change the text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory, SlotState, trusted_length
from magnitude.engine.protocol import (
    Finished,
    FinishReason,
    Generate,
    Message,
    PrefillProgress,
    Tokens,
)
from magnitude.engine.sampling import F32, Sampler
from magnitude.errors import ContextLengthExceeded, RequestError

if TYPE_CHECKING:
    from magnitude.engine.grammar import Grammar

log = logging.getLogger(__name__)


def check_generate(request: Generate, *, slots: int, max_len: int, vocab_size: int) -> None:
    """Raise `RequestError` for a request that cannot run in its slot."""
    if not 0 <= request.slot < slots:
        raise RequestError(f"slot {request.slot} does not exist, there are {slots}", param="slot")
    if not request.prompt:
        raise RequestError("the prompt is empty", param="prompt", hint="Send at least one token")
    if request.prefill_chunk < 1:
        raise RequestError("prefill_chunk must be at least 1", param="prefill_chunk")
    for ids in (request.prompt, request.emitted):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            raise RequestError(f"token ids must be from 0 to {vocab_size - 1}", param="prompt")
    if len(request.prompt) >= max_len:
        raise ContextLengthExceeded(
            f"the prompt has {len(request.prompt)} tokens; with the answer no more than {max_len} fit",
            param="messages",
            hint="Shorten the prompt, or raise engine.context_length",
        )
    if len(request.prompt) + len(request.emitted) > max_len:
        raise ContextLengthExceeded("the prompt and what was emitted do not fit the slot", param="messages")


def first_position(prompt: int, emitted: int, chunk: int, valid: int) -> int:
    """The position at which to go on, when the first `valid` positions of the slot are right.

    The step whose logits give the next token is always done again. Inside the prompt it goes on at the border
    of a chunk, so that the chunks are those of an undisturbed run.
    """
    last_step = prompt + emitted - 1 if emitted else (prompt - 1) // chunk * chunk
    start = min(valid, last_step)
    return start if start >= prompt else start // chunk * chunk


class Generation:
    """A generation under way in its KV slot. The loop calls `advance` until `finished`."""

    def __init__(
        self,
        request: Generate,
        *,
        model_hash: str,
        decoder: Decoder,
        kv: KvMemory,
        sampler: Sampler,
        grammar: Grammar | None,
        received_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sampler` and `grammar` have already taken in `request.emitted`. Nothing is run yet."""
        self.request_id = request.request_id
        self.model = request.model
        self.slot = request.slot
        self.finished = False
        self._request = request
        self._decoder = decoder
        self._sampler = sampler
        self._grammar = grammar
        self._clock = clock
        self._ids = [*request.prompt, *request.emitted]
        self._max_len = kv.layout.max_len
        self._new = 0
        self._received_s = received_s
        self._first_step_s: float | None = None
        self._prefilled_s: float | None = None
        valid = request.kv_valid_tokens
        if valid:
            trusted = trusted_length(kv.read_header(request.slot), model_hash, kv.layout.layout_id, self._ids)
            if trusted < valid:
                log.warning("slot %d: %d of %d positions are trusted, the rest is computed again",
                            request.slot, trusted, valid)  # fmt: skip
            valid = min(valid, trusted)
        start = first_position(len(request.prompt), len(request.emitted), request.prefill_chunk, valid)
        self._state: SlotState = kv.open_slot(request.slot, model_hash)
        self._state.begin(self._ids[:start])

    def advance(self) -> list[Message]:
        """Do one graph run, or end. Returns the messages that it gave rise to.

        Raises `EngineError` or `RequestError`; the generation is over then.
        """
        if self._first_step_s is None:
            self._first_step_s = self._clock()
            if reason := self._end_of_emitted():
                return [self._finish(reason)]
        prompt, past = len(self._request.prompt), self._state.length
        end = min(past + self._request.prefill_chunk, prompt) if past < prompt else past + 1
        ids = self._ids[past:end]
        logits = self._decoder.run(self.slot, ids, past)
        self._state.extend(ids, end - past)
        messages: list[Message] = []
        if end <= prompt:
            messages.append(PrefillProgress(request_id=self.request_id, done_tokens=end, total_tokens=prompt))
        if end == len(self._ids):
            if self._prefilled_s is None:
                self._prefilled_s = self._clock()
            messages += self._next_token(logits)
        return messages

    def cancel(self) -> Message:
        """End at once."""
        return self._finish("cancelled")

    def _end_of_emitted(self) -> FinishReason | None:
        """Whether what an earlier engine emitted was already all."""
        emitted = self._request.emitted
        if emitted and emitted[-1] in self._request.stop_ids:
            return "stop"
        return self._limit_reached(len(emitted))

    def _limit_reached(self, emitted: int) -> FinishReason | None:
        if self._grammar is not None and self._grammar.complete:
            return "stop"
        if emitted >= self._request.max_new_tokens or len(self._ids) >= self._max_len:
            return "length"
        return None

    def _next_token(self, logits: F32) -> list[Message]:
        allowed = self._grammar.allowed() if self._grammar is not None else None
        choice = self._sampler.choose(logits, allowed)
        token = choice.token
        self._sampler.accept(token)
        if self._grammar is not None:
            self._grammar.accept(token)
        self._ids.append(token)
        self._new += 1
        messages: list[Message] = [
            Tokens(
                request_id=self.request_id,
                ids=[token],
                logprobs=[choice.logprob] if choice.logprob is not None else [],
            )
        ]
        emitted = len(self._ids) - len(self._request.prompt)
        if token in self._request.stop_ids:
            messages.append(self._finish("stop"))
        elif reason := self._limit_reached(emitted):
            messages.append(self._finish(reason))
        return messages

    def _finish(self, reason: FinishReason) -> Finished:
        self.finished = True
        now_s = self._clock()
        first_s = self._first_step_s if self._first_step_s is not None else now_s
        prefilled_s = self._prefilled_s if self._prefilled_s is not None else now_s
        return Finished(
            request_id=self.request_id,
            reason=reason,
            prompt_tokens=len(self._request.prompt),
            new_tokens=self._new,
            wait_s=first_s - self._received_s,
            prefill_s=prefilled_s - first_s,
            decode_s=now_s - prefilled_s,
        )


def never_started(request: Generate, waited_s: float) -> Finished:
    """The end of a generation that was cancelled before anything was computed."""
    return Finished(
        request_id=request.request_id,
        reason="cancelled",
        prompt_tokens=len(request.prompt),
        new_tokens=0,
        wait_s=waited_s,
        prefill_s=0.0,
        decode_s=0.0,
    )
