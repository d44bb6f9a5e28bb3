"""Loops that are held run as their models were loaded, also where loading has measured something anew."""

from __future__ import annotations

import msgspec
from sample_plans import decoder_plan
from scripted_chooser import OWN, OWN_ONLY, TWO_FOR_PROMPTS
from test_strategies import UP, House, play

from magnitude.policy.terms import MayExperiment, Use


def test_held_loops_run_as_loaded_until_they_go_on() -> None:
    house = House(decoder_plan(), script=lambda model, event: [Use(TWO_FOR_PROMPTS)] if event == UP else [])

    async def scenario() -> None:
        await house.begun()
        house.strategies.hold(30.0)
        assert house.strategies.held_s() == 30.0
        planned = house.strategies.strategy_of("m")
        assert planned is not None
        assert planned.prefill == OWN
        assert house.events()[-1] == MayExperiment(False)
        house.strategies.hold(0.0)
        assert house.strategies.held_s() == 0.0
        assert house.strategies.strategy_of("m") == TWO_FOR_PROMPTS
        assert house.events()[-1] == MayExperiment(True)

    play(house, scenario)


def test_what_a_later_load_has_measured_stays_in_force_when_held_loops_go_on() -> None:
    house = House(
        decoder_plan(slots=4),
        script=lambda model, event: [Use(msgspec.structs.replace(OWN_ONLY, max_batch=4))] if event == UP else [],
    )

    async def scenario() -> None:
        await house.begun()
        house.loaded.clear()
        house.strategies.models_changed()
        house.plans["m"].measured_slots = 2  # nobody had time to measure it before
        house.loaded.add("m")
        house.strategies.models_changed()
        house.strategies.hold(30.0)
        planned = house.strategies.strategy_of("m")
        assert planned is not None
        assert planned.max_batch == 2
        house.strategies.hold(0.0)
        assert house.slots == []

    play(house, scenario)


def test_what_was_chosen_is_held_back_by_a_hold_and_outlives_a_load_that_measures() -> None:
    house = House(decoder_plan(slots=4), script=lambda model, event: [Use(TWO_FOR_PROMPTS)] if event == UP else [])
    plan = house.plans["m"]

    async def scenario() -> None:
        await house.begun()
        assert house.slots == [("m", 1)]
        house.strategies.hold(30.0)
        assert house.slots.pop() == ("m", 4)
        house.strategies.hold(0.0)
        assert house.slots.pop() == ("m", 1)
        house.loaded.clear()
        house.strategies.models_changed()
        plan.measured_slots = 3
        house.loaded.add("m")
        house.strategies.models_changed()
        assert plan.compute_slots == 1
        house.strategies.hold(30.0)
        assert house.slots.pop() == ("m", 3)

    play(house, scenario)
