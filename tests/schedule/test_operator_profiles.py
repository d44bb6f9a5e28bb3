"""When operators are profiled: seldom, while nothing else is open, and where there is memory for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
from sample_plans import decoder_plan, encoder_plan
from scripted_engine import ScriptedEngine
from sessions_bench import PLENTY

from magnitude.engine.client import EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import CancelRequest, Failed, ToService
from magnitude.engine.session_messages import OperatorsProfiled, PhaseProfile, ProfileOperators
from magnitude.schedule.engine_deaths import DEATHS_TOLERATED
from magnitude.schedule.operator_profiles import PAUSE_S, RETRY_S, OperatorProfiles
from magnitude.schedule.session_desk import SessionDesk
from magnitude.supervise.loss import EngineLoss, LossCause

DECODE = PhaseProfile(phase="decode", tokens=1, run_s=(0.01,), operators_s={"MatMul": (0.008,)})
EVERY = 3


class Bench:
    """Profiles over an engine that answers as a script says; the models `chat` and `embed`."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine(lambda message: None)
        self.answer: Callable[[ProfileOperators], ToService | None] = self.usual
        self.told: list[tuple[str, tuple[PhaseProfile, ...]]] = []
        self.idle, self.loaded, self.held = True, True, False
        self.memory = PLENTY
        self.now_s = 1000.0
        self.desk = SessionDesk(
            ask=self.ask,
            next_id=self.engine.next_id,
            idle=lambda: self.idle,
            budget=lambda: self.memory,
            settle_s=0.0,
            clock=lambda: self.now_s,
        )
        self.desk.engine_up(cast(EngineLink, self.engine))
        self.chat, embed = decoder_plan(), encoder_plan()
        self.names = [plan.description.name for plan in (self.chat, embed)]
        self.profiles = OperatorProfiles(
            [self.chat, embed],
            self.desk,
            tell=lambda model, phases: self.told.append((model, phases)),
            every=EVERY,
            loaded=lambda model: self.loaded,
            needed_bytes=lambda model: 7,
            held=lambda: self.held,
            clock=lambda: self.now_s,
            quiet_s=0.0,
        )

    @staticmethod
    def usual(message: ProfileOperators) -> ToService:
        return OperatorsProfiled(request_id=message.request_id, phases=(DECODE,))

    async def ask(self, link: EngineLink, message: Message, request_id: int) -> ToService:
        self.engine.sent.append(message)
        assert isinstance(message, ProfileOperators)
        if (answer := self.answer(message)) is None:
            await asyncio.Event().wait()
        assert answer is not None
        return answer

    @property
    def asked(self) -> list[ProfileOperators]:
        return [message for message in self.engine.sent if isinstance(message, ProfileOperators)]

    async def requests(self, count: int, model: str = "") -> None:
        """So many are over, and all that follows from it has happened."""
        for _ in range(count):
            self.profiles.task_ended(model or self.names[0])
            await rest()

    def lose(self, cause: LossCause = "crash") -> None:
        self.desk.engine_down()
        self.profiles.engine_down(EngineLoss("it is gone", cause))
        self.desk.engine_up(cast(EngineLink, self.engine))


