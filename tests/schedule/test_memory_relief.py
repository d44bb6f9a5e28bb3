"""What is done on requests, conversations and models when memory is short."""

from __future__ import annotations

import asyncio
import mmap
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from sample_plans import decoder_plan, token_bytes
from scripted_engine import ScriptedEngine

from magnitude.config.kv import KvSettings
from magnitude.engine.client import EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import (
    CancelRequest,
    Done,
    Finished,
    Generate,
    Loaded,
    LoadModel,
    SamplerSettings,
    ToService,
    Trim,
    UnloadModel,
)
from magnitude.engine.slot_header import SlotState
from magnitude.errors import EngineNotReady, MemoryPressure
from magnitude.feedback.records import Feedback
from magnitude.models.ledger import ENGINE_BYTES
from magnitude.policy.fitting import account_bytes
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.inference import GenerationTask
from magnitude.schedule.loading import ModelLoader
from magnitude.schedule.memory_relief import MemoryRelief
from magnitude.schedule.model_switch import ModelSwitch, need_of
from magnitude.schedule.plan import ModelPlan, Stay
from magnitude.schedule.planning import residency_of
from magnitude.schedule.slot_files import SlotFiles
from magnitude.schedule.slot_terms import Wanted
from magnitude.supervise.lifecycle import EngineLifecycle
from magnitude.supervise.supervisor import EngineSupervisor

TOKEN_BYTES = token_bytes(decoder_plan(head_dim=64))
FREE_BYTES = 1_000_000_000


async def never_spawned(*_: object, **__: object) -> Any:
    raise OSError("no engine process is started here")


def plan(name: str, stay: Stay = "pinned", *, slots: int = 8) -> ModelPlan:
    return decoder_plan(
        name,
        stay=stay,
        head_dim=64,
        slots=slots,
        context=256,
        weight_bytes=1_000_000,
        max_batch=2,
        kv_budget_bytes=slots * 256 * TOKEN_BYTES,
    )


