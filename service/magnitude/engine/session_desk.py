"""What is asked about further sessions: made, released, used, compared, timed and profiled. All of it in the loop's
thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from magnitude.engine.comparing import CompareJob
from magnitude.engine.loaded import LoadedModel, find_loaded
from magnitude.engine.message import Message
from magnitude.engine.packed_weights import PackedWeights
from magnitude.engine.preparing import Preparations, SessionBuilt
from magnitude.engine.probing import ProbeJob
from magnitude.engine.process import give_back_memory
from magnitude.engine.profiling import Profiler, TwinEvent
from magnitude.engine.protocol import CancelRequest, Done, GetStats, Pace, ToEngine
from magnitude.engine.session_maker import SessionMaker
from magnitude.engine.session_messages import (
    CompareSession,
    PrepareSession,
    Probe,
    ProfileOperators,
    ReleaseSession,
    UseSessions,
)
from magnitude.engine.stats import Progress
from magnitude.engine.thread_place import ThreadPlace
from magnitude.engine.work import Results, Work
from magnitude.errors import EngineError

log = logging.getLogger(__name__)

# What may come without ending a probe or a profile: it disturbs none of its times.
_BESIDE_A_PROBE = (GetStats, Pace, UseSessions, CancelRequest)


class SessionDesk:
    """Further sessions of the loop's `models`. `answer` sends what comes of a request; `post` is the loop's;
    `packed` is where packed weights are kept, `scratch` where profiles are written for a moment."""

    def __init__(
        self,
        models: dict[str, LoadedModel],
        work: Work,
        progress: Progress,
        *,
        answer: Callable[[Results], None],
        post: Callable[[SessionBuilt | TwinEvent], None],
        clock: Callable[[], float] = time.monotonic,
        packed: PackedWeights | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.place = ThreadPlace()
        self._models = models
        self._work = work
        self._progress = progress
        self._answer = answer
        self._clock = clock
        maker = self.maker = SessionMaker(self.place, packed)
        self._preparations = Preparations(post, maker, clock)
        self._probe: ProbeJob | None = None
        self.profiler = Profiler(
            answer=answer,
            post=post,
            thread=self._preparations.thread,
            maker=maker,
            scratch=scratch,
            clock=clock,
        )

    @property
    def has_runs(self) -> bool:
        """Whether runs are to be done that nobody's answer depends on."""
        return self._probe is not None or self.profiler.running is not None

    @property
    def preparing(self) -> bool:
        """Whether the thread makes a session, which takes from the times of all runs."""
        return len(self._preparations) > 0 or self.profiler.at_work

    def prepare(self, message: PrepareSession) -> None:
        """Raises `RequestError` or `ModelError` for a session that cannot be."""
        self._answer(self._preparations.ask(message, find_loaded(self._models, message.model)))

    def built(self, event: SessionBuilt) -> None:
        """The thread is done with one."""
        self._answer(self._preparations.built(event))
        self._tell_progress()

    def release(self, message: ReleaseSession) -> None:
        """Between two runs, so nothing computes by it. What compares it, and what makes it, is given up."""
        released = EngineError("the session was released", code="session_released")
        asked_for = (message.model, message.session)
        self._answer(
            self._preparations.abandon(
                lambda asked: (asked.request.model, asked.request.session) == asked_for, released
            )
        )
        if (model := self._models.get(message.model)) is not None:
            known = model.sessions.known_as(message.session)
            self._end_comparisons(lambda job: (job.model, job.session) == (message.model, known), released)
            model.release_session(message.session)
            give_back_memory()
            self._tell_progress()
        self._answer([(message.request_id, [Done(request_id=message.request_id)])])

    def use(self, message: UseSessions) -> None:
        """There is no answer, so none for a model that was unloaded meanwhile either."""
        if (model := self._models.get(message.model)) is not None:
            model.sessions.use(message)

    def compare(self, message: CompareSession) -> None:
        """The slot is nobody's. Raises `EngineError` when there is no such session, `RequestError` for the texts."""
        self._work.add(find_loaded(self._models, message.model).open_comparison(message))

    def probe(self, message: Probe, *, idle: bool) -> None:
        """Begin, if `idle`. Raises like `compare`."""
        probe = find_loaded(self._models, message.model).open_probe(message, self._clock)
        if idle and not self.preparing:
            self._probe = probe
        else:
            self._answer([(probe.request_id, [probe.probed()])])

    def profile(self, message: ProfileOperators, *, idle: bool) -> None:
        """Begin, if `idle`. Raises `RequestError` for runs that cannot be done."""
        self.profiler.begin(message, find_loaded(self._models, message.model), idle=idle and not self.preparing)

    def run_aside(self) -> None:
        """One run of the probe, or of the profile: progress like any other, but nothing that is open."""
        job = self._probe or self.profiler.running
        assert job is not None, "asked only while there is one"
        finished = False
        self._progress.run_begins()
        try:
            phase, run_s = job.advance()
            finished = True
            self._work.pacer.ran(phase, run_s, self._clock())
        except MemoryError:
            raise
        except Exception as error:
            if job is self._probe:
                self._probe = None
                self._answer([(job.request_id, error)])
            else:
                self.profiler.failed(error)
        finally:
            self._progress.run_ends(finished=finished)
        if not finished:
            return
        if job is not self._probe:
            self.profiler.ran()
        elif job.finished:
            self._end_probe()

    def arrived(self, message: ToEngine) -> None:
        """Anything that might disturb a probe or a profile, or wait for it, ends it before it is handled."""
        if not isinstance(message, _BESIDE_A_PROBE):
            self._end_probe()
            self.profiler.give_up()

    def _end_probe(self) -> None:
        if self._probe is not None:
            probe, self._probe = self._probe, None
            result: list[Message] = [probe.probed()]
            self._answer([(probe.request_id, result)])

    def cancel(self, target: int) -> None:
        """Give up a probe, which is answered with what it has, a profile, or a preparation."""
        self.profiler.give_up(target)
        if self._probe is not None and self._probe.request_id == target:
            self._end_probe()
        cancelled = EngineError("the request was cancelled", code="cancelled")
        self._answer(self._preparations.abandon(lambda asked: asked.request.request_id == target, cancelled))

    def unloaded(self, model: str, why: EngineError) -> None:
        """Give up what is being made for a model that is no more."""
        self._answer(self._preparations.abandon(lambda asked: asked.request.model == model, why))
        self._tell_progress()

    def close(self) -> None:
        """Give up all that nobody's answer depends on, so that nothing waits for it."""
        error = EngineError("the engine takes nothing new", code="engine_draining", hint="Ask again in a moment")
        self._end_comparisons(lambda _: True, error)
        self._answer(self._preparations.abandon(lambda _: True, error))

    def _end_comparisons(self, wanted: Callable[[CompareJob], bool], why: EngineError) -> None:
        for job in filter(wanted, self._work.comparisons):
            self._work.remove(job.request_id)
            self._answer([(job.request_id, why)])

    def _tell_progress(self) -> None:
        sets = [model.sessions for model in self._models.values()]
        self._progress.sessions = sum(len(sessions) for sessions in sets)
        self._progress.session_bytes = sum(sessions.added_bytes for sessions in sets)
