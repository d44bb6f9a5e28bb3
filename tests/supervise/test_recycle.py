"""Replacing the engine on request, with real processes that speak the protocol."""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from magnitude.engine.client import EngineLink
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.lifecycle import EngineLifecycle, ModelsReady, Phase
from magnitude.supervise.supervisor import EngineSupervisor

FAKE = str(Path(__file__).parent / "fake_engine.py")
PATIENCE_S = 15.0  # less than a recycle waits for its spare


class Supervised:
    """A supervised engine whose spare starts and never says a word."""

    def __init__(self) -> None:
        self._spawned = itertools.count()
        self.mute_pids: list[int] = []
        self.supervisor = EngineSupervisor(
            EngineLifecycle(load_deadline_s=60, step_deadline_s=60),
            load=self._load,
            on_message=lambda message: None,
            on_up=lambda link: self._up.set(),
            on_down=lambda loss: self._up.clear(),
            on_failed=lambda reason: None,
            spawn=self._spawn,
            spare_wanted=lambda: True,
        )
        self._up = asyncio.Event()

    async def _spawn(self, on_exit: OnExit) -> EngineProcess:
        if next(self._spawned) != 1:
            return await EngineProcess.spawn(on_exit, command=(sys.executable, FAKE))
        mute = await EngineProcess.spawn(on_exit, command=(sys.executable, "-c", "import time; time.sleep(600)"))
        self.mute_pids.append(mute.pid)
        return mute

    @staticmethod
    async def _load(link: EngineLink) -> ModelsReady:
        return ModelsReady()

    async def up(self) -> None:
        await self._up.wait()

    async def with_mute_spare(self) -> None:
        """Returns when a recycle waits for its spare in vain."""
        await self.up()
        while not self.mute_pids:
            await asyncio.sleep(0.01)


def test_a_stop_does_not_wait_for_the_spare_that_a_recycle_waits_for() -> None:
    async def scenario() -> Phase:
        supervised = Supervised()
        supervisor = supervised.supervisor
        running = asyncio.create_task(supervisor.run())
        await supervised.up()
        recycling = supervisor.recycle("a test")
        await supervised.with_mute_spare()
        async with asyncio.timeout(PATIENCE_S):
            await supervisor.stop()
            await recycling
        running.cancel()
        return supervisor.lifecycle.phase

    assert asyncio.run(scenario()) is Phase.STOPPED
