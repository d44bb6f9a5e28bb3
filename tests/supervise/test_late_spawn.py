"""A system that takes minutes to start a process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from magnitude.engine.client import EngineLink
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.lifecycle import EngineLifecycle, ModelsReady, Phase, Tick
from magnitude.supervise.supervisor import EngineSupervisor

FAKE = str(Path(__file__).parent / "fake_engine.py")
PATIENCE_S = 60.0


def test_an_engine_that_comes_after_another_took_its_place_does_not_push_it_out() -> None:
    async def scenario() -> None:
        may_start, up = asyncio.Event(), asyncio.Event()
        spawned: list[EngineProcess] = []
        now_s = 0.0

        async def spawn(on_exit: OnExit) -> EngineProcess:
            if not spawned and not may_start.is_set() and not waiting.is_set():
                waiting.set()
                await may_start.wait()
            spawned.append(await EngineProcess.spawn(on_exit, command=(sys.executable, FAKE)))
            return spawned[-1]

        async def load(link: EngineLink) -> ModelsReady:
            return ModelsReady()

        waiting = asyncio.Event()
        supervisor = EngineSupervisor(
            EngineLifecycle(load_deadline_s=600, step_deadline_s=600),
            load=load,
            on_message=lambda message: None,
            on_up=lambda link: up.set(),
            on_down=lambda loss: None,
            on_failed=lambda reason: None,
            spawn=spawn,
            clock=lambda: now_s,
        )
        running = asyncio.create_task(supervisor.run())
        await waiting.wait()
        while supervisor.lifecycle.restarts == 0:  # given up, and forgotten at last
            now_s += 1.0
            supervisor._feed(Tick())
        async with asyncio.timeout(PATIENCE_S):
            await up.wait()
            serving = supervisor.pid
            may_start.set()
            while len(spawned) < 2:
                await asyncio.sleep(0.01)
            await spawned[1].ended()
        assert supervisor.pid == serving == spawned[0].pid
        assert supervisor.lifecycle.phase is Phase.UP
        running.cancel()
        await supervisor.stop()

    asyncio.run(scenario())
