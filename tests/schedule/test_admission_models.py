"""Requests whose model is not in memory, or is to leave it."""

from admission_bench import Bench, pauses, starts

from magnitude.schedule.admission import PAUSE_INTERVAL_S, RUN_PLACES
from magnitude.schedule.events import Dropped, Paused, PlacesChanged, Reject, Start, Withdraw


def test_what_has_no_model_in_memory_waits_and_starts_when_it_is_there() -> None:
    bench = Bench()
    bench.places.absent = {"m", "e"}
    assert bench.submit(1) == []
    assert bench.submit(2, lane="run", model="e") == []
    bench.places.absent = {"e"}
    assert bench.apply(PlacesChanged(), after_s=2.0) == [Start(1, 0, 2.0)]
    bench.places.absent = set()
    assert bench.apply(PlacesChanged(), after_s=1.0) == [Start(2, None, 3.0)]


def test_runs_that_wait_for_their_model_hold_up_no_others() -> None:
    bench = Bench()
    bench.places.absent = {"e"}
    for request_id in range(RUN_PLACES + 1):
        assert bench.submit(request_id, lane="run", model="e") == []
    assert starts(bench.submit(10, lane="run", model="f")) == [10]
    assert starts(bench.submit(11, lane="run", model="f", after_s=1e6)) == [11]


def test_waiting_for_a_model_counts_against_the_queue_and_can_be_given_up() -> None:
    bench = Bench(max_queue=1)
    bench.places.absent = {"m"}
    bench.submit(1)
    assert isinstance(bench.submit(2)[0], Reject)
    assert bench.apply(Withdraw(1)) == [Dropped(1)]


def test_while_its_model_is_to_leave_what_was_begun_goes_on_and_nothing_is_paused_for_newcomers() -> None:
    bench = Bench(slots=1)
    bench.submit(1, priority="background")
    bench.now_s += PAUSE_INTERVAL_S
    assert pauses(bench.submit(2, priority="interactive")) == [1]
    bench.places.leaving = {"m"}
    assert bench.apply(Paused(1)) == [Start(1, 0, 0.0, resumed=True)]
    bench.now_s += PAUSE_INTERVAL_S
    assert bench.submit(3, priority="interactive") == []
    assert bench.end(1) == []
    bench.places.leaving = set()
    assert starts(bench.apply(PlacesChanged())) == [2]
