"""The supervisor: feeds the engine's lifecycle with events and carries out its effects.

What is loaded into a fresh engine, and what happens to requests, is decided by those who registered hooks; the
supervisor knows processes, not models.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import (
    PROTOCOL_VERSION,
    Heartbeat,
    Hello,
    PrefillProgress,
    Ranked,
    Shutdown,
    TensorsOut,
    Tokens,
    ToService,
    Vectors,
)
from magnitude.log import ORDINARY_BURST
from magnitude.supervise.connected_engine import ConnectedEngine, SpawnEngine
from magnitude.supervise.engine_process import EngineProcess
from magnitude.supervise.lifecycle import (
    Abandon,
    Announce,
    Beat,
    Begin,
    Effect,
    EngineLifecycle,
    Event,
    Exited,
    GiveUp,
    Kill,
    LoadFailed,
    LoadModels,
    ModelLoadEnded,
    ModelLoads,
    ModelsReady,
    Phase,
    Recycle,
    SaidHello,
    Spawn,
    Stop,
    Terminate,
    Tick,
)
from magnitude.supervise.loss import EngineLoss
from magnitude.supervise.recovery import Recovery, RecoveryClock
from magnitude.supervise.spare import SpareEngine

log = logging.getLogger("magnitude.supervise")

# A planned replacement waits so long for a spare; an SD card that is busy otherwise needs about 10 s to start one.
SPARE_WITHIN_S = 20.0


class EngineSupervisor:
    """One engine, kept alive.

    Hooks: `load(link)` loads the models into a fresh engine and returns the event that tells how that went;
    it is cancelled when that engine is gone. `on_up(link)`, `on_down(loss)`, `on_failed(reason)`,
    `on_give_up(reason)` (the restart budget is spent), `on_beat(heartbeat)` and `on_message(message)` are called on
    the event loop. `spare_wanted()` says whether there is memory for a spare engine; without it there is none.
    `warm_up(link)` does with a spare what `load` would do later. `open_requests()` says how many requests the engine
    holds. `last_lines` is the end of the log of the engine that was lost last.
    """

    def __init__(
        self,
        lifecycle: EngineLifecycle,
        *,
        load: Callable[[EngineLink], Awaitable[ModelsReady | LoadFailed]],
        on_message: Callable[[ToService], None],
        on_up: Callable[[EngineLink], None],
        on_down: Callable[[EngineLoss], None],
        on_failed: Callable[[str], None],
        on_give_up: Callable[[str], None] = lambda reason: None,
        on_beat: Callable[[Heartbeat], None] = lambda heartbeat: None,
        spawn: SpawnEngine = EngineProcess.spawn,
        spare_wanted: Callable[[], bool] | None = None,
        warm_up: Callable[[EngineLink], Awaitable[None]] | None = None,
        open_requests: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lifecycle = lifecycle
        self.last_lines: tuple[str, ...] = ()
        self.recycles = 0
        self._load = load
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._on_failed = on_failed
        self._on_give_up = on_give_up
        self._on_beat = on_beat
        self._spawn = spawn
        self._open_requests = open_requests
        self._clock = clock
        self._recovery = RecoveryClock()
        self.spare = SpareEngine(
            spawn, wanted=spare_wanted or (lambda: False), warm_up=warm_up, on_message=on_message
        )
        self._engine: ConnectedEngine | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._loading: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._engine.pid if self._engine else None

    @property
    def hello(self) -> Hello | None:
        return self._engine.hello if self._engine else None

    @property
    def heartbeat(self) -> Heartbeat | None:
        return self._engine.heartbeat if self._engine else None

    @property
    def spare_pid(self) -> int | None:
        return self.spare.pid

    @property
    def spare_ready(self) -> bool:
        return self.spare.is_ready

    @property
    def last_recovery(self) -> Recovery | None:
        return self._recovery.last

    @property
    def recent_losses(self) -> int:
        """Engines lost unasked within the last quarter of an hour."""
        return self.lifecycle.recent_losses(self._clock())

    async def run(self) -> None:
        """Start the engine and watch it until cancelled."""
        self._feed(Begin())
        while True:
            await asyncio.sleep(max(0.01, self.lifecycle.next_check_s(self._clock())))
            self._feed(Tick())

    def model_loads(self, deadline_s: float | None) -> None:
        """A model is being loaded into the engine that serves, which may take so long; None: that is over."""
        self._feed(ModelLoads(deadline_s) if deadline_s is not None else ModelLoadEnded())

    def recycle(self, reason: str) -> asyncio.Task[None]:
        """Replace the engine; what it holds goes on with the next one. The task ends when that one serves, or when
        it is clear that none will for now."""
        return self._in_background(self._recycle(reason))

    async def stop(self) -> None:
        """End the engine for good; returns when it is reaped."""
        self._feed(Stop())
        await self.spare.close()
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        # One that was still being spawned when the stop came has not been asked to leave yet.
        if self._engine is not None:
            self._engine.kill()
            await self._engine.process.ended()

    # --- Owner of the engine ---

    def engine_said(self, engine: ConnectedEngine, message: ToService) -> None:
        match message:
            case Hello():
                self._greeted(message)
            case Heartbeat():
                self._on_beat(message)
                self._feed(Beat(message.steps, message.busy_s, message.open_requests, message.paused))
            case _:
                if self.lifecycle.phase is Phase.UP:
                    engine.productive = True
                    if isinstance(message, (PrefillProgress, Tokens, Vectors, Ranked, TensorsOut)):
                        self._recovery.answered(self._clock())
                self._on_message(message)

    def engine_ended(self, engine: ConnectedEngine, loss: EngineLoss) -> None:
        if engine is not self._engine:
            return
        self.last_lines = tuple(engine.process.last_lines)
        self._engine = None
        self._feed(Exited(loss.reason, loss.cause, engine.productive))

    # --- inside ---

    def _feed(self, event: Event) -> None:
        for effect in self.lifecycle.apply(event, self._clock()):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Spawn():
                self._in_background(self._start_process())
            case LoadModels():
                assert self._engine is not None, "models are loaded into a running engine"
                self._loading = self._in_background(self._load_models(self._engine.link))
            case Kill(reason, planned):
                level = logging.INFO if planned else logging.ERROR
                log.log(level, "engine is killed", extra={"fields": {"pid": self.pid, "reason": reason}})
                if self._engine is not None:
                    self._engine.kill(stacks=not planned)
            case Abandon():
                log.error("the killed engine does not go away", extra={"fields": {"pid": self.pid}})
                if self._engine is not None:
                    self._engine.owner = None
                self._engine = None
            case Terminate():
                if self._engine is not None:
                    self._engine.send(Shutdown())
                    self._in_background(self._engine.process.ended())
            case GiveUp(reason):
                self._on_give_up(reason)
            case Announce(phase, reason):
                try:
                    self._announce(phase, reason)
                except Exception:
                    # Who is told may fail; the next engine is started all the same.
                    log.exception("telling what became of the engine failed")

    def _announce(self, phase: Phase, reason: str) -> None:
        loss = self.lifecycle.loss
        level = logging.INFO
        if phase is Phase.BACKING_OFF and loss is not None and loss.cause != "recycled":
            level = logging.WARNING
        if phase is Phase.FAILED:
            level = logging.ERROR
        # An engine that comes and goes each second must not fill the journal.
        extra = {"cause": f"engine {phase.value}", "burst": ORDINARY_BURST if level == logging.INFO else 1}
        log.log(level, "engine %s", phase.value, extra=extra | {"fields": {"pid": self.pid, "reason": reason}})
        if phase is not Phase.LOADING and self._loading is not None:
            self._loading.cancel()
            self._loading = None
        match phase:
            case Phase.UP:
                assert self._engine is not None, "an engine that is up has a connection"
                self._recovery.loaded(self._clock())
                self._on_up(self._engine.link)
                self.spare.prepare()
                self._settled.set()
            case Phase.BACKING_OFF:
                assert loss is not None, "back-off follows a loss"
                if loss.cause == "recycled":
                    self.recycles += 1
                self._recovery.lost(loss, self._open_requests(), self._clock())
                self._on_down(loss)
            case Phase.STOPPED:
                self._on_down(EngineLoss(reason, "recycled"))
                self._settled.set()
            case Phase.FAILED:
                self._on_down(loss or EngineLoss(reason, "start"))
                self._on_failed(reason)
                self._settled.set()
            case _:
                pass

    async def _recycle(self, reason: str) -> None:
        if self.lifecycle.phase in {Phase.STOPPED, Phase.FAILED}:
            return
        self._settled.clear()
        if self.lifecycle.phase is Phase.UP:
            spare = await self._spare_unless_settled()
            if self._settled.is_set():
                return  # meanwhile this one was lost and replaced, or supervision has ended
            log.info("engine is recycled", extra={"fields": {"reason": reason, "spare": spare}})
            self._feed(Recycle(reason))
        await self._settled.wait()

    async def _spare_unless_settled(self) -> bool:
        """Whether there is a spare, as soon as that is known. A stop must not wait for one."""
        loop = asyncio.get_running_loop()
        spare = loop.create_task(self.spare.ready(SPARE_WITHIN_S))
        settled = loop.create_task(self._settled.wait())
        try:
            await asyncio.wait((spare, settled), return_when=asyncio.FIRST_COMPLETED)
            return spare.done() and spare.result()
        finally:
            spare.cancel()
            settled.cancel()

    async def _start_process(self) -> None:
        engine = self.spare.take()
        if engine is None:
            try:
                engine = await ConnectedEngine.start(self._spawn, self)
            except Exception as error:  # whatever it is: without an `Exited` nobody would ever try again
                if not isinstance(error, OSError):
                    log.exception("starting the engine failed on an error that nobody foresaw")
                self._feed(Exited(f"the engine process could not be started: {error}", "start"))
                return
        if self._engine is not None:  # it was given up while it was being spawned, and another one has its place
            engine.owner = None
            engine.kill()
            return
        engine.owner = self
        self._engine = engine
        if self.lifecycle.killing:  # given up while it was being spawned
            engine.kill()
        if engine.loss is not None:
            self.engine_ended(engine, engine.loss)
        elif engine.hello is not None:
            self._greeted(engine.hello)

    def _greeted(self, hello: Hello) -> None:
        compatible = hello.protocol_version == PROTOCOL_VERSION
        detail = (
            ""
            if compatible
            else f"the engine speaks protocol {hello.protocol_version}, the service {PROTOCOL_VERSION}: "
            "two versions are installed over each other"
        )
        if self._engine is not None:
            self._recovery.started(self._clock(), spare=self._engine.spare)
        self._feed(SaidHello(compatible, detail))

    async def _load_models(self, link: EngineLink) -> None:
        outcome = await self._load(link)
        self._loading = None  # before its outcome is told: the phase that follows would cancel it
        self._feed(outcome)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("supervision failed", exc_info=task.exception())
            if self._engine is not None:
                self._engine.kill()
