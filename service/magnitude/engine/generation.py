"""One open generation: what it wants computed next, and what becomes of the logits.

It computes nothing itself: the running batch (`batch.py`) asks for the next ids, runs them, and hands back the
logits. A generation that an earlier engine began is rebuilt from its ids: positions that are still right are kept,
the prompt's rest is prefilled, and the emitted ids are replayed one a step, as they were computed before, because
other shapes of a run may round differently and change the text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from magnitude.engine.kv import KvMemory, check_slot
from magnitude.engine.message import Message
from magnitude.engine.pieces import LEAST_PIECE, first_position
from magnitude.engine.protocol import Finished, FinishReason, Generate, PrefillProgress, SlotContents, Tokens
from magnitude.engine.sampling import F32, Choice, Sampler
from magnitude.engine.slide import SlidingWindow, find_slid, header_ids
from magnitude.engine.slot_header import HASH_OF_NOTHING, SlotState, extend_hash, holds, trusted_length
from magnitude.errors import ContextLengthExceeded, RequestError

if TYPE_CHECKING:
    from magnitude.engine.grammar import Grammar
    from magnitude.engine.speculation import Draft, Speculation

log = logging.getLogger(__name__)


def check_generate(request: Generate, *, slots: int, max_len: int, vocab_size: int) -> None:
    """Raise `RequestError` for a request that cannot run in its slot."""
    check_slot(request.slot, slots)
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
    if len(request.prompt) + len(request.emitted) > max_len and request.overflow == "stop":
        raise ContextLengthExceeded("the prompt and what was emitted do not fit the slot", param="messages")


def _reusable(request: Generate, kv: KvMemory, model_hash: str, ids: list[int], running: Generation | None) -> int:
    """Positions of `ids` that need not be computed: what the service says, if the slot's header bears it out."""
    wanted = request.kv_valid_tokens
    if not wanted:
        return 0
    source = request.slot if request.kv_copy_from is None else request.kv_copy_from
    header, layout_id = kv.read_header(source), kv.layout.layout_id
    known: SlotContents | None = None
    if running is not None:
        valid = min(wanted, running.common_with(ids))
    elif request.kv_holds is None:
        valid = min(wanted, trusted_length(header, model_hash, layout_id, ids))
        known = SlotContents(tokens=len(ids), ids_hash=extend_hash(HASH_OF_NOTHING, ids)) if not valid else None
    else:
        known = request.kv_holds
        kept = holds(header, model_hash, layout_id, known.tokens, known.ids_hash)
        # An engine that was lost right after it had taken over the slot has left it with this text's beginning.
        valid = wanted if kept else min(wanted, trusted_length(header, model_hash, layout_id, ids))
    if not valid and known is not None and kv.holds_more(source, model_hash, known):
        # The engine before was lost in the middle of a step, or the service before was, and never told.
        valid = min(wanted, known.tokens)
    # The last piece of a prompt is always computed, and a source may have ended since it was chosen.
    if valid < wanted:
        log.info("slot %d: %d of %d positions are trusted, the rest is computed again", source, valid, wanted)
    return first_position(len(request.prompt), len(request.emitted), valid)


def take_slot(request: Generate, kv: KvMemory, model_hash: str, running: Generation | None = None) -> SlotState:
    """Make the request's slot its own, with what can be reused in it. `running` is the generation that computes in
    the slot it is to be copied from, if one does.

    A prefix in another slot is copied here and now: when the next message is handled, that slot may belong to
    somebody else.
    """
    ids = [*request.prompt, *request.emitted]
    state = kv.open_slot(request.slot, model_hash)
    if request.overflow == "slide" and request.kv_valid_tokens and request.kv_holds is None:
        found = find_slid(kv.read_header(request.slot), model_hash, kv.layout, ids)
        if found is not None:
            state.begin(header_ids(ids[: found.index], found.dropped), found.dropped)
            return state
    start = _reusable(request, kv, model_hash, ids, running)
    if start and request.kv_copy_from is not None:
        state.begin([])  # a copy that is interrupted must not look like what was here before
        kv.copy_prefix(request.kv_copy_from, request.slot, start)
    state.begin(ids[:start])
    return state


