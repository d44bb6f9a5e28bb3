"""The dispatcher, the supervisor and the loader together, over a real process that only pretends to compute."""

import asyncio
import gc
import os
import time
from pathlib import Path

import msgspec
import pytest
from dispatcher_house import House, plan, read, task
from sample_plans import encoder_plan

from magnitude.engine.protocol import SamplerSettings
from magnitude.errors import EngineError, EngineNotReady, ModelNotFound, Overloaded, RequestError
from magnitude.feedback.records import TaskRecord
from magnitude.policy.strategy import Strategy
from magnitude.schedule.inference import Deadline
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.planned_strategy import planned_strategy
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.lifecycle import Begin, Exited, Phase, Tick


def test_a_request_made_while_the_engine_starts_is_answered_when_it_is_up() -> None:
    async def scenario(house: House) -> None:
        assert await read(house, [1, 5, 6]) == [5, 6, 5, 6]
        assert await read(house, [1, 5], model="gpt") == [5] * 4
        assert await read(house, [1, 7], model="") == [7] * 4

    House([plan("m")]).play(scenario)


def test_more_requests_than_slots_take_turns_and_all_end() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        answers = await asyncio.gather(*(read(house, [1, n]) for n in range(6)))
        assert answers == [[n] * 4 for n in range(6)]
        await house.until(lambda: house.dispatcher.running == 0)

    House([plan("m")]).play(scenario)


def test_what_the_engine_is_at_is_told_as_a_request_begins_writes_and_ends() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        told: list[str] = []
        work = house.dispatcher.work
        work.on_change = lambda: told.append(work.present().phase)
        generation = await house.dispatcher.generate(task([1, 2], limit=1000))
        assert told == ["prefill"]
        await generation.next()
        assert told == ["prefill", "decode"]
        generation.cancel("test")
        await house.until(lambda: house.dispatcher.running == 0)
        assert told == ["prefill", "decode", "idle"]
        spent = work.times()
        assert spent.prefill_s > 0 and spent.decode_s > 0

    House([plan("m")]).play(scenario)


def test_fewer_generations_at_once_are_let_in_while_a_limit_holds() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        house.dispatcher.limit_generations(1)
        running = [await house.dispatcher.generate(task([1, 2], limit=1000)) for _ in range(2)]
        assert (house.dispatcher.running, house.dispatcher.waiting) == (1, 1)
        house.dispatcher.limit_generations(None)
        assert (house.dispatcher.running, house.dispatcher.waiting) == (2, 0)
        for generation in running:
            generation.cancel("test")

    House([plan("m")]).play(scenario)


def test_a_request_runs_by_the_strategy_that_is_chosen_for_it() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        asked: list[tuple[str, int, int]] = []
        records: list[TaskRecord] = []
        chosen = msgspec.structs.replace(planned_strategy(house.dispatcher.plan("m")), prefill_chunk=3, max_draft=5)

        def strategy_for(plan: ModelPlan, tokens: int, cached_tokens: int) -> Strategy:
            asked.append((plan.description.name, tokens, cached_tokens))
            return chosen

        house.dispatcher.strategy_for = strategy_for
        house.dispatcher.on_task = records.append
        generation = await house.dispatcher.generate(task([1, 2, 3]))
        message = generation.first_message()
        assert (message.prefill_chunk, message.max_draft) == (3, 0)  # drafts only where they are exact
        while (await generation.next()).reason is None:
            pass
        assert asked == [("m", 3, 0)]
        assert [record.strategy for record in records] == [chosen.strategy_id]

    House([plan("m")]).play(scenario)


def test_a_model_that_computes_by_itself_is_not_told_of_as_the_variant_that_was_named() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        records: list[TaskRecord] = []
        plans = [house.dispatcher.plan(name) for name in ("m", "e")]
        house.dispatcher.strategy_for = lambda plan, tokens, cached: msgspec.structs.replace(
            planned_strategy(plan), prefill_chunk=3, variant=f"{plan.description.name}-small"
        )
        house.dispatcher.on_task = records.append
        await read(house, [1, 2])
        await house.dispatcher.embed("e", [[1, 2]], [], request_key="r")
        own = [msgspec.structs.replace(planned_strategy(each), prefill_chunk=3) for each in plans]
        assert [record.strategy for record in records] == [each.strategy_id for each in own]

    House([plan("m"), encoder_plan("e")]).play(scenario)


def test_where_nobody_chooses_tasks_are_run_as_planned_and_say_so() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        records: list[TaskRecord] = []
        house.dispatcher.on_task = records.append
        await read(house, [1, 2])
        await house.dispatcher.embed("e", [[1, 2]], [], request_key="r")
        plans = [house.dispatcher.plan(name) for name in ("m", "e")]
        assert [record.strategy for record in records] == [planned_strategy(each).strategy_id for each in plans]

    House([plan("m"), encoder_plan("e")]).play(scenario)


