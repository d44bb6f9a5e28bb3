"""The strategy loop of a model in simulated time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_world import World, facts, fresh, two_cores

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Binding, Choice
from magnitude.policy.optimizer import Optimizer
from magnitude.policy.rules import Rules
from magnitude.policy.situation import Part, Situation
from magnitude.policy.terms import (
    BoardSeen,
    DropSession,
    EngineChanged,
    MayExperiment,
    PrepareSession,
    Probe,
    SessionFailed,
    TaskSeen,
)

BINDING = Binding(board="board", model="small", model_hash="abc", ort_version="1")
ONE, TWO = SessionSpec(threads=1), SessionSpec(threads=2)


def one_is_faster(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
    return two_cores(part, session, rows, tokens, cores=1)


def busy(world: World, times: int = 6) -> None:
    for _ in range(times):
        world.decode(30.0)
        world.prefill(10.0)
        world.rest(30.0)


def test_a_faster_session_is_found_proven_and_used() -> None:
    world = World(fresh(), one_is_faster, noise=0.05)
    world.start()
    busy(world, 15)
    assert world.optimizer.strategy.decode == ONE
    assert world.optimizer.strategy.prefill == ONE
    switch = world.kinds("switch")[0]
    assert 0.1 < switch.gain < 0.3 and switch.delay_s > 0


def test_what_is_best_stays_and_costs_next_to_nothing() -> None:
    world = World(fresh(), two_cores, noise=0.05)
    world.start()
    busy(world, 12)
    assert world.optimizer.strategy.decode == TWO
    assert not world.kinds("switch", "revert")
    view = world.optimizer.view(world.now_s)
    assert view.lost_s <= 0.01 * view.busy_s + 0.5


def test_nothing_is_tried_before_the_cold_start_is_over() -> None:
    world = World(fresh(Rules(cold_start_s=60.0)), one_is_faster)
    world.start()
    world.decode(55.0)
    assert not any(isinstance(effect, PrepareSession) for effect in world.effects)
    world.decode(30.0)
    assert any(isinstance(effect, PrepareSession) for effect in world.effects)


def test_half_of_the_cores_gone_is_answered_at_once_and_so_is_their_return() -> None:
    world = World(fresh())
    world.start()
    busy(world, 3)
    world.board_becomes(BoardSeen(cores=(0, 1), usable=1))
    assert world.optimizer.strategy.decode == ONE
    world.board_becomes(BoardSeen(cores=(0, 1), usable=2))
    assert world.optimizer.strategy.decode == TWO
    assert len(world.kinds("situation")) >= 2


def test_switched_off_it_never_asks_for_anything() -> None:
    world = World(fresh(Rules(on=False, cold_start_s=0.0)), one_is_faster)
    world.start()
    busy(world, 3)
    assert world.optimizer.strategy.decode == TWO
    assert world.optimizer.wake_s is None
    assert not any(isinstance(effect, (PrepareSession, Probe)) for effect in world.effects)


@pytest.mark.parametrize("explore", ["idle", "load"])
def test_each_way_of_exploring_finds_the_faster_session(explore: str) -> None:
    rules = msgspec.convert({"explore": explore, "cold_start_s": 5.0}, Rules)
    world = World(fresh(rules), one_is_faster, noise=0.03)
    world.start()
    busy(world)
    assert world.optimizer.strategy.decode == ONE
    assert explore == "load" or world.use is None or world.use.trial is None


def test_without_idle_time_it_learns_beside_the_load() -> None:
    world = World(fresh(), one_is_faster, noise=0.05)
    world.start()
    world.decode(180.0)
    assert world.optimizer.strategy.decode == ONE
    assert not any(isinstance(effect, Probe) for effect in world.effects)


def test_a_session_that_computes_something_else_is_never_used_and_not_made_again() -> None:
    world = World(fresh(), one_is_faster, passes=lambda session: False)
    world.start()
    busy(world, 8)
    assert world.optimizer.strategy.decode == TWO
    made = [effect for effect in world.effects if isinstance(effect, PrepareSession)]
    assert len(made) == len({effect.session for effect in made})
    assert any(isinstance(effect, DropSession) for effect in world.effects)


def test_a_session_for_which_there_is_no_room_is_asked_for_again_only_after_minutes() -> None:
    world = World(fresh(), one_is_faster)
    world.prepares = False
    world.start()
    world.decode(20.0)
    asked = [effect for effect in world.effects if isinstance(effect, PrepareSession)]
    assert asked
    world.tell(SessionFailed(asked[0].session, "no room", lasting=False))
    world.decode(60.0)
    again = [effect for effect in world.effects if effect == asked[0]]
    assert len(again) == 1
    world.decode(400.0)
    assert len([effect for effect in world.effects if effect == asked[0]]) > 1


def test_a_strategy_under_which_more_tasks_fail_is_taken_back_and_remembered() -> None:
    """It is faster for those that survive."""
    world = World(fresh(), one_is_faster, noise=0.03)
    world.start()
    for turn in range(120):
        world.decode(10.0)
        strategy = world.optimizer.strategy
        for task in range(5):
            failed = strategy.decode == ONE and (5 * turn + task) % 20 == 0
            world.tell(TaskSeen(strategy.strategy_id, 1.0, 10, failed))
    assert world.optimizer.strategy.decode == TWO
    reverted = world.kinds("revert")
    assert reverted and "tasks failed" in reverted[0].reason
    rejected = world.optimizer.learned(BINDING, world.now_s).rejected
    assert ("decode", ONE) in [(one.part, one.choice.session) for one in rejected]


def test_what_wins_while_idle_and_loses_under_load_is_taken_back() -> None:
    world: World

    def deceiving(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        alone = world.optimizer.view(world.now_s).experiment and not world.optimizer._load.decoding
        return (
            one_is_faster(part, session, rows, tokens, cores) if alone else two_cores(part, session, rows, tokens, 2)
        )

    world = World(fresh(Rules(cold_start_s=5.0, trial_every=4)), deceiving, noise=0.02)
    world.start()
    world.decode(4.0)
    world.rest(120.0)
    assert world.optimizer.strategy.decode == ONE
    world.decode(200.0)
    assert world.kinds("revert")
    assert world.optimizer.strategy.decode == TWO


def test_a_lost_engine_loses_its_sessions_and_the_strategy_comes_back_with_the_next() -> None:
    world = World(fresh(), one_is_faster, noise=0.03)
    world.start()
    busy(world)
    assert world.optimizer.strategy.decode == ONE
    world.tell(EngineChanged(False))
    world.sessions.clear()
    world.tell(EngineChanged(True))
    assert world.use is not None and world.use.strategy.decode == TWO
    world.decode(5.0)
    assert world.use.strategy.decode == ONE


def test_the_first_decision_after_a_restart_is_the_dumped_one() -> None:
    world = World(fresh(), one_is_faster, noise=0.05)
    world.start()
    busy(world)
    dump = world.optimizer.learned(BINDING, world.now_s)
    read = msgspec.json.decode(msgspec.json.encode(dump), type=type(dump))
    again = World(fresh(learned=read), one_is_faster, noise=0.05)
    again.start()
    again.rest(1.5)
    assert again.optimizer.strategy == world.optimizer.strategy
    assert not again.kinds("trial", "switch")


def test_a_choice_of_the_dump_that_the_board_has_no_cores_for_is_left_out() -> None:
    world = World(fresh(), one_is_faster, noise=0.05)
    world.start()
    busy(world)
    dump = world.optimizer.learned(BINDING, world.now_s)
    entry = msgspec.structs.replace(dump.entries[0], chosen=Choice(session=SessionSpec(threads=8)))
    odd = msgspec.structs.replace(dump, entries=(entry, *dump.entries[1:]))
    again = World(fresh(learned=odd))
    again.start()
    again.decode(5.0)
    assert again.optimizer.strategy.decode.threads <= 2


def test_what_is_pinned_stays_and_nothing_is_tried_in_it() -> None:
    world = World(fresh(), one_is_faster, noise=0.03)
    world.optimizer.pin({"decode": Choice(session=TWO), "prefill": Choice(session=TWO, chunk=64)})
    world.start()
    busy(world)
    assert (world.optimizer.strategy.decode, world.optimizer.strategy.prefill_chunk) == (TWO, 64)
    assert world.optimizer.strategy_for(Situation(tokens=1000, cores=2)).prefill_chunk == 64
    assert not world.kinds("trial")


def test_a_model_that_may_not_experiment_waits_for_its_turn() -> None:
    world = World(fresh(), one_is_faster)
    world.start()
    world.tell(MayExperiment(False))
    busy(world, 2)
    assert not world.kinds("trial")
    world.tell(MayExperiment(True))
    busy(world, 2)
    assert world.kinds("trial")


@pytest.mark.parametrize("board", [{"heat": "hot"}, {"supply": "saving"}, {"memory": "short"}])
def test_a_board_in_need_is_not_experimented_on(board: dict[str, str]) -> None:
    world = World(fresh(), one_is_faster, board=msgspec.convert({"cores": [0, 1], "usable": 2, **board}, BoardSeen))
    world.start()
    busy(world, 3)
    assert not world.kinds("trial")


def test_slow_first_runs_of_an_engine_are_no_change_of_level() -> None:
    world: World

    def cold(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        return (10.0 if world.now_s < 2.0 else 1.0) * two_cores(part, session, rows, tokens, cores)

    world = World(fresh(), cold, noise=0.03)
    world.start()
    world.decode(60.0)
    assert not world.kinds("retired")


def test_what_runs_taught_is_worth_saving_also_without_an_experiment() -> None:
    world = World(fresh(Rules(explore="off", cold_start_s=0.0)))
    world.start()
    before = world.optimizer.changed
    world.decode(120.0)
    assert world.optimizer.changed > before


def test_failures_of_a_variant_are_not_laid_to_the_sessions_of_the_model() -> None:
    optimizer = Optimizer(facts(variants=("small-4",)), Rules())
    optimizer.apply(BoardSeen(cores=(0, 1), usable=2, smaller=True), 0.0)
    optimizer.apply(EngineChanged(True), 0.0)
    strategy = optimizer.strategy_for(Situation())
    assert strategy.variant == "small-4"
    for task in range(100):
        optimizer.apply(TaskSeen(strategy.strategy_id, 1.0, 10, failed=task % 4 == 0), float(task))
    assert optimizer.variant_for(Situation()) == ""
    assert optimizer._guard.outcomes(f"decode {optimizer.strategy.decode.session_id}", 100.0).tasks == 0


def test_smaller_weights_are_used_while_heat_or_supply_ask_for_it() -> None:
    optimizer = Optimizer(facts(variants=("small-4", "small-8")), Rules())
    optimizer.apply(BoardSeen(cores=(0, 1), usable=2), 0.0)
    assert optimizer.variant_for(Situation()) == ""
    assert optimizer.variant_for(Situation(supply="saving")) == "small-4"
    optimizer.apply(BoardSeen(cores=(0, 1), usable=2, smaller=True), 1.0)
    assert optimizer.strategy_for(Situation()).variant == "small-4"


def test_a_level_that_moves_lets_old_comparisons_be_made_anew() -> None:
    """Nothing else tells of a neighbour that takes half of a core."""
    slow = {"factor": False}

    def shared(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        return two_cores(part, session, rows, tokens, 1 if slow["factor"] else 2)

    world = World(fresh(), shared, noise=0.03)
    world.start()
    busy(world)
    assert world.optimizer.strategy.decode == TWO
    slow["factor"] = True
    world.decode(120.0)
    assert world.kinds("retired")
    assert world.optimizer.strategy.decode == ONE


def test_a_neighbour_that_comes_and_goes_keeps_no_comparison_from_its_end() -> None:
    world: World

    def disturbed(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        beside = 2.5 if int(world.now_s / 20.0) % 2 else 1.0
        return beside * one_is_faster(part, session, rows, tokens, cores)

    world = World(fresh(), disturbed, noise=0.1)
    world.start()
    world.decode(400.0)
    assert world.optimizer.strategy.decode == ONE
    assert len(world.kinds("retired")) <= 2


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_equal_choices_under_heavy_noise_switch_at_most_twice_an_hour(seed: int) -> None:
    def same(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        return 0.012 * (tokens if part != "decode" else 1)

    world = World(fresh(), same, noise=0.17, seed=seed)
    world.start()
    for _ in range(36):
        world.decode(60.0)
        world.rest(40.0)
    assert len(world.kinds("switch", "revert")) <= 2


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.05, 0.17]), st.floats(0.6, 1.6))
def test_it_never_ends_with_something_slower_than_the_default(seed: int, noise: float, ratio: float) -> None:
    def cost(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        return (0.012 if session.threads == 2 else 0.012 * ratio) * (tokens if part != "decode" else 1)

    world = World(fresh(), cost, noise=noise, seed=seed)
    world.start()
    busy(world, 15)
    chosen = cost("decode", world.optimizer.strategy.decode, 1, 1, 2)
    assert chosen <= 0.012 * 1.05
