"""Profiles of operators beside the strategy loops: told of requests, engines and memory, counted with sessions."""

from __future__ import annotations

import asyncio

from sample_plans import decoder_plan
from test_strategies import LOSS, House, play

from magnitude.engine.client import EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import CancelRequest, ToService
from magnitude.engine.session_messages import PhaseProfile, ProfileOperators
from magnitude.feedback.records import TaskRecord
from magnitude.policy.rules import Rules
from magnitude.schedule.operator_profiles import OperatorProfiles

TASK = TaskRecord(kind="generate", model="m", outcome="ok")


class ProfiledHouse(House):
    """Its engine never ends a profile by itself."""

    def __init__(self) -> None:
        super().__init__(decoder_plan(weight_bytes=9))
        self.told: list[tuple[PhaseProfile, ...]] = []
        self.strategies.profiles = OperatorProfiles(
            self.plans.values(),
            self.strategies._desk,
            tell=lambda model, phases: self.told.append(phases),
            every=1,
            loaded=self.loaded.__contains__,
            needed_bytes=self.strategies.needed_bytes,
            held=lambda: False,
            quiet_s=0.0,
        )

    async def ask(self, link: EngineLink, message: Message, request_id: int) -> ToService:
        if not isinstance(message, ProfileOperators):
            return await super().ask(link, message, request_id)
        self.engine.sent.append(message)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def profiled(self) -> ProfileOperators:
        await self.begun()
        self.strategies.task_ended(TASK)
        await self.until(lambda: any(isinstance(sent, ProfileOperators) for sent in self.engine.sent))
        return next(sent for sent in self.engine.sent if isinstance(sent, ProfileOperators))


def test_the_twin_counts_with_further_sessions_while_it_is_there() -> None:
    house = ProfiledHouse()

    async def scenario() -> None:
        assert house.strategies.session_bytes() == 0
        await house.profiled()
        assert house.strategies.session_bytes() == 9
        house.strategies.engine_down(LOSS)
        await house.until(lambda: house.strategies.session_bytes() == 0)

    play(house, scenario)


def test_short_memory_ends_a_profile_with_all_further_sessions() -> None:
    house = ProfiledHouse()

    async def scenario() -> None:
        asked = await house.profiled()
        house.strategies.memory_short()
        assert CancelRequest(target=asked.request_id) in house.engine.sent

    play(house, scenario)


def test_how_often_follows_the_configuration() -> None:
    house = ProfiledHouse()

    async def scenario() -> None:
        await house.begun()
        house.strategies.tune(Rules(), save_every_s=300.0, session_memory_bytes=None, profile_every=0)
        house.strategies.task_ended(TASK)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(isinstance(sent, ProfileOperators) for sent in house.engine.sent)

    play(house, scenario)
