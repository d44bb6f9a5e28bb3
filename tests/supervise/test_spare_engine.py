"""The spare engine, with real processes that speak the protocol."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import Done, ToService, UnloadModel
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.spare import SpareEngine

FAKE = str(Path(__file__).parent / "fake_engine.py")
PATIENCE_S = 60.0


async def spawn(on_exit: OnExit) -> EngineProcess:
    return await EngineProcess.spawn(on_exit, command=(sys.executable, FAKE))


def tried(
    scenario: Callable[[SpareEngine], Awaitable[None]],
    warm_up: Callable[[EngineLink], Awaitable[None]] | None = None,
    on_message: Callable[[ToService], None] = lambda message: None,
) -> None:
    async def run() -> None:
        spare = SpareEngine(spawn, wanted=lambda: True, warm_up=warm_up, on_message=on_message, after_s=0.0)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await scenario(spare)
        finally:
            await spare.close()

    asyncio.run(run())


def test_a_spare_is_ready_when_it_has_said_hello_and_is_given_away_once() -> None:
    async def scenario(spare: SpareEngine) -> None:
        assert await spare.ready(PATIENCE_S)
        pid = spare.pid
        engine = spare.take()
        assert engine is not None and engine.pid == pid
        assert (spare.take(), spare.pid, spare.is_ready) == (None, None, False)
        engine.kill()
        await engine.process.ended()

    tried(scenario)


def test_a_spare_that_is_to_be_warmed_up_is_not_ready_before_and_is_there_all_the_same() -> None:
    may_end = asyncio.Event()
    cancelled: list[bool] = []

    async def warm_up(link: EngineLink) -> None:
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def scenario(spare: SpareEngine) -> None:
        assert not await spare.ready(0.5)
        while spare.pid is None:
            await asyncio.sleep(0.01)
        engine = spare.take()
        assert engine is not None
        await asyncio.sleep(0.05)
        assert cancelled == ([True] if engine.hello is not None else [])
        engine.kill()
        await engine.process.ended()
        may_end.set()
        assert await spare.ready(PATIENCE_S)

    tried(scenario, warm_up)


def test_what_a_spare_answers_reaches_the_one_who_warms_it_up() -> None:
    heard: asyncio.Queue[ToService] = asyncio.Queue()
    answers: list[ToService] = []

    async def warm_up(link: EngineLink) -> None:
        link.send(UnloadModel(request_id=77, model="any"))
        answers.append(await heard.get())

    async def scenario(spare: SpareEngine) -> None:
        assert await spare.ready(PATIENCE_S)
        assert answers == [Done(request_id=77)]

    tried(scenario, warm_up, heard.put_nowait)


def test_a_spare_that_cannot_be_warmed_up_stands_by_as_it_is() -> None:
    async def warm_up(link: EngineLink) -> None:
        raise RuntimeError("no")

    async def scenario(spare: SpareEngine) -> None:
        assert await spare.ready(PATIENCE_S)

    tried(scenario, warm_up)


def test_a_spare_that_dies_is_none_and_one_that_is_dropped_goes() -> None:
    async def scenario(spare: SpareEngine) -> None:
        assert await spare.ready(PATIENCE_S)
        assert spare.pid is not None
        os.kill(spare.pid, signal.SIGKILL)
        while spare.pid is not None:
            await asyncio.sleep(0.01)
        assert spare.take() is None and not spare.is_ready
        assert await spare.ready(PATIENCE_S)
        spare.drop()
        assert spare.pid is None and not spare.is_ready

    tried(scenario)


def test_a_spawn_that_fails_however_costs_the_spare_and_nothing_else() -> None:
    async def refused(on_exit: OnExit) -> EngineProcess:
        raise RuntimeError("something new")

    async def run() -> None:
        spare = SpareEngine(refused, wanted=lambda: True, after_s=0.0)
        assert not await spare.ready(0.5)
        await spare.close()
        assert spare.pid is None

    asyncio.run(run())
