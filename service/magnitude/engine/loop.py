"""The engine's one loop: events in, one graph run at a time, answers out.

Everything that computes runs in the thread that calls `run`. Open jobs take turns, one graph run each, and all
events that have arrived are looked at between any two runs: that bounds how long a cancel, a new request or the
wish to leave has to wait.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from collections import deque
from collections.abc import Callable

from magnitude.engine.loaded import Job, LoadedModel
from magnitude.engine.process import give_back_memory
from magnitude.engine.protocol import (
    CancelRequest,
    Done,
    Drain,
    Drained,
    Embed,
    Failed,
    Generate,
    GetStats,
    Hello,
    InferTensors,
    Loaded,
    LoadModel,
    Message,
    Shutdown,
    Stats,
    ToEngine,
    UnloadModel,
)
from magnitude.engine.stats import Progress, read_memory
from magnitude.errors import EngineError, MagnitudeError, ModelNotFound, RequestError

log = logging.getLogger(__name__)


class Terminate:
    """SIGTERM arrived: leave after the run under way."""


class Arrived:
    """A message, the descriptor that came for it, and when (monotonic)."""

    __slots__ = ("at_s", "fd", "message")

    def __init__(self, message: ToEngine, fd: int | None, at_s: float) -> None:
        self.message = message
        self.fd = fd
        self.at_s = at_s


# A job that used more than this at a time leaves so much freed heap that giving it back is worth the milliseconds.
_TRIM_ABOVE_BYTES = 32 * 1024 * 1024


class EngineLoop:
    """Holds the models and the open jobs. `post` may be called from any thread and from a signal handler."""

    def __init__(
        self,
        send: Callable[[Message], None],
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._progress = progress
        self._clock = clock
        # SimpleQueue: its `put` is reentrant, so a signal handler may use it. Bounded by the service, which
        # limits its open requests.
        self._events: queue.SimpleQueue[Arrived | Terminate] = queue.SimpleQueue()
        self._models: dict[str, LoadedModel] = {}
        self._jobs: deque[Job] = deque()
        self._closed = False  # to new work, since `Drain`
        self._draining: list[int] = []  # `Drain`s that wait for their answer
        self._leave = False
        self._idle_rss_bytes = 0

    def post(self, event: Arrived | Terminate) -> None:
        self._events.put(event)

    def run(self) -> None:
        """Serve until `Shutdown` or `Terminate`."""
        while not self._leave:
            self._take_events()
            if self._jobs and not self._leave:
                job = self._jobs.popleft()
                self._step(job)
                if not job.finished:
                    self._jobs.append(job)
                self._jobs_changed()
        for model in self._models.values():
            model.close()

    def _take_events(self) -> None:
        """Handle what has arrived; wait for something when there is nothing to compute."""
        wait = not self._jobs
        while not self._leave:
            try:
                event = self._events.get(block=wait)
            except queue.Empty:
                return
            wait = False
            if isinstance(event, Terminate):
                log.info("asked to leave by SIGTERM, %d requests open", len(self._jobs))
                self._leave = True
            else:
                self._handle(event)
                wait = not self._jobs

    def _step(self, job: Job) -> None:
        finished = False
        self._progress.run_begins()
        try:
            messages = job.advance()
            finished = True
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            job.finished = True
            messages = [self._failed(job.request_id, error)]
        finally:
            self._progress.run_ends(finished=finished)
        self._send_all(job, messages)

    def _send_all(self, job: Job, messages: list[Message]) -> None:
        for message in messages:
            try:
                self._send(message)
            except EngineError as error:  # too large for a frame: the answer is this error instead
                job.finished = True
                self._send(self._failed(job.request_id, error))
                return

    def _handle(self, event: Arrived) -> None:
        message = event.message
        try:
            match message:
                case Generate() | Embed() | InferTensors():
                    self._open(message, event.at_s)
                case CancelRequest():
                    self._cancel(message.target)
                case LoadModel():
                    self._load(message, event.fd)
                case UnloadModel():
                    self._unload(message)
                case GetStats():
                    self._send(self._stats(message.request_id))
                case Drain():
                    self._closed = True
                    self._draining.append(message.request_id)
                case Shutdown():
                    self._leave = True
                case Hello():
                    log.warning("a second Hello is ignored")
        except OSError:
            raise
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            self._send(self._failed(getattr(message, "request_id", 0), error))
        finally:
            if event.fd is not None:
                os.close(event.fd)
        self._jobs_changed()

    def _open(self, message: Generate | Embed | InferTensors, received_s: float) -> None:
        if self._closed:
            raise EngineError("the engine takes nothing new", code="engine_draining", hint="Ask again in a moment")
        if any(job.request_id == message.request_id for job in self._jobs):
            raise RequestError(f"request {message.request_id} is already open", code="request_id_in_use")
        model = self._models.get(message.model)
        if model is None:
            raise ModelNotFound(
                f"model {message.model} is not loaded", param="model", hint="See the list of models for what is"
            )
        if not self._jobs:
            self._idle_rss_bytes = read_memory().anon_bytes
        job: Job
        match message:
            case Generate():
                if any(job.slot == message.slot and job.model == message.model for job in self._jobs):
                    raise EngineError(f"slot {message.slot} is in use", code="slot_in_use")
                job = model.open_generation(message, received_s, self._clock)
            case Embed():
                job = model.open_embed(message, self._clock)
            case InferTensors():
                job = model.open_tensors(message, self._clock)
        self._jobs.append(job)

    def _cancel(self, target: int) -> None:
        for job in self._jobs:
            if job.request_id == target:
                self._jobs.remove(job)
                self._send(job.cancel())
                return

    def _load(self, message: LoadModel, fd: int | None) -> None:
        name = message.model.name
        if name in self._models:
            raise RequestError(f"model {name} is already loaded", code="model_already_loaded", param="model")
        started_s = self._clock()
        model = LoadedModel(message, fd)
        self._models[name] = model
        load_s = self._clock() - started_s
        log.info("model %s loaded in %.2f s with %d threads", name, load_s, message.threads)
        self._send(
            Loaded(
                request_id=message.request_id,
                model=name,
                load_s=load_s,
                inputs=model.inputs,
                outputs=model.outputs,
            )
        )

    def _unload(self, message: UnloadModel) -> None:
        model = self._models.pop(message.model, None)
        if model is None:
            raise ModelNotFound(f"model {message.model} is not loaded", param="model")
        for job in [job for job in self._jobs if job.model == message.model]:
            self._jobs.remove(job)
            error = EngineError(f"model {message.model} was unloaded", code="model_unloaded", hint="Ask again")
            self._send(self._failed(job.request_id, error))
        model.close()
        del model
        give_back_memory()
        self._send(Done(request_id=message.request_id))

    def _jobs_changed(self) -> None:
        """Keep the count that the heartbeat reports, and answer `Drain` when nothing is open."""
        self._progress.open_requests = len(self._jobs)
        if self._jobs:
            return
        if self._idle_rss_bytes and read_memory().anon_bytes > self._idle_rss_bytes + _TRIM_ABOVE_BYTES:
            give_back_memory()
        self._idle_rss_bytes = 0
        for request_id in self._draining:
            self._send(Drained(request_id=request_id))
        self._draining.clear()

    def _stats(self, request_id: int) -> Stats:
        memory = read_memory()
        return Stats(
            request_id=request_id,
            rss_bytes=memory.rss_bytes,
            anon_bytes=memory.anon_bytes,
            open_requests=len(self._jobs),
            steps=self._progress.steps,
            models=tuple(self._models),
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
            )
        log.exception("request %d failed on an error that nobody foresaw", request_id)
        return Failed(
            request_id=request_id,
            code="internal_error",
            message=f"the engine failed: {type(error).__name__}",
            hint="See the service's log for where it happened",
        )
