"""Which variant the strategy loop names: one that relieves the board, while it asks for that."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from sample_plans import decoder_plan
from test_strategies import BOARD, House, play

from magnitude.feedback.records import Outcome, TaskRecord
from magnitude.policy.learned import Learned
from magnitude.policy.optimizer import Optimizer
from magnitude.policy.rules import ModelFacts, Rules
from magnitude.policy.terms import BoardSeen

HOT = msgspec.structs.replace(BOARD, smaller=True)
WEAK = msgspec.structs.replace(BOARD, supply="saving")
SHORT = msgspec.structs.replace(BOARD, memory="short")


class Choosing(House):
    """The real optimiser decides. `small` may compute in place of `m`."""

    def __init__(self, rules: Rules | None = None) -> None:
        super().__init__(decoder_plan("m"), decoder_plan("small", variant_of="m"))
        self.loop_rules = rules or Rules()
        self.facts: dict[str, ModelFacts] = {}
        self.strategies._variants = lambda model: ("small",) if model == "m" else ()

    def choose(self, facts: ModelFacts, learned: Learned) -> Optimizer:  # type: ignore[override]
        self.facts[facts.name] = facts
        self.choosers[facts.name] = chooser = Optimizer(facts, self.loop_rules, learned)  # type: ignore[assignment]
        return cast(Optimizer, chooser)

    async def on(self, board: BoardSeen) -> None:
        self.board = board
        self.engine_up()
        await self.until(lambda: all(self.strategies.strategy_of(model) for model in self.plans))
        self.strategies.board_looked()


@pytest.mark.parametrize(
    ("board", "variant", "forced"), [(BOARD, "", False), (HOT, "small", True), (WEAK, "small", True)]
)
def test_heat_and_supply_ask_for_smaller_weights(board: BoardSeen, variant: str, forced: bool) -> None:
    house = Choosing()

    async def scenario() -> None:
        await house.on(board)
        assert house.strategies.variant_for("m", "generate") == variant
        assert house.strategies.relieves() is forced
        assert house.facts["m"].variants == ("small",)
        assert house.facts["small"].variants == ()

    play(house, scenario)


def test_whoever_prefers_speed_gets_smaller_weights_and_conversations_stay() -> None:
    house = Choosing(Rules(prefer="speed"))

    async def scenario() -> None:
        await house.on(BOARD)
        assert house.strategies.variant_for("m", "generate") == "small"
        assert not house.strategies.relieves()

    play(house, scenario)


def test_short_memory_loads_no_second_model() -> None:
    house = Choosing()

    async def scenario() -> None:
        await house.on(SHORT)
        assert house.strategies.variant_for("m", "generate") == "small"
        house.loaded.discard("small")
        assert house.strategies.variant_for("m", "generate") == ""

    play(house, scenario)


def test_a_variant_that_tasks_fail_with_is_given_up_for_its_model() -> None:
    house = Choosing(Rules(prefer="speed", window=20))

    async def scenario() -> None:
        await house.on(BOARD)
        for _ in range(200):
            house.strategies.task_ended(ended("m", "ok"))
        assert house.strategies.variant_for("m", "generate") == "small"
        for _ in range(200):
            house.strategies.task_ended(ended("small", "timed_out"))
        assert house.strategies.variant_for("m", "generate") == ""

    play(house, scenario)


def ended(model: str, outcome: Outcome) -> TaskRecord:
    return TaskRecord(kind="generate", model=model, outcome=outcome, prompt_tokens=4, new_tokens=4, prefill_s=0.1)


def test_a_model_without_a_loop_computes_by_itself() -> None:
    house = Choosing()

    async def scenario() -> None:
        assert house.strategies.variant_for("m", "generate") == ""
        assert not house.strategies.relieves()

    play(house, scenario)
