"""A spare engine: started, everything imported, and, where that is wanted, with its models loaded.

Starting Python and importing ONNX Runtime is most of the time that a lost engine costs its clients (0.4 s of 0.6 s on
x86-64, and many times that from a cold SD card), loading the model most of the rest. A spare without models takes
27 MB of memory of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import PROTOCOL_VERSION, Heartbeat, Hello, ToService
from magnitude.supervise.connected_engine import ConnectedEngine, SpawnEngine
from magnitude.supervise.loss import EngineLoss

log = logging.getLogger("magnitude.supervise")

# So long after an engine has come up, so that the spare's start does not slow down the streams that just went on.
PREPARE_AFTER_S = 2.0
# A spare that could not be had, or was lost, is not tried again at once: it is a comfort, not a need.
RETRY_AFTER_S = 60.0


class SpareEngine:
    """Keeps one spare while `wanted()` says that there is memory for it. Lives on the service's event loop.

    `warm_up(link)` does with it what the next engine would have to do; it is cancelled when the spare is taken or
    gone, and what it asked for comes in through `on_message`.
    """

    def __init__(
        self,
        spawn: SpawnEngine,
        *,
        wanted: Callable[[], bool],
        warm_up: Callable[[EngineLink], Awaitable[None]] | None = None,
        on_message: Callable[[ToService], None] = lambda message: None,
        after_s: float = PREPARE_AFTER_S,
        retry_s: float = RETRY_AFTER_S,
    ) -> None:
        self._spawn = spawn
        self._wanted = wanted
        self._warm_up = warm_up
        self._on_message = on_message
        self._after_s = after_s
        self._retry_s = retry_s
        self._engine: ConnectedEngine | None = None
        self._ready = asyncio.Event()
        self._warming: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._leaving: list[ConnectedEngine] = []  # killed, and not known to be gone
        self._off = False

    @property
    def pid(self) -> int | None:
        return self._engine.pid if self._engine is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether there is one that has nothing more to do."""
        return self._ready.is_set()

    def take(self) -> ConnectedEngine | None:
        """The spare, if there is one that lives; it is the caller's from now on."""
        engine, self._engine = self._engine, None
        self._stop_warming()
        return engine if engine is not None and not engine.ended and not engine.broken else None

    def prepare(self, after_s: float | None = None) -> None:
        """Have a spare soon, unless there is one already."""
        self._off = False
        self._cancel_timer()
        if self._engine is None and self._starting is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._after_s if after_s is None else after_s, self._begin)

    async def ready(self, within_s: float) -> bool:
        """Whether there is a spare that has nothing more to do, at the latest after `within_s`."""
        self.prepare(0.0)
        if self._engine is None and not self._wanted():
            return False
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), within_s)
        return self._ready.is_set()

    def drop(self) -> None:
        """Memory is short: do without, until `prepare` is called again."""
        self._off = True
        self._cancel_timer()
        if (engine := self.take()) is not None:
            self._dismiss(engine)

    async def close(self) -> None:
        """Returns when the spare is gone."""
        self.drop()
        if self._starting is not None:
            await self._starting
        for engine in self._leaving:
            await engine.process.ended()

    # --- Owner ---

    def engine_said(self, engine: ConnectedEngine, message: ToService) -> None:
        if isinstance(message, Hello):
            if message.protocol_version != PROTOCOL_VERSION:
                # An upgrade under way: the next start of the service brings both to one version.
                log.warning("a spare engine is of another version than the service; it is not kept")
                self.drop()
                return
            if engine is self._engine:
                self._greeted(engine)
        elif not isinstance(message, Heartbeat):
            self._on_message(message)

    def engine_ended(self, engine: ConnectedEngine, loss: EngineLoss) -> None:
        log.info("spare engine lost", extra={"fields": {"pid": engine.pid, "reason": loss.reason}})
        if self._engine is engine:
            self._engine = None
            self._stop_warming()
            self.prepare(self._retry_s)

    # --- inside ---

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = None
        if self._wanted():
            self._starting = asyncio.get_running_loop().create_task(self._start())
        else:
            log.debug("no spare engine: not enough memory")

    async def _start(self) -> None:
        try:
            engine = await ConnectedEngine.start(self._spawn, self)
        except Exception as error:  # whatever it is: a spare is a comfort, and a stop awaits this task
            log.info("no spare engine", extra={"fields": {"reason": str(error)}})
            return
        finally:
            self._starting = None
        if self._off:
            self._dismiss(engine)
        elif not engine.ended:
            engine.spare = True
            self._engine = engine
            if engine.hello is not None:
                self._greeted(engine)

    def _greeted(self, engine: ConnectedEngine) -> None:
        self._warming = asyncio.get_running_loop().create_task(self._make_ready(engine))

    async def _make_ready(self, engine: ConnectedEngine) -> None:
        try:
            if self._warm_up is not None:
                await self._warm_up(engine.link)
        except Exception:
            log.exception("a spare engine could not be made ready; it stands by as it is")
        self._ready.set()
        log.debug("spare engine ready", extra={"fields": {"pid": engine.pid}})

    def _stop_warming(self) -> None:
        self._ready.clear()
        if self._warming is not None:
            self._warming.cancel()
            self._warming = None

    def _dismiss(self, engine: ConnectedEngine) -> None:
        engine.owner = None
        engine.kill()
        self._leaving = [other for other in self._leaving if not other.ended] + [engine]
