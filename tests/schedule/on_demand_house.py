"""The dispatcher, the switch and the loader as the service wires them, over a process that pretends to compute."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from sample_plans import decoder_plan, encoder_plan

from magnitude.engine.protocol import SamplerSettings, ToService
from magnitude.errors import BudgetExceeded, EngineNotReady
from magnitude.feedback.records import Feedback
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.inference import Deadline, GenerationTask
from magnitude.schedule.loading import ModelLoader
from magnitude.schedule.model_switch import ModelSwitch
from magnitude.schedule.plan import ModelPlan, Stay
from magnitude.schedule.residency import ModelNeed, Residency
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.lifecycle import EngineLifecycle, Phase
from magnitude.supervise.loss import EngineLoss
from magnitude.supervise.supervisor import EngineSupervisor

FAKE_ENGINE = Path(__file__).parents[1] / "supervise" / "fake_engine.py"
# Two models of this size fit into the memory of these tests, three do not.
WEIGHT_BYTES = 40
BUDGET_BYTES = 100


def plan(name: str, stay: Stay = "on_demand", *, variant_of: str = "") -> ModelPlan:
    if name.startswith("e"):
        return encoder_plan(name, stay=stay, weight_bytes=WEIGHT_BYTES, variant_of=variant_of)
    return decoder_plan(name, stay=stay, head_dim=4, weight_bytes=WEIGHT_BYTES, variant_of=variant_of)


class House:
    """The parts wired together as the service does it. The chat model is pinned; the clock of the switch can jump."""

    def __init__(self, *plans: ModelPlan, max_queue: int = 8, keep_alive_s: float = 900.0) -> None:
        self.plans = [plan("chat", "pinned"), *plans]
        self.skipped_s = 0.0
        self.left: list[str] = []
        self.supervisor = EngineSupervisor(
            EngineLifecycle(load_deadline_s=30, step_deadline_s=60),
            load=lambda link: self.loader.load_all(link, only=["chat"]),
            on_message=self.on_message,
            on_up=self.on_up,
            on_down=self.on_down,
            on_failed=lambda reason: self.dispatcher.refuse_all(EngineNotReady(reason)),
            spawn=self.spawn,
        )
        self.dispatcher = Dispatcher(
            self.plans,
            aliases={},
            max_queue=max_queue,
            feedback=Feedback(),
            engine=self.supervisor,
            left_out={"huge": BudgetExceeded("huge needs 9000 MB", hint="What would fit: less")},
        )
        self.loader = ModelLoader(self.dispatcher)
        needs = [
            ModelNeed(name=each.description.name, weight_bytes=WEIGHT_BYTES, pinned=each.stay == "pinned")
            for each in self.plans
        ]
        self.switch = ModelSwitch(
            Residency(needs, budget_bytes=BUDGET_BYTES, keep_alive_s=keep_alive_s),
            self.loader,
            self.plans,
            changed=self.dispatcher.models_changed,
            refuse=self.dispatcher.refuse,
            leaving=self.leaving,
            clock=lambda: asyncio.get_running_loop().time() + self.skipped_s,
        )
        self.dispatcher.use(self.switch)

    def on_message(self, message: ToService) -> None:
        if not self.loader.on_message(message):
            self.dispatcher.on_message(message)

    def on_up(self, link) -> None:
        self.dispatcher.engine_up(link)
        self.switch.engine_up(link, ["chat"])

    def on_down(self, loss: EngineLoss) -> None:
        self.switch.engine_down()
        self.dispatcher.engine_down(loss)

    async def leaving(self, model: str) -> None:
        self.left.append(model)
        await self.dispatcher.conversations.leave(model)

    async def spawn(self, on_exit: OnExit) -> EngineProcess:
        return await EngineProcess.spawn(on_exit, command=(sys.executable, str(FAKE_ENGINE)))

    def play(self, scenario: Callable[[House], Awaitable[None]]) -> None:
        async def run() -> None:
            watch = asyncio.create_task(self.supervisor.run())
            try:
                async with asyncio.timeout(60):
                    await until(lambda: self.supervisor.lifecycle.phase is Phase.UP)
                    await scenario(self)
            finally:
                watch.cancel()
                await self.supervisor.stop()
                await self.switch.close()
                await self.dispatcher.close()

        asyncio.run(run())

    async def read(self, model: str, word: int = 5, *, limit: int = 2, deadline: Deadline | None = None) -> list[int]:
        generation = await self.dispatcher.generate(task(model, word, limit=limit, deadline=deadline))
        ids: list[int] = []
        while (emission := await generation.next()).reason is None:
            ids += emission.ids
        return ids

    def loaded(self) -> list[str]:
        return sorted(each.description.name for each in self.plans if self.state(each.description.name) == "loaded")

    def state(self, model: str) -> str:
        return next(state.residency for state in self.dispatcher.state().models if state.name == model)


def task(model: str, word: int, *, limit: int = 2, deadline: Deadline | None = None) -> GenerationTask:
    return GenerationTask(
        request_key="r",
        model=model,
        prompt=[1, word],
        max_new_tokens=limit,
        sampler=SamplerSettings(),
        deadline=deadline,
    )


async def until(fact: Callable[[], bool]) -> None:
    while not fact():
        await asyncio.sleep(0.01)
