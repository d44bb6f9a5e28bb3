"""A generation under way, from its submission to its single end, over as many runs in the engine as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from magnitude.engine.message import Message
from magnitude.engine.pieces import first_position
from magnitude.engine.protocol import Finished, FinishReason, Generate, PrefillProgress, SlotContents, Tokens
from magnitude.errors import DeadlineExceeded, MagnitudeError
from magnitude.feedback.records import Outcome, TaskRecord
from magnitude.schedule.events import Submit
from magnitude.schedule.inference import Emission, GenerationTask
from magnitude.schedule.open_tasks import Close, OpenTask
from magnitude.schedule.slot_terms import Known, Placement


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of a generation took together."""

    wait_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cached_tokens: int = 0
    steps: int = 0
    batched: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    slid_tokens: int = 0
    recomputed_tokens: int = 0
    runs: int = 0

    def with_lost(self, cached_tokens: int) -> Spent:
        """A run was lost with its engine. The first one's `cached_tokens` are the generation's."""
        cached_tokens = self.cached_tokens if self.runs else cached_tokens
        return msgspec.structs.replace(self, cached_tokens=cached_tokens, runs=self.runs + 1)

    def with_run(self, run: Finished, expected_tokens: int) -> Spent:
        """`run` counts as well. What a later run finds in the slot was computed by an earlier one, not cached; of
        the `expected_tokens` positions it may not have found all."""
        return Spent(
            wait_s=self.wait_s + run.wait_s,
            prefill_s=self.prefill_s + run.prefill_s,
            decode_s=self.decode_s + run.decode_s,
            cached_tokens=self.cached_tokens if self.runs else run.cached_tokens,
            steps=self.steps + run.new_tokens,
            batched=self.batched + run.mean_batch * run.new_tokens,
            drafted_tokens=self.drafted_tokens + run.drafted_tokens,
            accepted_tokens=self.accepted_tokens + run.accepted_tokens,
            slid_tokens=self.slid_tokens + run.slid_tokens,
            recomputed_tokens=self.recomputed_tokens + max(0, expected_tokens - run.kept_tokens),
            runs=self.runs + 1,
        )

    @property
    def mean_batch(self) -> float:
        return self.batched / self.steps if self.steps else 0.0


