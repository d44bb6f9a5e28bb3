"""An engine process together with its connection, whoever it works for at the moment."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Protocol

from magnitude import __version__
from magnitude.engine.client import CLOSED, EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import PROTOCOL_VERSION, Heartbeat, Hello, ToService
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.loss import EngineLoss

SpawnEngine = Callable[[OnExit], Awaitable[EngineProcess]]


class Owner(Protocol):
    """Who is told what an engine says, and how it ends."""

    def engine_said(self, engine: ConnectedEngine, message: ToService) -> None: ...

    def engine_ended(self, engine: ConnectedEngine, loss: EngineLoss) -> None: ...


class ConnectedEngine:
    """From spawn to exit. `hello` and `heartbeat` are the last that it said, `productive` whether it has done
    anything for a request, `spare` whether it was started before there was a need for it."""

    def __init__(self, process: EngineProcess, owner: Owner | None) -> None:
        self.process = process
        self.owner = owner
        self.hello: Hello | None = None
        self.heartbeat: Heartbeat | None = None
        self.productive = False
        self.spare = False
        self.loss: EngineLoss | None = None
        self.broken = ""
        self.link = EngineLink(process.sock, self._receive, self._link_closed)
        self.link.start()
        self._send_hello()

    @classmethod
    async def start(cls, spawn: SpawnEngine, owner: Owner) -> ConnectedEngine:
        """Raises `OSError` when the system refuses."""
        engine: ConnectedEngine | None = None
        early: list[EngineLoss] = []

        def on_exit(loss: EngineLoss) -> None:
            if engine is None:
                early.append(loss)
            else:
                engine._exited(loss)

        engine = cls(await spawn(on_exit), owner)
        for loss in early:
            engine._exited(loss)
        return engine

    @property
    def ended(self) -> bool:
        return self.loss is not None

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, message: Message) -> None:
        self.link.send(message)

    def kill(self, *, stacks: bool = False) -> None:
        self.process.kill(stacks=stacks)

    def _send_hello(self) -> None:
        self.link.send(Hello(protocol_version=PROTOCOL_VERSION, software_version=__version__, pid=os.getpid()))

    def _receive(self, message: ToService) -> None:
        if isinstance(message, Hello):
            self.hello = message
        elif isinstance(message, Heartbeat):
            self.heartbeat = message
            self.process.heard_of()
        if self.owner is not None:
            self.owner.engine_said(self, message)

    def _link_closed(self, reason: str) -> None:
        # The process is on its way out, or its stream is broken and it is of no use any more; the exit follows.
        self.broken = reason
        self.process.kill()

    def _exited(self, loss: EngineLoss) -> None:
        if loss.cause == "killed" and self.broken not in ("", CLOSED):
            loss = EngineLoss(self.broken, "crash")  # the signal was ours
        self.loss = loss
        self.link.close()
        if self.owner is not None:
            self.owner.engine_ended(self, loss)
