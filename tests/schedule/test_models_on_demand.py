"""Requests for models that come and go: the dispatcher, the switch and the loader over a process that pretends."""

import asyncio
import os

import pytest
from on_demand_house import BUDGET_BYTES, House, plan, task, until

from magnitude.errors import BudgetExceeded, DeadlineExceeded, EngineNotReady, ModelError, Overloaded
from magnitude.schedule.inference import Deadline
from magnitude.schedule.plan import ModelPlan
from magnitude.supervise.lifecycle import Phase


def test_requests_for_models_that_do_not_fit_together_are_all_answered() -> None:
    async def scenario(house: House) -> None:
        async def hurry() -> None:
            while True:  # whoever must have stayed for seconds has, within a moment
                house.skipped_s += 1.0
                house.switch.memory_changed(BUDGET_BYTES)
                await asyncio.sleep(0.02)

        hurrying = asyncio.create_task(hurry())
        models = ["a", "b", "chat"] * 4
        answers = await asyncio.gather(*(house.read(model, n) for n, model in enumerate(models)))
        hurrying.cancel()
        assert answers == [[n, n] for n in range(len(models))]
        assert {"a", "b"} & set(house.left), "both were never in memory at once"
        assert "chat" in house.loaded()
        assert (house.dispatcher.running, house.dispatcher.waiting) == (0, 0)

    House(plan("a"), plan("b"), max_queue=16).play(scenario)


def test_embeddings_wait_for_their_model_and_do_not_hold_up_those_of_another() -> None:
    async def scenario(house: House) -> None:
        await house.read("a")  # in memory, and used just now: the embedders wait for its time to be over
        waiting = [
            asyncio.create_task(house.dispatcher.embed("e1", [[1]], [], request_key="r", client="c"))
            for _ in range(3)
        ]
        await until(lambda: house.dispatcher.waiting == 3)
        assert house.state("e1") == "absent"
        house.skipped_s += 100.0
        house.switch.memory_changed(BUDGET_BYTES)
        results = await asyncio.gather(*waiting)
        assert all(len(result.rows) == 1 for result in results)
        assert all(result.queue_s > 0 for result in results)
        assert house.loaded() == ["chat", "e1"]

    House(plan("a"), plan("e1")).play(scenario)


def test_a_plain_tensor_run_waits_for_its_model() -> None:
    async def scenario(house: House) -> None:
        run = asyncio.create_task(house.dispatcher.infer("e1", [], [], request_key="r"))
        await until(lambda: house.state("e1") == "loaded" and house.dispatcher.running == 1)
        run.cancel()

    House(plan("e1")).play(scenario)


def test_an_unused_model_leaves_after_its_time_with_its_kv_and_comes_back_when_it_is_asked_for() -> None:
    async def scenario(house: House) -> None:
        long = plan_of(house, "a")
        assert await house.read("a", 5, limit=20) == [5] * 20
        assert house.loaded() == ["a", "chat"]
        house.skipped_s += 901.0
        house.switch.memory_changed(BUDGET_BYTES)
        await until(lambda: house.state("a") == "absent")
        assert house.left == ["a"]
        assert long.kv is not None
        assert long.table is not None
        assert (long.kv.resident_bytes(), long.table.figures().idle_slots) == (0, 0)
        assert house.dispatcher.health().ready, "nobody wants it, so nothing is wrong"
        assert await house.read("a", 6) == [6, 6]
        assert house.state("chat") == "loaded"

    House(plan("a")).play(scenario)


def plan_of(house: House, name: str) -> ModelPlan:
    return next(each for each in house.plans if each.description.name == name)