def test_compute_slots_can_be_set_while_it_runs_within_what_was_planned() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        plan = house.dispatcher.plan("m")
        plan.chosen_slots = 1
        house.dispatcher.slots_changed("m")
        running = [await house.dispatcher.generate(task([1, 2], limit=1000)) for _ in range(2)]
        assert (house.dispatcher.running, house.dispatcher.waiting) == (1, 1)
        plan.chosen_slots = 9
        house.dispatcher.slots_changed("m")
        assert plan.compute_slots == 2
        assert (house.dispatcher.running, house.dispatcher.waiting) == (2, 0)
        for generation in running:
            generation.cancel("test")

    House([plan("m")]).play(scenario)


def test_a_full_queue_says_when_to_come_back() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        running = [await house.dispatcher.generate(task([1, 2], limit=1000)) for _ in range(3)]
        with pytest.raises(Overloaded) as raised:
            await house.dispatcher.generate(task([1, 2]))
        assert raised.value.retry_after_s >= 1
        for generation in running:
            generation.cancel("test")
        assert await read(house, [1, 9]) == [9] * 4

    House([plan("m")], max_queue=1).play(scenario)


def test_a_cancelled_generation_ends_at_once_for_its_reader_and_frees_its_slot_once() -> None:
    async def scenario(house: House) -> None:
        generation = await house.dispatcher.generate(task([1, 2], limit=100_000))
        await generation.next()
        generation.cancel("client_gone")
        generation.cancel("client_gone")
        while (emission := await generation.next()).reason is None:
            pass
        assert emission.reason == "cancelled"
        assert (await generation.next()).reason == "cancelled"
        await house.until(lambda: house.dispatcher.running == 0)
        figures = house.feedback.figures()["generate m"]
        assert (figures.cancelled, figures.failed, figures.count) == (1, 0, 1)

    House([plan("m", slots=1)]).play(scenario)


def test_a_generation_that_has_said_enough_counts_as_done_with_the_engine_s_times() -> None:
    async def scenario(house: House) -> None:
        generation = await house.dispatcher.generate(task([1, 2], limit=100_000))
        await generation.next()
        generation.complete()
        generation.complete()
        while (emission := await generation.next()).reason is None:
            pass
        assert emission.decode_s > 0
        generation.cancel("request over")
        await house.until(lambda: house.dispatcher.running == 0)
        figures = house.feedback.figures()["generate m"]
        assert (figures.cancelled, figures.failed, figures.count) == (0, 0, 1)
        assert figures.run_p50_s > 0

    House([plan("m", slots=1)]).play(scenario)


def soft(after_s: float) -> Deadline:
    return Deadline(at_s=time.monotonic() + after_s, hard=False, may_cut=("tokens",))


def test_an_answer_that_ends_at_its_soft_deadline_tells_the_engine_s_times() -> None:
    async def scenario(house: House) -> None:
        await read(house, [1, 5])  # until the engine is up
        wanted = msgspec.structs.replace(task([1, 2], limit=100_000), deadline=soft(0.3))
        generation = await house.dispatcher.generate(wanted)
        while (emission := await generation.next()).reason is None:
            pass
        assert (emission.reason, emission.cut) == ("length", "deadline")
        assert emission.prefill_s > 0
        await house.until(lambda: house.dispatcher.running == 0)
        figures = house.feedback.figures()["generate m"]
        assert (figures.cancelled, figures.failed, figures.count) == (0, 0, 2)

    House([plan("m", slots=1)]).play(scenario)


def test_an_engine_that_dies_after_a_soft_deadline_takes_nothing_from_the_answer() -> None:
    async def scenario(house: House) -> None:
        await read(house, [1, 5])
        wanted = msgspec.structs.replace(task([3, 5], limit=100_000), deadline=soft(0.3))  # the engine falls silent
        generation = await house.dispatcher.generate(wanted)
        while (emission := await generation.next()).reason is None:
            pass
        assert (emission.reason, emission.cut) == ("length", "deadline")

    House([plan("m", slots=1)]).play(scenario)


def test_embeddings_run_beside_generations() -> None:
    async def scenario(house: House) -> None:
        generation = await house.dispatcher.generate(task([1, 2], limit=100_000))
        result = await house.dispatcher.embed("e", [[1], [2, 3]], [], request_key="r")
        assert (result.width, len(result.rows)) == (1, 2)
        generation.cancel("test")

    House([plan("m", slots=1), encoder_plan("e")]).play(scenario)