class Generation:
    """A generation under way in its KV slot.

    While `prefilling`, the batch runs `next_ids(n)` as one piece and calls `computed`; after that each step takes one
    id in and `computed` hands it the logits, or the batch runs a `draft` and calls `verified`. While `sliding`, the
    batch calls `slide` first. `finished` once it is over.
    """

    def __init__(
        self,
        request: Generate,
        *,
        state: SlotState,
        max_len: int,
        window: SlidingWindow | None = None,
        sampler: Sampler,
        grammar: Grammar | None,
        received_s: float,
        speculation: Speculation | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`state` comes from `take_slot`; `sampler` and `grammar` have already taken in `request.emitted`."""
        self.request_id = request.request_id
        self.model = request.model
        self.slot = request.slot
        self.adapter = request.adapter
        self.finished = False
        self._request = request
        self._sampler = sampler
        self._grammar = grammar
        self._speculation = speculation
        self._clock = clock
        self._ids = [*request.prompt, *request.emitted]
        self._max_len = max_len
        self._window = window
        self._new = 0
        self._received_s = received_s
        self._first_step_s: float | None = None
        self._prefilled_s: float | None = None
        self._steps = self._batched = 0
        self._state = state
        self._kept = self._index

    @property
    def _index(self) -> int:
        """Of the next id that is to be computed."""
        return self._state.length + self._state.dropped

    @property
    def prefilling(self) -> bool:
        return self._index < len(self._request.prompt)

    @property
    def sliding(self) -> bool:
        """Whether the slot is full and room must be made before the next step."""
        return self._window is not None and self._window.full

    def slide(self, limit_s: float | None) -> int:
        """Make room, or a part of it that takes about `limit_s`. Returns how many positions were moved in layers."""
        assert self._window is not None
        return self._window.make_room(self._ids[: self._index], limit_s)

    @property
    def past(self) -> int:
        """Positions of the slot that are computed."""
        return self._state.length

    @property
    def prompt_left(self) -> int:
        """Positions of the prompt that are not."""
        return max(0, len(self._request.prompt) - self._index)

    @property
    def largest_piece(self) -> int:
        return self._request.prefill_chunk

    def common_with(self, ids: list[int]) -> int:
        """How many computed positions of its slot hold the beginning of `ids`."""
        if self._state.dropped:
            return 0
        pairs = zip(self._ids[: self._state.length], ids, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def begin(self) -> list[Message]:
        """To be called once, before the first run: what an earlier engine emitted may have been all."""
        if reason := self._end_of_emitted():
            return [self._finish(reason)]
        return []

    def next_ids(self, count: int = 1) -> list[int]:
        """The ids of the next positions: up to `count` of the prompt, or one."""
        if self._first_step_s is None:
            self._first_step_s = self._clock()
        index, left = self._index, self.prompt_left
        size = min(count, left) or 1
        if 0 < left - size < LEAST_PIECE:
            size = left if size <= LEAST_PIECE else left - LEAST_PIECE
        return self._ids[index : index + size]

    def computed(self, ids: Sequence[int], logits: F32, batch: int = 1) -> list[Message]:
        """`ids` are in the slot; `logits` `[vocab_size]` are those after the last one. Returns what came of it.

        `batch` generations took part in the run. Raises `EngineError` or `RequestError`; the generation is over
        then.
        """
        prompt = len(self._request.prompt)
        self._state.extend(ids, len(ids))
        done = self._index
        messages: list[Message] = []
        if done <= prompt:
            messages.append(
                PrefillProgress(
                    request_id=self.request_id, done_tokens=done, total_tokens=prompt, kept_tokens=self._kept
                )
            )
        else:
            self._steps += 1
            self._batched += batch
            if self._speculation is not None:
                self._speculation.plain_step()
        if done == len(self._ids):
            if self._prefilled_s is None:
                self._prefilled_s = self._clock()
            messages += self._answer([self._choose(logits)])
        return messages

    @property
    def speculates(self) -> bool:
        """Whether `draft` may have something: all that was emitted is in the slot, up to the last id."""
        return self._speculation is not None and self._index == len(self._ids) - 1

    def draft(self, rows: int) -> Draft | None:
        """Guessed next ids that are worth a run of their own while `rows` generations decode, or None."""
        if self._speculation is None or not self.speculates:
            return None
        emitted = len(self._ids) - len(self._request.prompt)
        # One position is left for the id that a verification adds to what it accepts.
        room = min(self._request.max_new_tokens - emitted, self._max_len - self._state.length - 1) - 1
        return self._speculation.draft(self._ids, room, rows, self._grammar)

    def verified(self, draft: Draft, logits: F32) -> list[Message]:
        """The last id and `draft` are in the slot; `logits` `[1 + drafted, vocab_size]` are those after each.

        Draws along them as plain steps would, as long as what is drawn is what was drafted: positions behind the
        first difference hold the KV of other ids, and are computed again. Raises like `computed`.
        """
        assert self._speculation is not None
        computed = [self._ids[-1], *draft.ids]
        choices: list[Choice] = []
        accepted = 0
        for row, guess in zip(logits, [*draft.ids, None], strict=True):
            choices.append(self._choose(row))
            stands = choices[-1].token == guess
            accepted += stands
            if not stands or self._end_after(choices[-1].token):
                break
        self._state.extend(computed[: 1 + accepted], 1 + accepted)
        self._steps += 1
        self._batched += 1
        self._speculation.count(draft, accepted)
        return self._answer(choices)

    def speculated(self, rows: int, run_s: float) -> None:
        """What the verification before took, while `rows` generations decoded."""
        if self._speculation is not None:
            self._speculation.took(rows, run_s)

    def close(self) -> None:
        """Let go of what is shared with other generations. Safe to call twice."""
        if self._speculation is not None:
            self._speculation.close()

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
        full = self._window is None and len(self._ids) >= self._max_len
        return "length" if full or emitted >= self._request.max_new_tokens else None

    def _choose(self, logits: F32) -> Choice:
        """The next id, which belongs to the text from now on."""
        allowed = self._grammar.allowed() if self._grammar is not None else None
        choice = self._sampler.choose(logits, allowed)
        self._sampler.accept(choice.token)
        if self._grammar is not None:
            self._grammar.accept(choice.token)
        self._ids.append(choice.token)
        self._new += 1
        return choice

    def _end_after(self, token: int) -> FinishReason | None:
        """Why the text ends with `token`, its last; None: it goes on."""
        if token in self._request.stop_ids:
            return "stop"
        return self._limit_reached(len(self._ids) - len(self._request.prompt))

    def _answer(self, choices: list[Choice]) -> list[Message]:
        logprobs = [choice.logprob for choice in choices if choice.logprob is not None]
        ids = [choice.token for choice in choices]
        messages: list[Message] = [Tokens(request_id=self.request_id, ids=ids, logprobs=logprobs)]
        if reason := self._end_after(ids[-1]):
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
            slid_tokens=self._state.dropped,
            wait_s=first_s - self._received_s,
            prefill_s=prefilled_s - first_s,
            decode_s=now_s - prefilled_s,
            cached_tokens=min(self._kept, len(self._request.prompt)),
            kept_tokens=self._kept,
            mean_batch=self._batched / self._steps if self._steps else 0.0,
            drafted_tokens=self._speculation.drafted if self._speculation is not None else 0,
            accepted_tokens=self._speculation.accepted if self._speculation is not None else 0,
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
