"""A limit for the generations of all models together, which comes and goes while they run and wait."""

from admission_bench import Bench, pauses, starts

from magnitude.schedule.admission import PAUSE_INTERVAL_S
from magnitude.schedule.events import EngineDown, EngineUp, LimitChanged, Paused


def test_lowering_the_limit_ends_nothing_and_lets_nobody_in_until_enough_have_ended() -> None:
    bench = Bench(slots=4)
    for request_id in (1, 2, 3):
        bench.submit(request_id)
    assert bench.apply(LimitChanged(1)) == []
    assert bench.submit(4) == []
    assert starts(bench.end(1)) == starts(bench.end(2)) == []
    assert starts(bench.end(3)) == [4]


def test_those_that_wait_start_in_order_when_the_limit_is_raised_or_taken_back() -> None:
    bench = Bench(slots=4)
    bench.apply(LimitChanged(1))
    for request_id in (1, 2, 3, 4):
        bench.submit(request_id)
    assert bench.running == [1]
    assert starts(bench.apply(LimitChanged(2))) == [2]
    assert starts(bench.apply(LimitChanged(None))) == [3, 4]


def test_the_limit_holds_for_all_models_together_and_the_most_pressing_request_of_any_is_next() -> None:
    bench = Bench(slots=2)
    bench.apply(EngineUp({"m": 2, "n": 2}))
    bench.apply(LimitChanged(1))
    bench.submit(1)
    bench.submit(2, after_s=1.0, model="m")
    bench.submit(3, after_s=1.0, model="n", priority="interactive")
    assert starts(bench.end(1)) == [3]
    assert starts(bench.end(3)) == [2]


def test_runs_of_encoders_are_not_counted() -> None:
    bench = Bench(slots=2)
    bench.apply(LimitChanged(1))
    bench.submit(1)
    assert starts(bench.submit(2, lane="run", model="e")) == [2]


def test_there_is_always_room_for_one() -> None:
    bench = Bench(slots=2)
    bench.apply(LimitChanged(0))
    assert starts(bench.submit(1)) == [1]


def test_an_interactive_request_takes_its_turn_from_a_background_one_of_another_model_below_the_limit() -> None:
    bench = Bench(slots=2)
    bench.apply(EngineUp({"m": 2, "n": 2}))
    bench.apply(LimitChanged(1))
    bench.submit(1, priority="background")
    bench.now_s += PAUSE_INTERVAL_S
    assert pauses(bench.submit(2, model="n", priority="interactive")) == [1]
    assert starts(bench.apply(Paused(1))) == [2]


def test_below_the_limit_models_take_turns_by_how_long_their_requests_have_waited() -> None:
    bench = Bench(slots=2)
    bench.apply(EngineUp({"m": 2, "n": 2}))
    bench.apply(LimitChanged(1))
    for request_id, model in enumerate("mmnmn"):
        bench.submit(request_id, after_s=0.1, model=model)
    assert bench.order_of_starts() == [1, 2, 3, 4]


def test_a_new_engine_finds_the_limit_in_force() -> None:
    bench = Bench(slots=2)
    bench.apply(LimitChanged(1))
    bench.submit(1)
    bench.submit(2)
    bench.apply(EngineDown())
    bench.running.clear()
    assert starts(bench.apply(EngineUp({"m": 2}))) == [1]
