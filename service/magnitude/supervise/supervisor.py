"""The supervisor: feeds the engine's lifecycle with events and carries out its effects.

What is loaded into a fresh engine, and what happens to requests, is decided by those who registered hooks; the
supervisor knows processes, not models.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from magnitude import __version__
from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import PROTOCOL_VERSION, Heartbeat, Hello, Shutdown, ToService
from magnitude.supervise.engine_process import EngineProcess
from magnitude.supervise.lifecycle import (
    Announce,
    Beat,
    Begin,
    Effect,
    EngineLifecycle,
    Event,
    Exited,
    Kill,
    LoadFailed,
    LoadModels,
    ModelLoadEnded,
    ModelLoads,
    ModelsReady,
    Phase,
    SaidHello,
    Spawn,
    Stop,
    Terminate,
    Tick,
)

log = logging.getLogger("magnitude.supervise")

SpawnEngine = Callable[[Callable[[str], None]], Awaitable[EngineProcess]]


class EngineSupervisor:
    """One engine, kept alive.

    Hooks: `load(link)` loads the models into a fresh engine and returns the event that tells how that went;
    it is cancelled when that engine is gone. `on_up(link)`, `on_down(reason)`, `on_failed(reason)` and
    `on_message(message)` are called on the event loop.
    """

    def __init__(
        self,
        lifecycle: EngineLifecycle,
        *,
        load: Callable[[EngineLink], Awaitable[ModelsReady | LoadFailed]],
        on_message: Callable[[ToService], None],
        on_up: Callable[[EngineLink], None],
        on_down: Callable[[str], None],
        on_failed: Callable[[str], None],
        spawn: SpawnEngine = EngineProcess.spawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lifecycle = lifecycle
        self.hello: Hello | None = None
        self.heartbeat: Heartbeat | None = None
        self._load = load
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._on_failed = on_failed
        self._spawn = spawn
        self._clock = clock
        self._process: EngineProcess | None = None
        self._link: EngineLink | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._loading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def run(self) -> None:
        """Start the engine and watch it until cancelled."""
        self._feed(Begin())
        while True:
            await asyncio.sleep(max(0.01, self.lifecycle.next_check_s(self._clock())))
            self._feed(Tick())

    def model_loads(self, deadline_s: float | None) -> None:
        """A model is being loaded into the engine that serves, which may take so long; None: that is over."""
        self._feed(ModelLoads(deadline_s) if deadline_s is not None else ModelLoadEnded())

    async def stop(self) -> None:
        """End the engine for good; returns when it is reaped."""
        self._feed(Stop())
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        # One that was still being spawned when the stop came has not been asked to leave yet.
        if self._process is not None:
            self._process.kill()
            await self._process.ended()

    def _feed(self, event: Event) -> None:
        for effect in self.lifecycle.apply(event, self._clock()):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Spawn():
                self._in_background(self._start_process())
            case LoadModels():
                assert self._link is not None, "models are loaded into a running engine"
                self._loading = self._in_background(self._load_models(self._link))
            case Kill(reason):
                log.error("engine is killed", extra={"fields": {"pid": self.pid, "reason": reason}})
                if self._process is not None:
                    self._process.kill()
            case Terminate():
                if self._link is not None:
                    self._link.send(Shutdown())
                if self._process is not None:
                    self._in_background(self._process.ended())
            case Announce(phase, reason):
                self._announce(phase, reason)

    def _announce(self, phase: Phase, reason: str) -> None:
        level = logging.WARNING if phase is Phase.BACKING_OFF else logging.INFO
        level = logging.ERROR if phase is Phase.FAILED else level
        log.log(level, "engine %s", phase.value, extra={"fields": {"pid": self.pid, "reason": reason}})
        if phase is not Phase.LOADING and self._loading is not None:
            self._loading.cancel()
            self._loading = None
        match phase:
            case Phase.UP:
                assert self._link is not None, "an engine that is up has a connection"
                self._on_up(self._link)
            case Phase.BACKING_OFF | Phase.STOPPED:
                self._on_down(reason)
            case Phase.FAILED:
                self._on_down(reason)
                self._on_failed(reason)
            case _:
                pass

    async def _start_process(self) -> None:
        try:
            self._process = await self._spawn(self._exited)
        except Exception as error:  # whatever it is: without an `Exited` nobody would ever try again
            if not isinstance(error, OSError):
                log.exception("starting the engine failed on an error that nobody foresaw")
            self._feed(Exited(f"the engine process could not be started: {error}"))
            return
        if self.lifecycle.killing:  # given up while it was being spawned
            self._process.kill()
        link = EngineLink(self._process.sock, self._receive, self._link_closed)
        self._link = link
        link.start()
        link.send(Hello(protocol_version=PROTOCOL_VERSION, software_version=__version__, pid=os.getpid()))

    async def _load_models(self, link: EngineLink) -> None:
        outcome = await self._load(link)
        self._loading = None  # before its outcome is told: the phase that follows would cancel it
        self._feed(outcome)

    def _receive(self, message: ToService) -> None:
        match message:
            case Hello():
                self.hello = message
                compatible = message.protocol_version == PROTOCOL_VERSION
                detail = (
                    ""
                    if compatible
                    else f"the engine speaks protocol {message.protocol_version}, the service {PROTOCOL_VERSION}: "
                    "two versions are installed over each other"
                )
                self._feed(SaidHello(compatible, detail))
            case Heartbeat():
                self.heartbeat = message
                self._feed(Beat(message.steps, message.busy_s, message.open_requests))
            case _:
                self._on_message(message)

    def _link_closed(self, reason: str) -> None:
        # The process is on its way out, or its stream is broken and it is of no use any more; the exit follows.
        if self.lifecycle.phase in {Phase.STOPPED, Phase.FAILED}:
            return  # it leaves because it was asked to
        log.warning("engine connection lost", extra={"fields": {"pid": self.pid, "reason": reason}})
        if self._process is not None:
            self._process.kill()

    def _exited(self, reason: str) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self._process = None
        self.heartbeat = None
        self._feed(Exited(reason))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("supervision failed", exc_info=task.exception())
            if self._process is not None:
                self._process.kill()