async def rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def play(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        bench = Bench()
        await scenario(bench)
        await bench.profiles.close()

    asyncio.run(run())


def test_every_so_many_requests_of_a_model_bring_a_profile() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.requests(EVERY - 1)
        assert bench.asked == []
        await bench.requests(1)
        assert bench.told == [(bench.names[0], (DECODE,))]
        assert bench.asked[0].slot == bench.chat.scratch_slot

    play(scenario)


def test_requests_of_one_model_are_not_those_of_another() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.requests(EVERY - 1)
        await bench.requests(EVERY - 1, bench.names[1])
        assert bench.asked == []

    play(scenario)


def test_a_text_is_no_longer_than_the_encoder_takes() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.requests(EVERY, bench.names[1])
        encoder = encoder_plan().description.encoder
        assert encoder is not None
        assert 0 < bench.asked[0].tokens <= encoder.max_tokens

    play(scenario)


def test_there_is_at_most_one_in_an_hour() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.requests(5 * EVERY)
        assert len(bench.asked) == 1
        bench.now_s += PAUSE_S
        await bench.requests(1)
        assert len(bench.asked) == 2

    play(scenario)


def test_it_waits_until_nothing_is_open() -> None:
    async def scenario(bench: Bench) -> None:
        bench.idle = False
        await bench.requests(EVERY)
        assert bench.asked == []
        bench.idle = True
        bench.desk.load_changed()
        await rest()
        assert len(bench.told) == 1

    play(scenario)


def test_one_that_gave_way_is_tried_again_after_a_while() -> None:
    async def scenario(bench: Bench) -> None:
        bench.answer = lambda message: OperatorsProfiled(request_id=message.request_id, reason="something came")
        await bench.requests(EVERY + 5)
        assert len(bench.asked) == 1
        bench.now_s += RETRY_S
        bench.answer = bench.usual
        await bench.requests(1)
        assert [phases for _, phases in bench.told] == [(), (DECODE,)]

    play(scenario)


def test_without_memory_for_its_session_it_is_left_out() -> None:
    async def scenario(bench: Bench) -> None:
        bench.memory = msgspec.structs.replace(PLENTY, step="trim")
        await bench.requests(EVERY)
        assert bench.asked == []

    play(scenario)


def test_nothing_is_profiled_while_strategies_are_held_or_the_model_is_not_there() -> None:
    async def scenario(bench: Bench) -> None:
        bench.held = True
        await bench.requests(EVERY)
        bench.held, bench.loaded = False, False
        bench.now_s += RETRY_S
        await bench.requests(1)
        assert bench.asked == []

    play(scenario)


def test_when_memory_gets_short_meanwhile_it_is_given_up() -> None:
    async def scenario(bench: Bench) -> None:
        bench.answer = lambda message: None
        await bench.requests(EVERY)
        assert bench.profiles.bytes_() == 7
        bench.profiles.give_way()
        assert CancelRequest(target=bench.asked[0].request_id) in bench.engine.sent

    play(scenario)


def test_a_model_with_which_engines_die_is_profiled_no_more() -> None:
    async def scenario(bench: Bench) -> None:
        bench.answer = lambda message: None
        for _ in range(DEATHS_TOLERATED):
            await bench.requests(EVERY)
            bench.lose()
            await rest()
            assert bench.profiles.bytes_() == 0
            bench.now_s += PAUSE_S
        await bench.requests(EVERY)
        assert len(bench.asked) == DEATHS_TOLERATED

    play(scenario)


def test_an_engine_that_was_replaced_is_no_reason_to_stop() -> None:
    async def scenario(bench: Bench) -> None:
        bench.answer = lambda message: None
        for _ in range(DEATHS_TOLERATED + 1):
            await bench.requests(EVERY)
            bench.lose("recycled")
            await rest()
            bench.now_s += PAUSE_S
        assert len(bench.asked) == DEATHS_TOLERATED + 1

    play(scenario)


def test_a_profile_that_came_to_its_end_is_forgiven_the_engines_that_died_before() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(DEATHS_TOLERATED + 1):
            bench.answer = lambda message: None
            await bench.requests(EVERY)
            bench.lose()
            await rest()
            bench.now_s += PAUSE_S
            bench.answer = bench.usual
            await bench.requests(EVERY)
            bench.now_s += PAUSE_S
        assert len(bench.told) == DEATHS_TOLERATED + 1

    play(scenario)


def test_a_failure_ends_the_turn_and_tells_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        bench.answer = lambda message: Failed(request_id=message.request_id, code="x", message="no room on the disk")
        await bench.requests(2 * EVERY)
        assert (len(bench.asked), bench.told) == (1, [])

    play(scenario)


def test_zero_means_never() -> None:
    async def scenario(bench: Bench) -> None:
        bench.profiles.every = 0
        await bench.requests(10)
        assert bench.asked == []

    play(scenario)
