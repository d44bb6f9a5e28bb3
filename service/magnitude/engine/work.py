"""The engine's open work, and the order in which it is done.

A turn is a sequence of graph runs in which everything open gets its share: one decode step of each model's batch,
verifications of what its members drafted, one piece of a prompt, one run of an encoder or of plain tensors. Running
answers wait no longer than `max_inter_token_ms` for their next token, as far as that is in the choice of the prompt's
piece and of drafts. Pauses that the pace asks for after runs count into that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from magnitude.engine.batch import Outcome, Ran, RunningBatch
from magnitude.engine.comparing import CompareJob
from magnitude.engine.generation import Generation
from magnitude.engine.loaded import LoadedModel, RunJob
from magnitude.engine.message import Message
from magnitude.engine.pace import Pacer, Phase, phase_of
from magnitude.engine.step_report import StepReport

# What one graph run led to: messages by request, or why the request failed.
Results = list[tuple[int, list[Message] | Exception]]


# One graph run that is to be done now.
Run = Callable[[], Results]


class Work:
    """Open generations (in their models' batches) and open run jobs."""

    def __init__(self, models: dict[str, LoadedModel], clock: Callable[[], float] = time.monotonic) -> None:
        self.report = StepReport()
        self.pacer = Pacer()
        self._models = models
        self._jobs: deque[RunJob] = deque()
        self._clock = clock
        self._entered = 0  # prompts of several models take turns
        self._verified_s = 0.0  # time of this turn that went into verifications

    def __len__(self) -> int:
        return len(self._jobs) + sum(1 for _ in self._generations())

    def add(self, job: RunJob) -> None:
        self._jobs.append(job)

    def holds(self, request_id: int) -> bool:
        return any(job.request_id == request_id for job in self._all())

    def slot_taken(self, model: str, slot: int) -> bool:
        taken = [(member.model, member.slot) for member in self._generations()]
        taken += [(job.model, job.slot) for job in self.comparisons]
        return (model, slot) in taken

    @property
    def comparisons(self) -> list[CompareJob]:
        """All that compare sessions."""
        return [job for job in self._jobs if isinstance(job, CompareJob)]

    def remove(self, request_id: int) -> Generation | RunJob | None:
        """Take a job out, at once; None when there is none of that id."""
        for job in self._all():
            if job.request_id == request_id:
                self._drop(job)
                return job
        return None

    def remove_all(self, model: str) -> list[int]:
        """Take out whatever belongs to `model`; returns the request ids."""
        gone = [job for job in self._all() if job.model == model]
        for job in gone:
            self._drop(job)
        return [job.request_id for job in gone]

    def turn(self) -> Iterator[Run]:
        """The runs of one turn, each made up only when the one before it is done: events may change what is open."""
        self._verified_s = 0.0
        for name in list(self._models):
            batch = self._batches().get(name)
            if batch is not None and batch.decoding:
                batch.begin_turn()
                yield partial(self._decode, name, batch)
                while batch.drafting and name in self._models:
                    yield partial(self._verify, name, batch)
        entering = [(name, batch) for name, batch in self._batches().items() if batch.entering]
        if entering:
            self._entered += 1
            yield partial(self._prefill, *entering[self._entered % len(entering)])
        if self._jobs:
            yield self._advance

    def _decode(self, name: str, batch: RunningBatch) -> Results:
        if batch.decoding == 1 and (verified := self._verify(name, batch)):
            return verified  # it gives the token of a plain step as well
        ran, outcomes = batch.decode_step()
        return self._results(name, ran, outcomes)

    def _verify(self, name: str, batch: RunningBatch) -> Results:
        """Verify the next draft; nothing when there is none."""
        step = batch.verify_step(self._limit_s("decode") if batch.decoding > 1 else None)
        if step is None:
            return []
        ran, outcomes = step
        self._verified_s += ran.run_s
        return self._results(name, ran, outcomes)

    def _prefill(self, name: str, batch: RunningBatch) -> Results:
        ran, outcomes = batch.prefill_step(self._limit_s("prefill"))
        return self._results(name, ran, outcomes)

    def _results(self, name: str, ran: Ran, outcomes: list[Outcome]) -> Results:
        self._ran(name, ran)
        return [(member.request_id, result) for member, result in outcomes]

    def _ran(self, model: str, ran: Ran) -> None:
        now_s = self._clock()
        self.report.add(model, ran.kind, ran.rows, ran.tokens, run_s=ran.run_s, now_s=now_s, session=ran.session)
        self.pacer.ran(phase_of(ran.kind), ran.run_s, now_s)

    def _limit_s(self, phase: Phase) -> float | None:
        """How long another run of this turn may take; None while no answer waits for its next token and the pace
        does not matter."""
        longest_s = self.pacer.longest_run_s(phase)
        waiting = [(name, batch) for name, batch in self._batches().items() if batch.decoding]
        if not waiting:
            return longest_s
        limit_s = min(self._models[name].max_inter_token_s for name, _ in waiting)
        steps_s = sum(batch.step_s for _, batch in waiting)
        left_s = max(0.0, limit_s - (steps_s + self._verified_s) / self.pacer.share("decode"))
        left_s *= self.pacer.share(phase)
        return left_s if longest_s is None else min(left_s, longest_s)

    def _batches(self) -> dict[str, RunningBatch]:
        return {name: model.batch for name, model in self._models.items() if model.batch is not None}

    def _advance(self) -> Results:
        job = self._jobs.popleft()
        started_s = self._clock()
        try:
            result: list[Message] | Exception = job.advance()
        except MemoryError:
            raise
        except Exception as error:
            job.finished = True
            result = error
        run_s, shape = self._clock() - started_s, job.last_run
        if shape is not None:
            self._ran(job.model, Ran(job.kind, shape.rows, shape.tokens, run_s, shape.session))
        else:
            self.pacer.ran(phase_of(job.kind), run_s, self._clock())
        if not job.finished:
            self._jobs.append(job)
        return [(job.request_id, result)]

    def _generations(self) -> Iterator[Generation]:
        for batch in self._batches().values():
            yield from batch.members

    def _all(self) -> list[Generation | RunJob]:
        return [*self._generations(), *self._jobs]

    def _drop(self, job: Generation | RunJob) -> None:
        if isinstance(job, Generation):
            batch = self._models[job.model].batch
            assert batch is not None
            batch.leave(job)
        else:
            self._jobs.remove(job)