class House:
    """Dispatcher, switch and relief over an engine that loads and cancels at once and never computes."""

    def __init__(self, *plans: ModelPlan, files: SlotFiles | None = None) -> None:
        self.plans = {each.description.name: each for each in plans}
        self.engine = ScriptedEngine(self.answer)
        self.supervisor = EngineSupervisor(
            EngineLifecycle(load_deadline_s=1, step_deadline_s=1),
            load=lambda link: self.loader.load_all(link),
            on_message=lambda message: None,
            on_up=lambda link: None,
            on_down=lambda loss: None,
            on_failed=lambda reason: None,
            spawn=never_spawned,
        )
        self.dispatcher = Dispatcher(
            plans,
            aliases={},
            max_queue=8,
            feedback=Feedback(),
            engine=self.supervisor,
            kv=KvSettings(saved_min_tokens=16),
            files=files,
        )
        self.loader = ModelLoader(self.dispatcher)
        self.engine.deliver = self.deliver
        self.switch = ModelSwitch(
            residency_of(list(plans), free_bytes=FREE_BYTES, keep_alive_s=900),
            self.loader,
            plans,
            changed=self.dispatcher.models_changed,
            refuse=self.dispatcher.refuse,
            leaving=self.dispatcher.conversations.leave,
        )
        self.dispatcher.use(self.switch)
        self.said: list[str] = []
        self.relief = MemoryRelief(
            self.dispatcher,
            self.switch,
            free_bytes=FREE_BYTES,
            draft_bytes=0,
            drop_caches=lambda: self.said.append("caches"),
            engine=self.supervisor,
            restart=lambda reason: self.said.append(f"restart {reason}"),
        )

        self.relief.long_prompts(64)

    @staticmethod
    def answer(message: Message) -> ToService | None:
        match message:
            case LoadModel():
                return Loaded(
                    request_id=message.request_id, model=message.model.name, load_s=0, inputs=(), outputs=()
                )
            case UnloadModel():
                return Done(request_id=message.request_id)
            case CancelRequest():
                return Finished(
                    request_id=message.target,
                    reason="cancelled",
                    prompt_tokens=10,
                    new_tokens=0,
                    wait_s=0,
                    prefill_s=0,
                    decode_s=0,
                )
            case _:
                return None

    def deliver(self, message: ToService) -> None:
        def told() -> None:
            if not self.loader.on_message(message):
                self.dispatcher.on_message(message)

        asyncio.get_running_loop().call_soon(told)

    def sent(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.engine.sent if isinstance(message, kind)]

    def play(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            link = cast(EngineLink, self.engine)
            self.dispatcher.engine_up(link)
            self.switch.engine_up(link, [name for name, each in self.plans.items() if each.stay != "on_demand"])
            try:
                async with asyncio.timeout(30):
                    await scenario()
            finally:
                await self.relief.close()
                await self.switch.close()
                await self.dispatcher.close()

        asyncio.run(run())

    async def settle(self) -> None:
        await self.relief.close()
        for _ in range(200):
            await asyncio.sleep(0.005)
            if all(each.table is None or not each.table.figures().cleaning_slots for each in self.plans.values()):
                return


def task(tokens: int, model: str = "m") -> GenerationTask:
    return GenerationTask(
        request_key="r", model=model, prompt=[1] * tokens, max_new_tokens=4, sampler=SamplerSettings()
    )


def conversation(of: ModelPlan, request_id: int, ids: list[int]) -> None:
    """An idle conversation with `ids`, as a finished request leaves it."""
    assert of.table is not None and of.kv is not None
    scope = of.scope("kitchen", "")
    placement = of.table.place(Wanted(request_id=request_id, scope=scope, ids=ids, max_new_tokens=1, keep=True), 0.0)
    assert placement is not None
    with mmap.mmap(of.kv.fd, of.kv.layout.total_bytes) as memory:
        state: Any = SlotState(memory, of.kv.layout.header_offset(placement.slot), scope.model_hash, scope.layout_id)
        state.begin(ids)
        del state
    of.table.finished(request_id, ids, 0.0)


def test_long_prompts_are_refused_with_a_time_to_come_again_and_short_ones_are_served() -> None:
    house = House(plan("m"))

    async def scenario() -> None:
        house.relief.refuse_long(True)
        with pytest.raises(MemoryPressure) as refused:
            await house.dispatcher.generate(task(65))
        assert refused.value.code == "memory_pressure"
        assert refused.value.retry_after_s > 0
        assert "65" in refused.value.message and "64" in refused.value.message
        await house.dispatcher.generate(task(64))
        house.relief.refuse_long(False)
        await house.dispatcher.generate(task(200))

    house.play(scenario)


def test_a_long_prompt_that_is_mostly_known_is_not_long() -> None:
    house = House(plan("m"))

    async def scenario() -> None:
        conversation(house.plans["m"], 1000, [1] * 150)
        house.relief.refuse_long(True)
        known = GenerationTask(
            request_key="r",
            model="m",
            prompt=[1] * 150 + [2] * 20,
            max_new_tokens=4,
            sampler=SamplerSettings(),
            client="kitchen",
        )
        await house.dispatcher.generate(known)

    house.play(scenario)


def test_shedding_leaves_the_generation_that_has_run_longest_and_tells_the_others_why() -> None:
    house = House(plan("m"))

    async def scenario() -> None:
        generations = [await house.dispatcher.generate(task(10)) for _ in range(4)]
        assert (house.dispatcher.running, house.dispatcher.waiting) == (2, 2)
        house.relief.shed("the kernel throttles")
        for generation in generations[1:]:
            with pytest.raises(MemoryPressure, match="the kernel throttles"):
                await generation.next()
        while house.dispatcher.running > 1:
            await asyncio.sleep(0.005)
        assert house.dispatcher.waiting == 0
        (first, _) = house.sent(Generate)
        assert first.request_id == generations[0].request_id  # type: ignore[attr-defined]
        assert not generations[0].over

    house.play(scenario)


def test_trimming_reaches_engine_and_service() -> None:
    house = House(plan("m"))

    async def scenario() -> None:
        house.relief.trim()
        await house.settle()
        assert len(house.sent(Trim)) == 1
        assert house.said == ["caches"]

    house.play(scenario)


def test_shrinking_saves_idle_conversations_and_frees_their_memory(tmp_path: Path) -> None:
    files = SlotFiles(tmp_path / "kv", reserve_bytes=0)
    files.scan()
    house = House(plan("m"), files=files)
    table = house.plans["m"].table
    assert table is not None

    async def scenario() -> None:
        for number in range(4):
            conversation(house.plans["m"], 1000 + number, [number] * 200)
        assert table.figures().idle_slots == 4
        house.relief.shrink_kv(0.5)
        await house.settle()
        assert table.figures().idle_slots == 0
        assert table.figures().saved_copies == 4

    house.play(scenario)


def test_shrinking_evicts_what_cannot_be_saved_until_the_rest_fits_and_never_below_one_full_conversation() -> None:
    house = House(plan("m"))
    table = house.plans["m"].table
    assert table is not None

    async def scenario() -> None:
        for number in range(8):
            conversation(house.plans["m"], 1000 + number, [number] * 255)
        planned_bytes = table.figures().budget_bytes
        house.relief.shrink_kv(0.5)
        await house.settle()
        assert table.figures().idle_slots == 4
        house.relief.shrink_kv(0.01)
        await house.settle()
        assert table.figures().idle_slots == 1
        assert table.figures().budget_bytes == 256 * TOKEN_BYTES
        house.relief.shrink_kv(1.0)
        await house.settle()
        assert table.figures().budget_bytes == planned_bytes

    house.play(scenario)


def test_a_larger_share_gives_room_back_and_takes_nothing_more() -> None:
    house = House(plan("m"))
    table = house.plans["m"].table
    assert table is not None

    async def scenario() -> None:
        for number in range(8):
            conversation(house.plans["m"], 1000 + number, [number] * 255)
        house.relief.shrink_kv(0.5)
        await house.settle()
        half_bytes = table.figures().budget_bytes
        house.relief.shrink_kv(0.25)
        await house.settle()
        assert (table.figures().idle_slots, table.figures().budget_bytes) == (2, half_bytes // 2)
        house.relief.shrink_kv(0.5)
        await house.settle()
        assert (table.figures().idle_slots, table.figures().budget_bytes) == (2, half_bytes)

    house.play(scenario)


class SlowCard:
    """Files on a card that does not write before it is told to."""

    def __init__(self, folder: Path) -> None:
        self.asked, self.may_go_on = threading.Event(), threading.Event()
        self.files = SlotFiles(folder, reserve_bytes=0, sync=self._sync)
        self.files.scan()

    def _sync(self, fd: int) -> None:
        self.asked.set()
        self.may_go_on.wait(30)


def test_a_shrink_that_saves_for_long_does_not_undo_what_was_decided_after_it(tmp_path: Path) -> None:
    card = SlowCard(tmp_path / "kv")
    house = House(plan("m"), files=card.files)
    table = house.plans["m"].table
    assert table is not None

    async def scenario() -> None:
        planned_bytes = table.figures().budget_bytes
        for number in range(4):
            conversation(house.plans["m"], 1000 + number, [number] * 200)
        house.relief.shrink_kv(0.5)
        await asyncio.to_thread(card.asked.wait, 30)
        house.relief.shrink_kv(1.0)
        await asyncio.sleep(0)
        card.may_go_on.set()
        await house.settle()
        assert table.figures().budget_bytes == planned_bytes

    house.play(scenario)


def test_a_stop_waits_for_one_slow_save_and_not_for_all_that_a_shrink_would_save(tmp_path: Path) -> None:
    card = SlowCard(tmp_path / "kv")
    house = House(plan("m"), files=card.files)
    table = house.plans["m"].table
    assert table is not None

    async def scenario() -> None:
        for number in range(4):
            conversation(house.plans["m"], 1000 + number, [number] * 200)
        house.relief.shrink_kv(0.5)
        await asyncio.to_thread(card.asked.wait, 30)
        house.dispatcher.conversations.stop_saving()
        card.may_go_on.set()
        await house.relief.close()
        assert table.figures().saved_copies == 1

    house.play(scenario)  # which closes it
    assert table.figures().saved_copies == 4


def test_idle_models_leave_and_pinned_and_busy_ones_stay() -> None:
    house = House(plan("m"), plan("idle", "at_start"), plan("busy", "at_start"))

    async def scenario() -> None:
        await house.dispatcher.generate(task(10, "busy"))
        house.relief.unload_idle()
        while house.switch.state("idle") != "absent":
            await asyncio.sleep(0.005)
        assert (house.switch.state("m"), house.switch.state("busy")) == ("loaded", "loaded")
        # It comes back when it is asked for.
        await house.dispatcher.generate(task(10, "idle"))
        while house.switch.state("idle") != "loaded":
            await asyncio.sleep(0.005)

    house.play(scenario)


def test_the_engines_plan_is_that_of_the_models_in_it() -> None:
    house = House(plan("m"), plan("later", "on_demand"))

    async def scenario() -> None:
        need = need_of(house.plans["m"])
        assert house.relief.engine_bytes() == ENGINE_BYTES + need.weight_bytes + need.activation_bytes
        await house.dispatcher.generate(task(10, "later"))
        while house.switch.state("later") != "loaded":
            await asyncio.sleep(0.005)
        assert house.relief.engine_bytes() == ENGINE_BYTES + 2 * (need.weight_bytes + need.activation_bytes)

    house.play(scenario)


def test_a_model_that_has_no_room_only_now_is_refused_for_now_and_served_when_there_is() -> None:
    house = House(plan("m"), plan("later", "on_demand"))

    async def scenario() -> None:
        house.relief.models_may_take(1)
        refused = await house.dispatcher.generate(task(10, "later"))
        with pytest.raises(EngineNotReady) as error:
            await refused.next()
        assert error.value.retry_after_s > 0  # type: ignore[union-attr]
        house.relief.models_may_take(10 * FREE_BYTES)
        await house.dispatcher.generate(task(10, "later"))
        while house.switch.state("later") != "loaded":
            await asyncio.sleep(0.005)

    house.play(scenario)


def test_further_sessions_are_given_back_with_the_caches_and_count_as_planned_memory() -> None:
    house = House(plan("m"))

    async def scenario() -> None:
        before = house.relief.engine_bytes()
        house.relief.session_bytes = lambda: 7
        house.relief.drop_sessions = lambda: house.said.append("sessions")
        assert house.relief.engine_bytes() == before + 7
        house.relief.trim()
        await house.settle()
        assert sorted(house.said) == ["caches", "sessions"]

    house.play(scenario)


def test_models_are_taken_for_what_is_in_memory_and_the_largest_that_may_come() -> None:
    plans = [plan("m"), plan("small", "on_demand", slots=2), plan("large", "on_demand", slots=8)]
    house = House(*plans)

    async def scenario() -> None:
        needs = {each.description.name: need_of(each).total_bytes for each in plans}
        assert house.relief.models_bytes() == needs["m"] + needs["large"]
        assert house.relief.account_bytes == account_bytes(FREE_BYTES)

    house.play(scenario)


def test_models_never_get_more_than_the_plans_were_made_for() -> None:
    house = House(plan("m"))
    told: list[int] = []
    house.switch.memory_changed = told.append  # type: ignore[method-assign]
    house.relief.models_may_take(10 * FREE_BYTES)
    house.relief.models_may_take(FREE_BYTES // 2)
    house.relief.models_may_take(2 * FREE_BYTES)
    assert told == [account_bytes(FREE_BYTES // 2), account_bytes(FREE_BYTES)]
    house.dispatcher.models_served.by_name["m"].kv.close()  # type: ignore[union-attr]
