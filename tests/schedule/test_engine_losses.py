"""What a lost engine costs requests: time."""

import asyncio
import os
import signal

import pytest
from dispatcher_house import House, plan, read, task
from sample_plans import encoder_plan

from magnitude.errors import Quarantined
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.lifecycle import Phase
from magnitude.supervise.loss import EngineLoss


@pytest.mark.parametrize("instruction", [2, 3, 4])
def test_a_request_that_kills_silences_or_hangs_the_engine_twice_is_refused_and_the_engine_comes_back(
    instruction: int,
) -> None:
    async def scenario(house: House) -> None:
        with pytest.raises(Quarantined) as raised:
            await read(house, [instruction])
        assert raised.value.hint
        assert await read(house, [1, 5]) == [5] * 4
        assert house.supervisor.lifecycle.restarts == 2
        with pytest.raises(Quarantined):  # the same again, which a client's library may send by itself
            await read(house, [instruction])
        assert house.supervisor.lifecycle.restarts == 2

    House([plan("m")]).play(scenario)


def test_those_that_ran_beside_a_request_that_kills_the_engine_go_on() -> None:
    async def scenario(house: House) -> None:
        words = list(range(5, 205))
        generation = await house.dispatcher.generate(task([1, *words], limit=200))
        ids = (await generation.next()).ids
        with pytest.raises(Quarantined):
            await read(house, [2])
        while (emission := await generation.next()).reason is None:
            ids += emission.ids
        assert ids == words
        assert emission.recoveries == 2

    House([plan("m")]).play(scenario)


@pytest.mark.parametrize("times", [1, 5])
def test_an_engine_that_is_killed_from_outside_costs_no_token(times: int) -> None:
    async def scenario(house: House) -> None:
        words = list(range(5, 305))
        generation = await house.dispatcher.generate(task([1, *words], limit=300))
        ids: list[int] = []
        for _ in range(times):
            ids += (await generation.next()).ids
            pid = house.supervisor.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await house.until(lambda pid=pid: house.supervisor.pid not in (pid, None))  # type: ignore[misc]
        while (emission := await generation.next()).reason is None:
            ids += emission.ids
        assert ids == words
        assert emission.reason == "length"
        assert emission.recoveries >= 1

    House([plan("m")]).play(scenario)


def test_a_planned_replacement_costs_no_token_and_is_no_failure() -> None:
    async def scenario(house: House) -> None:
        words = list(range(5, 305))
        generation = await house.dispatcher.generate(task([1, *words], limit=300))
        ids = (await generation.next()).ids
        before = house.supervisor.pid
        await house.supervisor.recycle("to see whether it can be done")
        assert house.supervisor.pid != before
        assert house.supervisor.lifecycle.phase is Phase.UP
        while (emission := await generation.next()).reason is None:
            ids += emission.ids
        assert ids == words
        assert (house.supervisor.recycles, house.supervisor.recent_losses) == (1, 0)

    House([plan("m")]).play(scenario)


def test_an_embedding_in_an_engine_that_is_lost_is_computed_by_the_next_one() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        pid = house.supervisor.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # so that it is certainly there when the engine goes
        waiting = asyncio.create_task(house.dispatcher.embed("e", [[1]], [], request_key="r"))
        await house.until(lambda: house.dispatcher.running == 1)
        os.kill(pid, signal.SIGKILL)
        assert len((await waiting).rows) == 1

    House([plan("m"), encoder_plan("e")]).play(scenario)


def test_the_next_engine_comes_also_when_telling_of_the_loss_fails() -> None:
    class Forgetful(House):
        def on_down(self, loss: EngineLoss) -> None:
            super().on_down(loss)
            raise RuntimeError("the disk is full")

    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        assert house.supervisor.pid is not None
        os.kill(house.supervisor.pid, signal.SIGKILL)
        await house.until(lambda: house.supervisor.lifecycle.restarts == 1)
        assert await read(house, [1, 5]) == [5] * 4

    Forgetful([plan("m")]).play(scenario)


def test_a_spawn_that_fails_however_is_tried_again() -> None:
    failures = [OSError("no memory"), RuntimeError("something new")]

    async def scenario(house: House) -> None:
        assert await read(house, [1, 5]) == [5] * 4
        assert house.supervisor.lifecycle.restarts == 2

    class Unlucky(House):
        async def spawn(self, on_exit: OnExit) -> EngineProcess:
            if failures:
                raise failures.pop()
            return await super().spawn(on_exit)

    Unlucky([plan("m")]).play(scenario)
