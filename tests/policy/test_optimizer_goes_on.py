"""The strategy loop gets stuck nowhere: not by what it cannot have, cannot measure, or has no room for."""

from __future__ import annotations

import msgspec
import pytest
from policy_world import World, facts, fresh, two_cores

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Binding, Choice, Entry, Learned
from magnitude.policy.optimizer import Optimizer
from magnitude.policy.rules import Rules
from magnitude.policy.situation import Part, Situation
from magnitude.policy.terms import (
    BoardSeen,
    DropSession,
    EngineChanged,
    PrepareSession,
    RunsSeen,
    SessionFailed,
    TaskSeen,
)

BINDING = Binding(board="board", model="small", model_hash="abc", ort_version="1")
ONE, TWO = SessionSpec(threads=1), SessionSpec(threads=2)


def one_is_faster(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
    return two_cores(part, session, rows, tokens, cores=1)


def turn(world: World) -> None:
    world.decode(20.0)
    world.prefill(20.0)
    world.rest(40.0)


def test_a_switch_that_cannot_be_watched_while_idle_lets_others_be_tried() -> None:
    rules = Rules(cold_start_s=5.0, explore="idle")
    world = World(fresh(rules), one_is_faster, noise=0.02)
    world.start()
    for _ in range(40):
        turn(world)
    assert (world.optimizer.strategy.decode, world.optimizer.strategy.prefill) == (ONE, ONE)
    assert not world.optimizer.view(world.now_s).experiment


def test_a_switch_to_another_piece_lets_others_be_tried() -> None:
    def large_pieces(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        cost_s = one_is_faster(part, session, rows, tokens, cores)
        return cost_s * 0.001 * (1.0 if tokens < 200 else 0.8) if part == "prefill" else cost_s

    world = World(fresh(Rules(cold_start_s=5.0)), large_pieces, noise=0.02)
    world.start()
    for _ in range(60):
        turn(world)
    assert world.optimizer.strategy.prefill_chunk == 256
    assert world.optimizer.strategy.decode == ONE


def test_what_is_learned_of_large_pieces_is_in_force_for_them() -> None:
    world = World(Optimizer(facts(chunk=256), Rules(cold_start_s=5.0)), one_is_faster, noise=0.02)
    world.start()
    for _ in range(20):
        world.prefill(20.0, tokens=256)
        world.rest(20.0)
    assert world.optimizer.strategy.prefill == ONE
    assert world.optimizer.strategy_for(Situation(tokens=2000, cores=2)).prefill_chunk == 256


def test_a_dumped_choice_that_can_never_be_had_makes_room_for_another() -> None:
    gone = SessionSpec(threads=1, graph_file="gone.onnx")
    entry = Entry(part="decode", key="rows=1 cores=2 clock=0.9", chosen=Choice(session=gone))
    world = World(
        fresh(Rules(cold_start_s=5.0), Learned(binding=BINDING, entries=(entry,))), one_is_faster, noise=0.02
    )
    world.prepares = False
    world.start()
    asked = [effect.session for effect in world.effects if isinstance(effect, PrepareSession)]
    assert asked == [gone]
    world.tell(SessionFailed(gone, "there is no such graph", lasting=True))
    world.prepares = True
    for _ in range(20):
        turn(world)
    assert world.optimizer.strategy.decode == ONE


def test_what_was_known_and_does_not_fit_now_is_not_lost_from_the_dump() -> None:
    eight = Choice(session=SessionSpec(threads=2, cpus=(6, 7)))
    entry = Entry(part="decode", key="rows=1 cores=2 clock=0.9", chosen=eight)
    world = World(fresh(Rules(explore="off"), Learned(binding=BINDING, entries=(entry,))))
    world.start()
    world.decode(30.0)
    assert entry in world.optimizer.learned(BINDING, world.now_s).entries


def test_a_load_that_swings_does_not_make_and_drop_sessions_in_turn() -> None:
    counts = {1: 3, 2: 5, 3: 6}

    def chosen(rows: int) -> Entry:
        key = f"rows={rows} cores=8 clock=0.9"
        return Entry(part="decode", key=key, chosen=Choice(session=SessionSpec(threads=counts[rows])))

    entries = tuple(chosen(rows) for rows in counts)
    rules = Rules(explore="off", most_sessions=2)
    world = World(
        Optimizer(facts(8), rules, Learned(binding=BINDING, entries=entries)),
        board=BoardSeen(cores=tuple(range(8)), usable=8),
    )
    world.start()
    for _ in range(100):
        for rows in counts:
            world.decode(2.0, rows=rows)
    dropped = [effect for effect in world.effects if isinstance(effect, DropSession)]
    assert len(dropped) <= 10


def test_a_trial_is_for_the_rows_that_are_compared_only() -> None:
    world = World(fresh(Rules(cold_start_s=5.0)), one_is_faster, noise=0.02)
    world.start()
    world.decode(12.0, rows=3)
    assert world.use is not None and world.use.trial is not None
    world.decode(1.0, rows=1)
    assert world.use.trial is None


def test_weights_with_which_tasks_failed_are_tried_again_after_long() -> None:
    optimizer = Optimizer(facts(variants=("small-4",)), Rules())
    optimizer.apply(BoardSeen(cores=(0, 1), usable=2, smaller=True), 0.0)
    optimizer.apply(EngineChanged(True), 0.0)
    strategy = optimizer.strategy_for(Situation())
    for task in range(100):
        optimizer.apply(TaskSeen(strategy.strategy_id, 1.0, 10, failed=task % 4 == 0), float(task))
    assert optimizer.variant_for(Situation()) == ""
    optimizer.apply(BoardSeen(cores=(0, 1), usable=2, smaller=True), 4 * 3600.0)
    assert optimizer.variant_for(Situation()) == "", "failures that have aged are not forgiven yet"
    optimizer.apply(BoardSeen(cores=(0, 1), usable=2, smaller=True), 10 * 3600.0)
    assert optimizer.variant_for(Situation()) == "small-4"


def test_tasks_that_take_too_long_are_given_smaller_weights() -> None:
    optimizer = Optimizer(facts(variants=("small-4",)), Rules(latency_limit_s=2.0))
    optimizer.apply(EngineChanged(True), 0.0)
    own = optimizer.strategy_for(Situation())
    for task in range(30):
        optimizer.apply(TaskSeen(own.strategy_id, 3.0, 10, failed=False), float(task))
    assert optimizer.variant_for(Situation()) == "small-4"


def test_a_reset_forgets_what_was_proven_and_what_could_not_be_had() -> None:
    world = World(fresh(), one_is_faster, noise=0.02, passes=lambda session: False)
    world.start()
    for _ in range(4):
        turn(world)
    assert world.optimizer.learned(BINDING, world.now_s).verified
    before = world.optimizer.changed
    world.optimizer.reload(Rules(), Learned(binding=BINDING))
    assert not world.optimizer.learned(BINDING, world.now_s).verified
    assert world.optimizer.changed > before


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_fewer_threads_are_kept_where_they_are_as_fast(rows: int) -> None:
    def same(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        return 0.012 * (tokens if part != "decode" else 1)

    world = World(fresh(Rules(cold_start_s=5.0)), same, noise=0.005)
    world.start()
    for _ in range(10):
        world.decode(20.0, rows=rows)
        world.rest(20.0)
    assert world.optimizer.strategy.decode == ONE


def test_where_two_sessions_are_in_use_a_third_is_still_compared() -> None:
    """Answers by one, prompts by another one, both not the model's own, as on boards with fast and slow cores."""
    big = BoardSeen(cores=(4, 5, 6, 7, 0, 1, 2, 3), usable=8, big=4)

    def big_little(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        if not session.cpus or session.threads > 4:
            return 0.05 * tokens
        best = 2 if part == "decode" else 4
        return 0.01 * tokens * (1.0 + 0.2 * abs(session.threads - best))

    world = World(Optimizer(facts(8), Rules(cold_start_s=5.0)), big_little, noise=0.02, board=big)
    world.start()
    for _ in range(120):
        turn(world)
    strategy = world.optimizer.strategy
    assert (strategy.decode.threads, strategy.prefill.threads) == (2, 4)
    assert strategy.decode.cpus == (4, 5)


def test_runs_that_cannot_be_true_teach_nothing() -> None:
    optimizer = fresh()
    optimizer.apply(EngineChanged(True), 0.0)
    for seen in (RunsSeen("decode", TWO, 1, 1, 0, 1.0), RunsSeen("decode", TWO, 1, 1, 5, 0.0)):
        optimizer.apply(seen, 100.0)
    assert optimizer.learned(BINDING, 100.0).samples == 0
    assert msgspec.json.encode(optimizer.learned(BINDING, 100.0))