def test_an_embedding_whose_client_leaves_gives_its_place_back() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        waiting = asyncio.create_task(house.dispatcher.embed("e", [[1]], [], request_key="r"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await house.until(lambda: house.dispatcher.running == 0)

    House([plan("m"), encoder_plan("e")]).play(scenario)


def test_one_model_that_cannot_be_loaded_does_not_take_the_others_along() -> None:
    async def scenario(house: House) -> None:
        assert await read(house, [1, 5]) == [5] * 4
        with pytest.raises(EngineNotReady, match="torn cannot be loaded"):
            await house.dispatcher.generate(task([1], model="torn"))

    House([plan("m"), plan("torn")]).play(scenario)


def test_when_nothing_can_be_loaded_requests_are_refused_and_no_restart_loop_runs() -> None:
    async def scenario(house: House) -> None:
        with pytest.raises(EngineNotReady, match="torn cannot be loaded"):
            await read(house, [1], model="torn")
        assert house.supervisor.lifecycle.phase is Phase.FAILED
        with pytest.raises(EngineNotReady):
            await house.dispatcher.generate(task([1], model="torn"))
        assert house.supervisor.lifecycle.restarts == 0

    House([plan("torn")]).play(scenario)


def test_an_engine_of_another_version_is_refused_in_words() -> None:
    async def scenario(house: House) -> None:
        with pytest.raises(EngineNotReady, match="two versions are installed over each other"):
            await read(house, [1])

    House([plan("m")], environ={**os.environ, "FAKE_PROTOCOL_VERSION": "99"}).play(scenario)


def test_a_request_that_cannot_be_sent_gives_its_slot_back() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        # No number of the wire format.
        unsendable = msgspec.structs.replace(task([1, 5]), sampler=SamplerSettings(seed=1 << 80))
        generation = await house.dispatcher.generate(unsendable)
        with pytest.raises(EngineError):
            await generation.next()
        await house.until(lambda: house.dispatcher.running == 0)
        assert await read(house, [1, 5]) == [5] * 4

    House([plan("m", slots=1)]).play(scenario)


def test_nobody_waits_for_an_engine_that_does_not_stay_up() -> None:
    async def scenario(house: House) -> None:
        waiting = asyncio.create_task(read(house, [1, 5]))
        with pytest.raises(EngineNotReady, match="does not stay up") as raised:
            await waiting
        assert raised.value.hint
        with pytest.raises(EngineNotReady, match="does not stay up"):
            await house.dispatcher.generate(task([1]))
        assert house.dispatcher.waiting == 0
        assert house.supervisor.lifecycle.phase is not Phase.FAILED

    class Hopeless(House):
        async def spawn(self, on_exit: OnExit) -> EngineProcess:
            raise OSError("no memory")

    Hopeless([plan("m")]).play(scenario)


def test_rejections_leave_no_error_behind_that_nobody_read() -> None:
    complaints: list[object] = []

    async def scenario(house: House) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.UP)
        runs = [house.dispatcher.embed("e", [[1]], [], request_key="r") for _ in range(20)]
        answers = await asyncio.gather(*runs, return_exceptions=True)
        assert any(isinstance(answer, Overloaded) for answer in answers)
        del answers, runs
        gc.collect()
        await asyncio.sleep(0)

    House([plan("m"), encoder_plan("e")], max_queue=1).play(scenario)
    assert complaints == []


def test_a_stop_while_models_load_does_not_wait_for_answers_that_never_come() -> None:
    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.LOADING)

    House([plan("slow")]).play(scenario)


def test_a_stop_while_the_engine_is_spawned_leaves_no_process() -> None:
    pids: list[int] = []

    class Slow(House):
        async def spawn(self, on_exit: OnExit) -> EngineProcess:
            await asyncio.sleep(0.1)
            process = await super().spawn(on_exit)
            pids.append(process.pid)
            return process

    async def scenario(house: House) -> None:
        await house.until(lambda: house.supervisor.lifecycle.phase is Phase.STARTING)

    Slow([plan("m")]).play(scenario)
    assert len(pids) == 1
    assert not Path(f"/proc/{pids[0]}").exists()


def test_names_are_checked_and_the_hint_lists_what_there_is() -> None:
    dispatcher = House([plan("m"), encoder_plan("e")]).dispatcher
    with pytest.raises(ModelNotFound) as unknown:
        dispatcher.model("gpt-9")
    assert "m, e" in unknown.value.hint

    async def wrong_kind() -> None:
        with pytest.raises(RequestError) as raised:
            await dispatcher.generate(task([1], model="e"))
        assert raised.value.code == "model_kind_mismatch"

    asyncio.run(wrong_kind())


def test_while_the_engine_does_not_stay_up_the_refusal_says_when_to_ask_again() -> None:
    house = House([plan("m")])
    lifecycle = house.supervisor.lifecycle
    now_s = time.monotonic()
    lifecycle.apply(Begin(), now_s)
    for _ in range(6):
        lifecycle.apply(Exited("crash"), now_s)
        now_s += lifecycle.next_check_s(now_s)
        lifecycle.apply(Tick(), now_s)
    lifecycle.apply(Exited("crash"), now_s)

    async def ask() -> None:
        with pytest.raises(EngineNotReady) as raised:
            await house.dispatcher.generate(task([1]))
        assert raised.value.retry_after_s >= lifecycle.next_check_s(now_s) > 2

    asyncio.run(ask())