class OpenGeneration(OpenTask):
    """Implements `schedule.inference.Generation`.

    `stands_in_for` is the model that was named, where a variant computes for it. `emitted` are the ids delivered so
    far: with the task they are all that a later run needs to go on.
    """

    def __init__(
        self,
        request_id: int,
        task: GenerationTask,
        *,
        prefill_chunk: int,
        max_draft: int,
        variant: str = "",
        stands_in_for: str = "",
        close: Close,
        withdraw: Callable[[int], None],
    ) -> None:
        super().__init__(request_id, task.model, close=close, withdraw=withdraw)
        self.task = task
        self.variant = variant
        self.stands_in_for = stands_in_for
        self.emitted: list[int] = []
        self.placement: Placement | None = None
        self.pausing = False  # the engine was asked to let go of it, and it will go on
        self.restoring = False  # a saved copy is being read into its slot
        self.restored: bool | None = None  # whether that went well, once it is known
        self.spent = Spent()
        self._prefill_chunk = prefill_chunk
        self._max_draft = max_draft
        self._max_new_tokens = task.max_new_tokens
        self._prompt_done = 0
        self._kept = 0  # positions that the run under way found
        self._expected = 0  # positions that it was to find
        self._complete = False
        self._cut = False
        self.due = False  # its soft deadline has passed
        self._emissions: asyncio.Queue[Emission | MagnitudeError] = asyncio.Queue()
        self._last: Emission | MagnitudeError | None = None

    def submission(self, known: Known) -> Submit:
        """What admission is told of it. `known` is what is there of its conversation."""
        task = self.task
        return Submit(
            self.request_id,
            "generation",
            task.model,
            client=task.client,
            priority=task.priority,
            deadline=task.deadline,
            task=task.task,
            conversation=task.conversation or known.conversation,
            continuing=bool(known.conversation),
            expect=task.expect,
            tokens=len(task.prompt) - known.tokens,
            max_new_tokens=task.max_new_tokens,
        )

    # --- the one who asked ---

    @property
    def waited_s(self) -> float | None:
        return self.queue_s if self.has_started else None

    async def next(self) -> Emission:
        if self._last is None:
            item = await self._emissions.get()
            if isinstance(item, Emission) and item.reason is None:
                return item
            self._last = item
        if isinstance(self._last, MagnitudeError):
            raise self._last
        return self._last

    def complete(self) -> None:
        if not self.over and not self._complete:
            self._complete = True
            self.withdraw()

    def cancel(self, why: str) -> None:
        if self.over:
            return
        self.end(self._record("ok") if self._complete else self._record("cancelled", code=why))
        self._emissions.put_nowait(self._end("cancelled"))
        self.withdraw()

    # --- the dispatcher ---

    @property
    def progress(self) -> tuple[int, ...]:
        return (len(self.emitted), self._prompt_done)

    @property
    def in_engine(self) -> bool:
        return super().in_engine and not self.restoring

    def lost(self) -> None:
        super().lost()
        self.pausing = False
        # A run that nothing was heard of did not find anything either: the next one is the first.
        if self._prompt_done or self.emitted:
            self.spent = self.spent.with_lost(min(self._kept, len(self.task.prompt)))

    def move(self, request_id: int, model: str, *, max_draft: int) -> None:
        """It has no place with its variant any more, and goes on behind what it has emitted with the model that was
        named, as a new request of the queue."""
        self.request_id, self.model = request_id, model
        self.task = msgspec.structs.replace(self.task, model=model)
        self.stands_in_for = ""
        if not self.emitted:
            self.variant = ""
        self.placement, self.restored = None, None
        self.has_started = self.paused = self.pausing = False
        self._prompt_done = 0
        self._max_draft = min(self._max_draft, max_draft)

    def first_message(self) -> Generate:
        """Without what only this attempt knows: its number, its slot, what was in it."""
        return self._message(slot=0, request_id=0, emitted=[])

    def limit(self, max_new_tokens: int) -> None:
        """Make the answer no longer than this, for its deadline's sake."""
        if max_new_tokens < self._max_new_tokens:
            self._max_new_tokens = max_new_tokens
            self._cut = True

    def message(self, *, resumed: bool, reuse: bool = True) -> Generate:
        """What is sent to the engine. `reuse` false: what the placement promised did not come true."""
        assert self.placement is not None, "a generation starts in a slot"
        task, placement = self.task, self.placement
        if resumed and (self.emitted or self._prompt_done):
            # The slot is as the last run left it, which its header bears out: all but the last token are computed.
            done = len(task.prompt) + len(self.emitted) - 1 if self.emitted else self._prompt_done
            valid, holds, copy_from = max(done, placement.valid_tokens), None, None
        elif reuse:
            valid, holds, copy_from = placement.valid_tokens, placement.holds, placement.copy_from
        else:
            valid, holds, copy_from = 0, None, None
        self._kept = 0
        self._expected = first_position(len(task.prompt), len(self.emitted), valid) if resumed else 0
        return self._message(
            slot=placement.slot,
            request_id=self.request_id,
            emitted=list(self.emitted),
            valid=valid,
            holds=holds,
            copy_from=copy_from,
        )

    def _message(
        self,
        *,
        slot: int,
        request_id: int,
        emitted: list[int],
        valid: int = 0,
        holds: SlotContents | None = None,
        copy_from: int | None = None,
    ) -> Generate:
        task = self.task
        return Generate(
            request_id=request_id,
            model=task.model,
            slot=slot,
            prompt=task.prompt,
            emitted=emitted,
            max_new_tokens=self._max_new_tokens,
            sampler=task.sampler,
            grammar=task.grammar,
            stop_ids=task.stop_ids,
            logprobs=task.logprobs,
            prefill_chunk=self._prefill_chunk,
            kv_valid_tokens=valid,
            kv_holds=holds,
            kv_copy_from=copy_from,
            adapter=task.adapter,
            max_draft=self._max_draft,
            overflow=task.overflow,
        )

    def receive(self, message: Message) -> bool:
        match message:
            case PrefillProgress(done_tokens=done, kept_tokens=kept):
                self._prompt_done = max(self._prompt_done, done)
                self._kept = kept
                return False
            case Tokens(ids=ids, logprobs=logprobs):
                self.emitted += ids
                if not self.over:
                    self._emissions.put_nowait(Emission(ids=ids, logprobs=logprobs))
                return False
            case Finished():
                self.spent = self.spent.with_run(message, self._expected)
                return True
            case _:
                return False

    def finish(self, reason: FinishReason, *, cut: str = "") -> None:
        """The answer is complete as it stands."""
        if self.over:
            return
        if self.due and reason == "cancelled" and not self._complete:
            reason, cut = "length", "deadline"
        cancelled = reason == "cancelled" and not self._complete
        cut = cut or ("deadline" if self._cut and reason == "length" else "")
        self.end(self._record("cancelled" if cancelled else "ok"))
        self._emissions.put_nowait(self._end(reason, cut=cut))

    def end_soon(self) -> None:
        """The soft deadline has passed while the engine computes: what it has said so far is the answer. The engine's
        last word, which brings the times, ends it."""
        self.due = True

    def fail(self, error: MagnitudeError) -> None:
        if self.due:
            self.finish("length", cut="deadline")
        if not self.over:
            self.end(self._record("failed", code=error.code))
            self._emissions.put_nowait(error)

    def missed(self) -> None:
        """The hard deadline has passed: say what was done by then."""
        self.fail(
            DeadlineExceeded(
                f"the deadline passed after {len(self.emitted)} of at most {self.task.max_new_tokens} new tokens",
                prompt_tokens=self._prompt_done or self.spent.cached_tokens,
                new_tokens=len(self.emitted),
                hint="Allow more time, ask for fewer tokens, or make the deadline soft",
            )
        )

    # --- inside ---

    def _end(self, reason: FinishReason, *, cut: str = "") -> Emission:
        spent = self.spent
        return Emission(
            reason=reason,
            queue_s=self.queue_s + spent.wait_s,
            prefill_s=spent.prefill_s,
            decode_s=spent.decode_s,
            cached_tokens=spent.cached_tokens,
            slot=self.placement.slot if self.placement is not None else None,
            batch=spent.mean_batch,
            drafted_tokens=spent.drafted_tokens,
            accepted_tokens=spent.accepted_tokens,
            cut=cut,
            recoveries=self.recoveries,
            recomputed_tokens=spent.recomputed_tokens,
        )

    def _record(self, outcome: Outcome, *, code: str = "") -> TaskRecord:
        return TaskRecord(
            kind="generate",
            model=self.model,
            outcome=outcome,
            code=code,
            prompt_tokens=len(self.task.prompt),
            new_tokens=len(self.emitted),
            queue_s=self.queue_s,
            prefill_s=self.spent.prefill_s,
            decode_s=self.spent.decode_s,
            task=self.task.task,
            cached_tokens=self.spent.cached_tokens,
            batch=self.spent.mean_batch,
            drafted_tokens=self.spent.drafted_tokens,
            accepted_tokens=self.spent.accepted_tokens,
            request=self.task.request_key,
            strategy=self.strategy_id,
        )
