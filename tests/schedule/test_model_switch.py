"""Models that come and go while requests wait, run and end."""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from sample_plans import decoder_plan
from scripted_engine import Answer, ScriptedEngine

from magnitude.engine.client import EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import Done, Failed, Loaded, LoadModel, ToService, UnloadModel
from magnitude.errors import EngineNotReady, MagnitudeError, ModelError
from magnitude.feedback.records import Feedback
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.loading import ModelLoader
from magnitude.schedule.model_switch import ModelSwitch, need_of
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.residency import STAY_LEAST_S, ModelNeed, Residency
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.lifecycle import EngineLifecycle
from magnitude.supervise.supervisor import EngineSupervisor

FAKE_ENGINE = Path(__file__).parents[1] / "supervise" / "fake_engine.py"


class NoEngine:
    lifecycle = EngineLifecycle(load_deadline_s=1, step_deadline_s=1)
    pid = None
    heartbeat = None


def plan(name: str) -> ModelPlan:
    return decoder_plan(name, head_dim=64, context=1024, weight_bytes=40, kv_budget_bytes=7)


class Switching:
    """A switch over a scripted engine, and clients whose requests start when they may."""

    def __init__(self, names: list[str], *, budget: int = 100, answer: Answer | None = None) -> None:
        self.plans = {name: plan(name) for name in names}
        self.waiting = dict.fromkeys(names, 0)
        self.running = dict.fromkeys(names, 0)
        self.refused: list[tuple[str, MagnitudeError]] = []
        self.left: list[str] = []
        self.leaving_fails = False
        self.now_s = 0.0
        self.engine = ScriptedEngine(answer or good)
        dispatcher = Dispatcher(
            list(self.plans.values()), aliases={}, max_queue=1, feedback=Feedback(), engine=NoEngine()
        )
        self.loader = ModelLoader(dispatcher)
        self.engine.deliver = self.loader.on_message
        needs = [ModelNeed(name=name, weight_bytes=40, pinned=name == "chat") for name in names]
        self.switch = ModelSwitch(
            Residency(needs, budget_bytes=budget, keep_alive_s=900.0),
            self.loader,
            self.plans.values(),
            changed=self.changed,
            refuse=self.refuse,
            leaving=self.leaving,
            later_s=0.0,
            clock=lambda: self.now_s,
        )

    def up(self) -> None:
        self.switch.engine_up(self.engine, ["chat"])  # type: ignore[arg-type]

    def request(self, model: str) -> None:
        self.waiting[model] += 1
        self.switch.wanted(model)
        self.changed()

    def end(self, model: str) -> None:
        self.running[model] -= 1
        self.switch.in_use(model, self.running[model], waiting=self.waiting[model] > 0)

    def changed(self) -> None:
        for model, count in self.waiting.items():
            if count and self.switch.may_start(model):
                self.waiting[model] = 0
                self.running[model] += count
                self.switch.in_use(model, self.running[model], waiting=False)

    async def leaving(self, model: str) -> None:
        self.left.append(model)
        if self.leaving_fails:
            raise RuntimeError("the card is gone")

    def refuse(self, model: str, error: MagnitudeError) -> None:
        self.waiting[model] = 0
        self.refused.append((model, error))

    def sent(self) -> list[tuple[str, str]]:
        return [
            ("load", message.model.name) if isinstance(message, LoadModel) else ("unload", message.model)
            for message in self.engine.sent
            if isinstance(message, LoadModel | UnloadModel)
        ]

    def play(self, scenario: Callable[["Switching"], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                async with asyncio.timeout(30):
                    await scenario(self)
            finally:
                await self.switch.close()
                for each in self.plans.values():
                    assert each.kv is not None
                    each.kv.close()

        asyncio.run(run())

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.005)


def good(message: Message) -> ToService | None:
    if isinstance(message, LoadModel):
        return Loaded(request_id=message.request_id, model=message.model.name, load_s=0.1)
    assert isinstance(message, UnloadModel)
    return Done(request_id=message.request_id)


def test_a_request_for_a_model_that_is_not_there_waits_until_it_is_loaded() -> None:
    async def scenario(house: Switching) -> None:
        house.up()
        house.request("a")
        house.request("a")
        assert house.running["a"] == 0
        await house.until(lambda: house.running["a"] == 2)
        assert house.sent() == [("load", "a")]

    Switching(["chat", "a"]).play(scenario)


def test_a_model_makes_room_when_its_requests_are_done_and_gives_its_memory_back() -> None:
    async def scenario(house: Switching) -> None:
        house.up()
        house.request("a")
        await house.until(lambda: house.running["a"] == 1)
        kv = house.plans["a"].kv
        assert kv is not None
        os.pwrite(kv.fd, b"x" * 65536, kv.layout.tensor_offset(0, "key", 1))
        house.now_s += 1000.0
        house.request("b")
        house.request("a")  # for the model that is to go: it waits for its next turn
        await asyncio.sleep(0.02)
        assert (house.sent(), house.left) == ([("load", "a")], [])
        house.end("a")
        await house.until(lambda: house.left == ["a"])
        await house.until(lambda: house.running["b"] == 1)
        assert kv.resident_bytes() == 0
        house.now_s += 1000.0
        house.end("b")
        await house.until(lambda: house.running["a"] == 1)
        assert house.sent() == [
            ("load", "a"),
            ("unload", "a"),
            ("load", "b"),
            ("unload", "b"),
            ("load", "a"),
        ]
        assert house.refused == []

    Switching(["chat", "a", "b"]).play(scenario)


def test_a_model_leaves_also_when_its_conversations_could_not_be_looked_after() -> None:
    async def scenario(house: Switching) -> None:
        house.leaving_fails = True
        house.up()
        house.request("a")
        await house.until(lambda: house.running["a"] == 1)
        house.end("a")
        house.now_s += 100.0
        house.request("b")
        await house.until(lambda: house.running["b"] == 1)
        assert house.left == ["a"]

    Switching(["chat", "a", "b"]).play(scenario)


def test_models_that_are_to_follow_keep_their_conversations_and_come_by_themselves() -> None:
    async def scenario(house: Switching) -> None:
        for name in ("a", "b"):
            kv = house.plans[name].kv
            assert kv is not None
            os.pwrite(kv.fd, b"x" * 65536, kv.layout.tensor_offset(0, "key", 1))
        house.switch.engine_up(house.engine, ["chat"], later=["a"])  # type: ignore[arg-type]
        await house.until(lambda: house.switch.state("a") == "loaded")
        assert house.left == ["b"]
        assert house.sent() == [("load", "a")]

    Switching(["chat", "a", "b"]).play(scenario)


def test_what_was_to_follow_an_engine_does_not_follow_its_loss() -> None:
    async def scenario(house: Switching) -> None:
        house.switch.engine_up(house.engine, ["chat"], later=["a"])  # type: ignore[arg-type]
        house.switch.engine_down()
        house.up()
        await asyncio.sleep(0.02)
        assert house.sent() == []

    Switching(["chat", "a"]).play(scenario)


def test_a_model_that_cannot_be_loaded_is_refused_with_its_reason_and_shown_as_failed() -> None:
    def torn(message: Message) -> ToService | None:
        assert isinstance(message, LoadModel)
        return Failed(request_id=message.request_id, code="model_file_torn", message="it is torn", permanent=True)

    async def scenario(house: Switching) -> None:
        house.up()
        house.request("a")
        await house.until(lambda: bool(house.refused))
        ((model, error),) = house.refused
        assert (model, type(error)) == ("a", ModelError)
        assert "it is torn" in str(error)
        assert house.plans["a"].failure is not None

    Switching(["chat", "a"], answer=torn).play(scenario)


def test_a_model_that_never_fits_is_refused_without_being_tried() -> None:
    async def scenario(house: Switching) -> None:
        house.up()
        house.request("a")
        ((_, error),) = house.refused
        assert "do not fit" in str(error)
        assert house.sent() == []

    Switching(["chat", "a"], budget=70).play(scenario)


def test_a_load_that_fails_for_the_moment_is_tried_again_and_the_request_waits() -> None:
    tries: list[str] = []

    def second_time(message: Message) -> ToService | None:
        assert isinstance(message, LoadModel)
        tries.append(message.model.name)
        if len(tries) == 1:
            return Failed(request_id=message.request_id, code="no_memory", message="no memory now")
        return good(message)

    async def scenario(house: Switching) -> None:
        house.up()
        house.request("a")
        await house.until(lambda: len(tries) == 1)
        await asyncio.sleep(0)
        house.now_s += 10.0
        house.switch.memory_changed(100)
        await house.until(lambda: house.running["a"] == 1)
        assert (house.refused, house.plans["a"].failure) == ([], None)

    Switching(["chat", "a"], answer=second_time).play(scenario)


def test_after_three_failures_a_request_is_told_when_to_ask_again() -> None:
    def never(message: Message) -> ToService | None:
        assert isinstance(message, LoadModel)
        return Failed(request_id=message.request_id, code="no_memory", message="no memory now")

    async def scenario(house: Switching) -> None:
        house.up()
        house.request("a")
        while not house.refused:
            await asyncio.sleep(0.005)
            house.now_s += 1.0
            house.switch.memory_changed(100)
        ((_, error),) = house.refused
        assert isinstance(error, EngineNotReady)
        assert error.retry_after_s > 0

    Switching(["chat", "a"], answer=never).play(scenario)


def test_a_request_outlives_the_engine_that_died_loading_its_model() -> None:
    def silent(message: Message) -> ToService | None:
        return None

    async def scenario(house: Switching) -> None:
        house.up()
        house.request("a")
        await asyncio.sleep(0.01)
        house.switch.engine_down()
        assert not house.switch.may_start("chat")
        house.engine = ScriptedEngine(good)
        house.engine.deliver = house.loader.on_message
        house.now_s += 10.0
        house.up()
        await house.until(lambda: house.running["a"] == 1)
        assert house.refused == []

    Switching(["chat", "a"], answer=silent).play(scenario)


def test_a_plan_needs_what_the_ledger_says() -> None:
    planned = plan("a")
    need = need_of(planned)
    assert (need.name, need.weight_bytes, need.kv_bytes, need.pinned, need.stays) == ("a", 40, 7, True, False)
    # Activations of eight tokens, logits of two rows, the tokenizer's tables of 16 tokens.
    assert need.activation_bytes == 8 * 8 * 29 * 4 + 2 * 16 * 4 + 16 * 1350
    assert planned.kv is not None
    planned.kv.close()


def test_models_change_places_in_a_real_engine_process_and_come_back_after_its_death() -> None:
    plans = {name: plan(name) for name in ("chat", "a", "b")}
    waiting: set[str] = set()
    served: list[str] = []
    links: list[EngineLink] = []

    def on_message(message: ToService) -> None:
        assert loader.on_message(message), "nothing but loading is asked of this engine"

    def on_up(link: EngineLink) -> None:
        links.append(link)
        switch.engine_up(link, ["chat"])

    def changed() -> None:
        for model in sorted(waiting):
            if switch.may_start(model):
                waiting.discard(model)
                served.append(model)
                switch.in_use(model, 0, waiting=False)

    def refuse(model: str, error: MagnitudeError) -> None:
        raise AssertionError(f"{model} is refused: {error}")

    async def leaving(model: str) -> None:
        pass

    async def spawn(on_exit: OnExit) -> EngineProcess:
        return await EngineProcess.spawn(on_exit, command=(sys.executable, str(FAKE_ENGINE)))

    supervisor = EngineSupervisor(
        EngineLifecycle(load_deadline_s=30, step_deadline_s=60),
        load=lambda link: loader.load_all(link, only=["chat"]),
        on_message=on_message,
        on_up=on_up,
        on_down=lambda reason: switch.engine_down(),
        on_failed=lambda reason: None,
        spawn=spawn,
    )
    loader = ModelLoader(
        Dispatcher(list(plans.values()), aliases={}, max_queue=1, feedback=Feedback(), engine=supervisor)
    )
    skipped_s = 0.0
    switch = ModelSwitch(
        Residency(
            [ModelNeed(name=name, weight_bytes=40, pinned=name == "chat") for name in plans],
            budget_bytes=100,
            keep_alive_s=900.0,
        ),
        loader,
        plans.values(),
        changed=changed,
        refuse=refuse,
        leaving=leaving,
        clock=lambda: time.monotonic() + skipped_s,
    )

    async def serve(model: str) -> None:
        nonlocal skipped_s
        skipped_s += STAY_LEAST_S  # so that who is there has stayed long enough
        count = len(served)
        waiting.add(model)
        switch.wanted(model)
        changed()
        while len(served) == count:
            await asyncio.sleep(0.01)

    async def run() -> None:
        watch = asyncio.create_task(supervisor.run())
        try:
            async with asyncio.timeout(60):
                for model in ("a", "b", "a"):
                    await serve(model)
                pid = supervisor.pid
                assert pid is not None
                os.kill(pid, 9)
                while switch.may_start("a"):
                    await asyncio.sleep(0.01)
                await serve("b")
                await serve("chat")
        finally:
            watch.cancel()
            await supervisor.stop()
            await switch.close()

    asyncio.run(run())
    assert served == ["a", "b", "a", "b", "chat"]
    assert len(links) == 2
    for each in plans.values():
        assert each.kv is not None
        each.kv.close()
