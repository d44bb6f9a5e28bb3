"""The engine's one loop: events in, one graph run at a time, answers out.

Everything that computes runs in the thread that calls `run`. A turn is one decode step of each model's batch, then
one piece of a prompt, then one run of an encoder. All events that have arrived are looked at between any two runs:
that bounds how long a cancel, a new request or the wish to leave has to wait.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from magnitude.engine.generation import never_started
from magnitude.engine.link import ServiceGone
from magnitude.engine.loaded import LoadedModel, find_loaded
from magnitude.engine.message import Message
from magnitude.engine.packed_weights import PackedWeights
from magnitude.engine.preparing import SessionBuilt
from magnitude.engine.process import give_back_memory
from magnitude.engine.profiling import TwinEvent
from magnitude.engine.protocol import (
    CancelRequest,
    Done,
    Drain,
    Drained,
    Embed,
    EmbedAndRank,
    Failed,
    Generate,
    GetStats,
    Hello,
    InferTensors,
    LoadAdapter,
    Loaded,
    LoadModel,
    Measure,
    Measured,
    Pace,
    PoolUse,
    Shutdown,
    Stats,
    ToEngine,
    Trim,
    UnloadAdapter,
    UnloadModel,
)
from magnitude.engine.session_desk import SessionDesk
from magnitude.engine.session_messages import (
    CompareSession,
    PrepareSession,
    Probe,
    ProfileOperators,
    ReleaseSession,
    UseSessions,
)
from magnitude.engine.slot_header import SlotState
from magnitude.engine.stats import Progress, read_memory
from magnitude.engine.waiting import GrammarBuilt, WaitingGenerations
from magnitude.engine.work import Results, Run, Work
from magnitude.errors import EngineError, MagnitudeError, RequestError

if TYPE_CHECKING:
    from magnitude.engine.grammar import Grammar

log = logging.getLogger(__name__)


class Arrived:
    """A message, the descriptor that came for it, and when (monotonic)."""

    __slots__ = ("at_s", "fd", "message")

    def __init__(self, message: ToEngine, fd: int | None, at_s: float) -> None:
        self.message = message
        self.fd = fd
        self.at_s = at_s


Event = Arrived | GrammarBuilt | SessionBuilt | TwinEvent


# Once idle for so long: soon enough for the memory to be there when somebody else needs it, late enough not to
# stand in the way of a client that sends one request after the other.
_SETTLE_AFTER_S = 1.0
# freed heap is given back to the kernel when the process has grown by more than this. A prefill of 128 tokens
# through 135 million parameters leaves 17 MB; giving it back takes a few milliseconds.
_TRIM_ABOVE_BYTES = 4 * 1024 * 1024


class EngineLoop:
    """Holds the models and the open jobs. `post` may be called from any thread; `packed` is where sessions
    keep packed weights, `scratch` where files of a moment may be."""

    def __init__(
        self,
        send: Callable[..., None],
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
        packed: PackedWeights | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._send = send
        self._progress = progress
        self._clock = clock
        # Bounded by the service, which limits its open requests.
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._models: dict[str, LoadedModel] = {}
        self._work = Work(self._models, clock)
        self._sessions = SessionDesk(
            self._models,
            self._work,
            progress,
            answer=self._answer,
            post=self.post,
            clock=clock,
            packed=packed,
            scratch=scratch,
        )
        self._waiting = WaitingGenerations(self.post, self._sessions.place)
        self._closed = False  # to new work, since `Drain`
        self._draining: list[int] = []  # `Drain`s that wait for their answer
        self._leave = False
        self._idle_anon_bytes = 0

    def post(self, event: Event) -> None:
        self._events.put(event)

    def run(self) -> None:
        """Serve until `Shutdown`. Raises `ServiceGone` when nobody is there to be answered."""
        while not self._leave:
            self._take_events()
            self._pause()  # what ran before the engine was idle may not be made up for yet
            if len(self._work) and not self._leave:
                self._turn()
            elif self._sessions.has_runs and not self._leave:
                self._sessions.run_aside()
        for model in self._models.values():
            model.close()

    @property
    def _busy(self) -> bool:
        """Whether there is anything to compute."""
        return len(self._work) > 0 or self._sessions.has_runs

    @property
    def _nothing_open(self) -> bool:
        return not (len(self._work) or len(self._waiting) or self._closed)

    def _turn(self) -> None:
        for run in self._work.turn():
            self._do(run)
            self._open_changed()
            if not len(self._work):
                break  # waiting for events comes after the report
            self._take_events()
            self._pause()
            if self._leave:
                return
        self._report()

    def _report(self) -> None:
        if report := self._work.report.due(self._clock(), idle=not len(self._work)):
            self._send(report)

    def _pause(self) -> None:
        """Start no run before the pace allows one. Events are taken as they come; any of them may end the pause."""
        pacer = self._work.pacer
        if pacer.neutral:
            return
        while not self._leave and self._busy and (left_s := pacer.pause_s(started_s := self._clock())):
            self._report()
            self._progress.paused = True
            try:
                event = self._events.get(timeout=left_s)
            except queue.Empty:
                continue
            finally:
                self._progress.paused = False
                self._work.report.paused(self._clock() - started_s)
            self._handle(event)

    def _take_events(self) -> None:
        """Handle what has arrived; wait for something when there is nothing to compute."""
        while not self._leave:
            try:
                self._handle(self._next_event())
            except queue.Empty:
                return

    def _next_event(self) -> Event:
        """The next event; raises `queue.Empty` when there is none and there is work to do."""
        if self._busy:
            return self._events.get_nowait()
        try:
            return self._events.get(timeout=_SETTLE_AFTER_S)
        except queue.Empty:
            self._settle()
        return self._events.get()

    def _settle(self) -> None:
        anon_bytes = read_memory().anon_bytes
        if anon_bytes > self._idle_anon_bytes + _TRIM_ABOVE_BYTES:
            give_back_memory()
            anon_bytes = self._idle_anon_bytes = read_memory().anon_bytes
        self._idle_anon_bytes = min(self._idle_anon_bytes, anon_bytes)

    def _do(self, run: Run) -> None:
        finished = False
        self._progress.run_begins()
        try:
            results = run()
            finished = any(not isinstance(result, Exception) for _, result in results)
        finally:
            self._progress.run_ends(finished=finished)
        pools = [model.pool_use for model in self._models.values()]
        self._progress.run_pool = max(pools, key=lambda use: use.peak_bytes, default=PoolUse())
        self._answer(results)

    def _answer(self, results: Results) -> None:
        answers: list[Message] = []
        for request_id, result in results:
            answers += [self._failed(request_id, result)] if isinstance(result, Exception) else result
        self._send_all(answers)

    def _send_all(self, messages: list[Message]) -> None:
        """All messages of a run in one write: the service wakes up once for a step, not once for each stream."""
        try:
            if messages:
                self._send(*messages)
        except EngineError as error:
            # One is too large for a frame (which only a run job's single answer can be): the answer is this error.
            for message in messages:
                request_id = getattr(message, "request_id", 0)
                self._work.remove(request_id)
                self._send(self._failed(request_id, error))

    def _handle(self, event: Event) -> None:
        match event:
            case GrammarBuilt():
                self._grammar_built(event)
            case SessionBuilt():
                self._sessions.built(event)
            case TwinEvent():
                self._sessions.profiler.happened(event)
            case Arrived():
                self._handle_message(event)
        self._open_changed()

    def _handle_message(self, event: Arrived) -> None:
        message = event.message
        self._sessions.arrived(message)
        try:
            match message:
                case Generate() | Embed() | EmbedAndRank() | InferTensors():
                    self._open(message, event)
                case CancelRequest():
                    self._cancel(message.target)
                case LoadModel():
                    self._load(message, event.fd)
                case UnloadModel():
                    self._unload(message)
                case LoadAdapter():
                    self._model(message.model).load_adapter(message)
                    self._send(Done(request_id=message.request_id))
                case UnloadAdapter():
                    self._unload_adapter(message)
                case PrepareSession():
                    self._check_open()
                    self._sessions.prepare(message)
                case ReleaseSession():
                    self._sessions.release(message)
                case CompareSession():
                    self._check_open()
                    self._check_slot(message)
                    self._sessions.compare(message)
                case Probe():
                    self._sessions.probe(message, idle=self._nothing_open)
                case ProfileOperators():
                    self._sessions.profile(message, idle=self._nothing_open)
                case UseSessions():
                    self._sessions.use(message)
                case Measure():
                    self._measure(message)
                case GetStats():
                    self._send(self._stats(message.request_id))
                case Trim():
                    self._trim()
                case Pace():
                    self._work.pacer.set_shares(prefill=message.prefill, decode=message.decode, now_s=self._clock())
                case Drain():
                    self._closed = True
                    self._sessions.close()
                    self._draining.append(message.request_id)
                case Shutdown():
                    self._leave = True
                case Hello():
                    log.warning("a second Hello is ignored")
        except (ServiceGone, MemoryError):
            raise
        except Exception as error:
            self._send(self._failed(getattr(message, "request_id", 0), error))
        finally:
            if event.fd is not None:
                os.close(event.fd)

    def _open(self, message: Generate | Embed | EmbedAndRank | InferTensors, event: Arrived) -> None:
        self._check_open()
        request_id = message.request_id
        if request_id in self._waiting or self._work.holds(request_id):
            raise RequestError(f"request {request_id} is already open", code="request_id_in_use")
        model = self._model(message.model)
        match message:
            case Generate():
                model.check(message)
                self._check_slot(message)
                state = model.take_slot(message)
                if message.grammar is None:
                    self._join(model, message, state, None, event.at_s)
                else:
                    self._waiting.add(message, state, model, event.at_s)
            case Embed():
                self._work.add(model.open_embed(message, self._clock))
            case EmbedAndRank():
                self._work.add(model.open_ranking(message, self._clock))
            case InferTensors():
                self._work.add(model.open_tensors(message, self._clock))

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine takes nothing new", code="engine_draining", hint="Ask again in a moment")

    def _model(self, name: str) -> LoadedModel:
        return find_loaded(self._models, name)

    def _join(
        self, model: LoadedModel, request: Generate, state: SlotState, grammar: Grammar | None, received_s: float
    ) -> None:
        generation = model.open_generation(request, state, grammar, received_s, self._clock)
        self._send_all(generation.begin())
        if not generation.finished:
            assert model.batch is not None, "only decoders open generations"
            model.batch.join(generation)

    def _check_slot(self, request: Generate | CompareSession) -> None:
        waiting = any(waiting.request.slot == request.slot for waiting in self._waiting.of(request.model))
        if waiting or self._work.slot_taken(request.model, request.slot):
            raise EngineError(f"slot {request.slot} is in use", code="slot_in_use")

    def _grammar_built(self, event: GrammarBuilt) -> None:
        request = event.request
        waiting = self._waiting.built(event)
        if waiting is None:
            return  # cancelled, or its model unloaded, in the meantime
        try:
            if isinstance(event.outcome, Exception):
                raise event.outcome
            model = self._models[request.model]
            self._join(model, request, waiting.state, event.outcome, waiting.at_s)
        except MemoryError:
            raise
        except Exception as error:
            self._send(self._failed(request.request_id, error))

    def _cancel(self, target: int) -> None:
        if (waiting := self._waiting.remove(target)) is not None:
            self._send(never_started(waiting.request, self._clock() - waiting.at_s))
        elif (job := self._work.remove(target)) is not None:
            self._send(job.cancel())
        else:
            self._sessions.cancel(target)

    def _trim(self) -> None:
        before_bytes = read_memory().anon_bytes
        for model in self._models.values():
            model.trim()
        give_back_memory()
        log.info("%.1f MB given back", (before_bytes - read_memory().anon_bytes) / 1e6)

    def _load(self, message: LoadModel, fd: int | None) -> None:
        name = message.model.name
        model = self._models.get(name)
        started_s = self._clock()
        if model is None:
            model = self._models[name] = LoadedModel(message, fd, self._sessions.maker, self._sessions.place)
            give_back_memory()  # loading leaves some megabytes of parsed graph behind
        elif not model.made_by(message, fd):  # a spare engine has loaded what the service then asks it to load
            raise RequestError(f"model {name} is already loaded", code="model_already_loaded", param="model")
        load_s = self._clock() - started_s
        log.info("model %s loaded in %.2f s with %d threads", name, load_s, message.threads)
        self._send(
            Loaded(
                request_id=message.request_id,
                model=name,
                load_s=load_s,
                inputs=model.inputs,
                outputs=model.outputs,
                draft_failure=model.draft_failure,
            )
        )

    def _unload(self, message: UnloadModel) -> None:
        model = self._model(message.model)
        error = EngineError(f"model {message.model} was unloaded", code="model_unloaded", hint="Ask again")
        open_ids = self._work.remove_all(message.model)
        open_ids += [waiting.request.request_id for waiting in self._waiting.of(message.model)]
        del self._models[message.model]
        for request_id in open_ids:
            self._waiting.remove(request_id)
            self._send(self._failed(request_id, error))
        self._sessions.unloaded(message.model, error)
        model.close()
        del model
        give_back_memory()
        self._send(Done(request_id=message.request_id))

    def _unload_adapter(self, message: UnloadAdapter) -> None:
        model = self._model(message.model)
        if any(waiting.request.adapter == message.name for waiting in self._waiting.of(message.model)):
            raise RequestError(
                f"adapter {message.name} is in use", code="adapter_in_use", hint="Ask again in a moment"
            )
        model.unload_adapter(message.name)
        self._send(Done(request_id=message.request_id))

    def _measure(self, message: Measure) -> None:
        if len(self._work) or len(self._waiting):
            raise EngineError("the engine is at work, so nothing can be measured", code="engine_busy")
        model = self._model(message.model)
        self._progress.run_begins()
        try:
            step_s = model.measure(message, self._clock)
            exact = model.verifies_exactly(message.slot)
        finally:
            self._progress.run_ends(finished=True)
        self._send(Measured(request_id=message.request_id, step_s=step_s, verifies_exactly=exact))

    def _open_changed(self) -> None:
        """Keep the count that the heartbeat reports, and answer `Drain` when nothing is open."""
        self._progress.open_requests = len(self._work) + len(self._waiting)
        if self._progress.open_requests == 0:
            for request_id in self._draining:
                self._send(Drained(request_id=request_id))
            self._draining.clear()

    def _stats(self, request_id: int) -> Stats:
        memory = read_memory()
        return Stats(
            request_id=request_id,
            rss_bytes=memory.rss_bytes,
            anon_bytes=memory.anon_bytes,
            open_requests=len(self._work) + len(self._waiting),
            steps=self._progress.steps,
            models=tuple(self._models),
            run_pool=self._progress.run_pool,
            sessions=self._progress.sessions,
            session_bytes=self._progress.session_bytes,
        )

    def _failed(self, request_id: int, error: Exception) -> Failed:
        if isinstance(error, MagnitudeError):
            if not isinstance(error, RequestError):
                log.error("request %d: %s", request_id, error)
            return Failed(
                request_id=request_id,
                code=error.code,
                message=error.message,
                hint=error.hint,
                param=error.param,
                permanent=error.permanent,
                request_fault=isinstance(error, RequestError),
            )
        log.exception("request %d failed on an error that nobody foresaw", request_id)
        return Failed(
            request_id=request_id,
            code="internal_error",
            message=f"the engine failed: {type(error).__name__}",
            hint="See the service's log for where it happened",
        )
