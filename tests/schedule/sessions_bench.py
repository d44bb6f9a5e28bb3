"""A model's further sessions over an engine that answers as a script says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from sample_plans import decoder_plan
from scripted_chooser import OWN, TWO
from scripted_engine import ScriptedEngine

from magnitude.engine import session_messages as engine
from magnitude.engine.client import EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import ToService
from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice
from magnitude.policy.terms import Event, Probe, SessionReady
from magnitude.schedule.model_sessions import PROBE_PATIENCE_S, ModelSessions
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.session_budget import SessionBudget
from magnitude.schedule.session_desk import SessionDesk
from magnitude.supervise.loss import EngineLoss, LossCause

PLENTY = SessionBudget(room_bytes=10**9, step="normal", account_bytes=10**9, models_bytes=0, sessions_bytes=0)
PROBE = Probe(
    part="prefill",
    key="tokens=128",
    choices=(Choice(session=OWN, chunk=16), Choice(session=TWO, chunk=32)),
    rows=1,
    tokens=32,
    rounds=3,
)
ALIKE = engine.Compared(
    request_id=0, positions=9, equal=True, largest_difference=0.0, top1_agreement=1.0, least_cosine=1.0
)


class Bench:
    """A model's sessions over an engine that answers as a script says."""

    def __init__(
        self,
        answer: Callable[[Message], ToService | None] | None = None,
        plan: ModelPlan | None = None,
        probe_patience_s: float = PROBE_PATIENCE_S,
    ) -> None:
        self.answer = answer or self.usual
        self.engine = ScriptedEngine(lambda message: self.answer(message))
        self.told: list[Event] = []
        self.timing: list[bool] = []
        self.idle = self.busy = False
        self.memory = PLENTY
        self.now_s = 1000.0
        self.plan = plan or decoder_plan()
        self.desk = SessionDesk(
            ask=self.ask,
            next_id=self.engine.next_id,
            idle=lambda: self.idle,
            budget=lambda: self.memory,
            settle_s=0.0,
            clock=lambda: self.now_s,
        )
        self.idle = True
        self.sessions = ModelSessions(
            self.desk,
            self.plan,
            OWN,
            self.told.append,
            busy=lambda: self.busy,
            timing=self.timing.append,
            probe_patience_s=probe_patience_s,
            pause_s=0.0,
        )
        self.desk.engine_up(cast(EngineLink, self.engine))

    def usual(self, message: Message) -> ToService | None:
        match message:
            case engine.PrepareSession(request_id=request_id, model=model):
                return engine.SessionPrepared(request_id=request_id, model=model, load_s=0.5, added_bytes=125)
            case engine.CompareSession():
                return ALIKE
            case engine.Probe(request_id=request_id):
                return engine.Probed(request_id=request_id, seconds=((1.0,), (2.0,)), complete=True)
        return None

    async def ask(self, link: EngineLink, message: Message, request_id: int) -> ToService:
        self.engine.sent.append(message)
        if (answer := self.answer(message)) is None:
            await asyncio.Event().wait()
        assert answer is not None
        return answer

    def lose(self, cause: LossCause = "killed") -> None:
        self.desk.engine_down()
        self.sessions.engine_down(EngineLoss("it is gone", cause))

    def sent(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.engine.sent if isinstance(message, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)

    async def have(self, session: SessionSpec) -> None:
        self.sessions.prepare(session)
        await self.until(lambda: SessionReady(session, 125) in self.told)


def play(scenario: Callable[[Bench], Awaitable[None]], bench: Bench | None = None) -> Bench:
    async def run() -> Bench:
        used = bench or Bench()
        await scenario(used)
        await used.sessions.close()
        return used

    return asyncio.run(run())