def test_what_runs_keeps_its_model_and_others_wait() -> None:
    async def scenario(house: House) -> None:
        running = await house.dispatcher.generate(task("a", 5, limit=100_000))
        await running.next()
        waiting = asyncio.create_task(house.read("b"))
        await until(lambda: house.dispatcher.waiting == 1)
        house.skipped_s += 1000.0
        house.switch.memory_changed(BUDGET_BYTES)
        late = asyncio.create_task(house.read("a", 7))  # its model is to leave: it waits for the next turn
        await asyncio.sleep(0.05)
        assert (house.state("a"), house.state("b")) == ("loaded", "absent")
        assert not late.done()
        running.cancel("test")
        assert await waiting == [5, 5]
        house.skipped_s += 1000.0
        house.switch.memory_changed(BUDGET_BYTES)
        assert await late == [7, 7]

    House(plan("a"), plan("b")).play(scenario)


def test_a_request_that_waits_for_a_load_can_be_cancelled_misses_deadlines_and_counts_against_the_queue() -> None:
    async def scenario(house: House) -> None:
        first = await house.dispatcher.generate(task("slow", 5))
        with pytest.raises(DeadlineExceeded):
            await house.read("slow", deadline=Deadline(at_s=asyncio.get_running_loop().time() + 0.05))
        second = await house.dispatcher.generate(task("slow", 5))
        with pytest.raises(Overloaded):
            await house.dispatcher.generate(task("slow", 5))
        with pytest.raises(DeadlineExceeded):
            deadline = Deadline(at_s=asyncio.get_running_loop().time() + 0.05)
            await house.dispatcher.embed("e1", [[1]], [], request_key="r", deadline=deadline)
        assert await house.read("chat") == [5, 5], "what is loaded starts at once"
        first.cancel("client_gone")
        second.cancel("client_gone")
        assert (await first.next()).reason == "cancelled"
        assert house.dispatcher.waiting == 0

    House(plan("slow"), plan("e1"), max_queue=2).play(scenario)


def test_a_model_that_cannot_be_loaded_fails_its_requests_with_the_reason_and_is_told_in_the_health() -> None:
    async def scenario(house: House) -> None:
        with pytest.raises(ModelError, match="torn cannot be loaded"):
            await house.read("torn")
        with pytest.raises(EngineNotReady, match="torn cannot be loaded"):
            await house.read("torn")
        health = house.dispatcher.health()
        assert health.ready, "the models of the start serve"
        assert any("torn" in reason for reason in health.reasons)

    House(plan("torn")).play(scenario)


def test_a_model_that_does_not_get_the_graph_that_is_wished_for_serves_and_is_told_in_the_health() -> None:
    async def scenario(house: House) -> None:
        plan_of(house, "a").graph_refused = "there are no kernels"
        assert await house.read("a", 5) == [5, 5]
        health = house.dispatcher.health()
        assert health.ready
        assert "a is not loaded by its kernel plan: there are no kernels" in health.reasons

    House(plan("a")).play(scenario)


def test_a_model_without_a_plan_is_refused_with_the_sums() -> None:
    async def scenario(house: House) -> None:
        with pytest.raises(BudgetExceeded, match="needs 9000 MB") as raised:
            await house.read("huge")
        assert "What would fit" in raised.value.hint

    House().play(scenario)


def test_when_no_engine_will_come_what_waits_for_a_model_is_told() -> None:
    async def scenario(house: House) -> None:
        embedding = asyncio.create_task(house.dispatcher.embed("e1", [[1]], [], request_key="r"))
        generation = await house.dispatcher.generate(task("slow", 5))
        await until(lambda: house.dispatcher.waiting == 2)
        house.dispatcher.refuse_all(EngineNotReady("the service is being stopped"))
        for waiting in (embedding, generation.next()):
            with pytest.raises(EngineNotReady, match="being stopped"):
                await waiting
        assert house.dispatcher.waiting == 0

    House(plan("slow"), plan("e1")).play(scenario)


def test_models_on_demand_come_back_with_another_engine_when_they_are_wanted() -> None:
    async def scenario(house: House) -> None:
        assert await house.read("a", 5, limit=20) == [5] * 20
        pid = house.supervisor.pid
        assert pid is not None
        os.kill(pid, 9)
        await until(lambda: house.supervisor.pid not in (None, pid))
        await until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        assert house.loaded() == ["chat"]
        assert await house.read("a", 6) == [6, 6]

    House(plan("a")).play(scenario)
