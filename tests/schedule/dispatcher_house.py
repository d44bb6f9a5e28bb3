"""The dispatcher, the supervisor and the loader together, over a real process that only pretends to compute."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from sample_plans import decoder_plan

from magnitude.engine.protocol import SamplerSettings, ToService
from magnitude.errors import EngineNotReady
from magnitude.feedback.records import Feedback
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.inference import GenerationTask
from magnitude.schedule.loading import ModelLoader
from magnitude.schedule.plan import ModelPlan
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.lifecycle import EngineLifecycle
from magnitude.supervise.loss import EngineLoss
from magnitude.supervise.supervisor import EngineSupervisor

FAKE_ENGINE = Path(__file__).parents[1] / "supervise" / "fake_engine.py"


def plan(name: str, *, slots: int = 2) -> ModelPlan:
    return decoder_plan(name, head_dim=4, slots=slots)


class House:
    """The parts wired together as the service does it."""

    def __init__(
        self,
        plans: list[ModelPlan],
        *,
        max_queue: int = 4,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.feedback = Feedback()
        self.environ = environ
        self.supervisor = EngineSupervisor(
            EngineLifecycle(load_deadline_s=30, step_deadline_s=60),
            load=lambda link: self.loader.load_all(link),
            on_message=self.on_message,
            on_up=lambda link: self.dispatcher.engine_up(link),
            on_down=self.on_down,
            on_failed=lambda reason: self.dispatcher.refuse_all(EngineNotReady(reason)),
            spawn=self.spawn,
        )
        self.dispatcher = Dispatcher(
            plans,
            aliases={"gpt": "m"},
            max_queue=max_queue,
            feedback=self.feedback,
            engine=self.supervisor,
        )
        self.loader = ModelLoader(self.dispatcher)

    def on_message(self, message: ToService) -> None:
        if not self.loader.on_message(message):
            self.dispatcher.on_message(message)

    def on_down(self, loss: EngineLoss) -> None:
        self.dispatcher.engine_down(loss)

    async def spawn(self, on_exit: OnExit) -> EngineProcess:
        return await EngineProcess.spawn(on_exit, environ=self.environ, command=(sys.executable, str(FAKE_ENGINE)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)

    def play(self, scenario: Callable[["House"], Awaitable[None]]) -> None:
        async def run() -> None:
            watch = asyncio.create_task(self.supervisor.run())
            try:
                async with asyncio.timeout(60):
                    await scenario(self)
            finally:
                watch.cancel()
                await self.supervisor.stop()

        asyncio.run(run())


def task(prompt: list[int], *, limit: int = 4, model: str = "m") -> GenerationTask:
    return GenerationTask(
        request_key="r", model=model, prompt=prompt, max_new_tokens=limit, sampler=SamplerSettings()
    )


async def read(house: House, prompt: list[int], *, limit: int = 4, model: str = "m") -> list[int]:
    generation = await house.dispatcher.generate(task(prompt, limit=limit, model=model))
    ids: list[int] = []
    while True:
        emission = await generation.next()
        ids += emission.ids
        if emission.reason is not None:
            return ids
