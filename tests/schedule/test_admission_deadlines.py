"""Deadlines and reservations: what admission does when time passes."""

import pytest
from admission_bench import Bench, expiries, hard, soft, starts

from magnitude.schedule.events import (
    Dropped,
    EngineDown,
    EngineUp,
    Expire,
    Interrupt,
    Paused,
    Reserve,
    SetComputeSlots,
    Start,
    Tick,
    Withdraw,
)
from magnitude.schedule.rates import LEAST_NEW_TOKENS
from magnitude.schedule.reservations import LONGEST_HOLD_S


def test_the_earliest_deadline_goes_first_among_equals() -> None:
    bench = Bench(slots=1)
    bench.submit(0)
    bench.submit(1)
    bench.submit(2, deadline=hard(30.0))
    bench.submit(3, deadline=hard(20.0))
    assert bench.order_of_starts() == [3, 2, 1]


def test_a_stream_of_deadlines_does_not_pass_other_requests_for_ever() -> None:
    bench = Bench(slots=1, aging_s=1.0)
    bench.submit(0)
    bench.submit(1)
    for request_id in range(2, 20):
        bench.submit(request_id, deadline=hard(bench.now_s + 1.5))
        started = starts(bench.end(bench.running[0], after_s=1.0))
        if started == [1]:
            break
    assert bench.now_s <= 7.0


def test_a_request_that_waits_past_its_hard_deadline_leaves_the_queue() -> None:
    bench = Bench(slots=1)
    bench.submit(1)
    bench.submit(2, deadline=hard(5.0))
    assert bench.admission.next_wake_s(bench.now_s) == 5.0
    assert bench.apply(Tick(), after_s=5.0) == [Expire(2, running=False, hard=True)]
    assert bench.admission.waiting == 0


def test_a_request_that_runs_past_its_hard_deadline_is_interrupted_once() -> None:
    bench = Bench(slots=1)
    bench.submit(1, deadline=hard(5.0))
    assert bench.apply(Tick(), after_s=5.0) == [Expire(1, running=True, hard=True), Interrupt(1)]
    assert bench.apply(Tick(), after_s=1.0) == []
    assert bench.apply(Withdraw(1)) == []
    assert bench.admission.next_wake_s(bench.now_s) is None
    assert bench.end(1) == []


def test_a_deadline_that_passed_before_the_request_came_starts_nothing() -> None:
    bench = Bench(slots=1)
    assert bench.submit(1, after_s=2.0, deadline=hard(1.0)) == [Expire(1, running=False, hard=True)]
    assert bench.admission.running == 0


def test_deadlines_pass_while_the_engine_is_down() -> None:
    bench = Bench(slots=1)
    bench.apply(EngineDown())
    bench.submit(1, deadline=hard(5.0))
    assert bench.admission.next_wake_s(bench.now_s) == 5.0
    assert bench.apply(EngineUp({"m": 1}), after_s=6.0) == [Expire(1, running=False, hard=True)]


def test_a_request_that_ends_when_its_deadline_passes_was_in_time() -> None:
    bench = Bench(slots=1)
    bench.submit(1, deadline=hard(5.0))
    assert bench.end(1, after_s=5.1) == []


def measured(bench: Bench) -> Bench:
    """10 tokens a second after a prefill of 100 tokens a second."""
    bench.submit(1000)
    bench.end(1000, new_tokens=101, decode_s=10.0, prefill_tokens=100, prefill_s=1.0)
    return bench


def test_an_answer_is_cut_to_what_fits_before_its_soft_deadline() -> None:
    bench = measured(Bench(slots=1))
    effects = bench.submit(1, tokens=200, max_new_tokens=256, deadline=soft(10.0))
    assert effects == [Start(1, 0, 0.0, max_new_tokens=80)]


def test_an_answer_that_fits_before_its_soft_deadline_is_not_cut() -> None:
    bench = measured(Bench(slots=1))
    assert bench.submit(1, tokens=200, max_new_tokens=50, deadline=soft(10.0)) == [Start(1, 0, 0.0)]


def test_waiting_shortens_the_answer_further() -> None:
    bench = measured(Bench(slots=1))
    bench.submit(1)
    bench.submit(2, max_new_tokens=256, deadline=soft(10.0))
    assert bench.end(1, after_s=6.0) == [Start(2, 0, 6.0, max_new_tokens=40)]


def test_an_answer_that_runs_past_its_soft_deadline_is_ended_once() -> None:
    bench = Bench(slots=1)
    bench.submit(1, max_new_tokens=256, deadline=soft(10.0))
    assert bench.apply(Tick(), after_s=10.0) == [Expire(1, running=True, hard=False)]
    assert bench.apply(Tick(), after_s=1.0) == []
    assert bench.apply(Withdraw(1)) == [Interrupt(1)]


def test_a_soft_deadline_that_left_no_time_gives_a_short_answer_late() -> None:
    bench = measured(Bench(slots=1))
    bench.submit(1)
    bench.submit(2, max_new_tokens=256, deadline=soft(5.0))
    assert bench.end(1, after_s=6.0) == [Start(2, 0, 6.0, max_new_tokens=LEAST_NEW_TOKENS)]
    assert bench.admission.next_wake_s(bench.now_s) is None
    assert bench.apply(Tick(), after_s=1.0) == []


@pytest.mark.parametrize("deadline", [soft(1.0, "model"), soft(-1.0, "model")])
def test_a_soft_deadline_that_may_not_cut_tokens_cuts_nothing(deadline: object) -> None:
    bench = measured(Bench(slots=1))
    assert bench.submit(1, max_new_tokens=256, deadline=deadline) == [Start(1, 0, 0.0)]
    assert bench.apply(Tick(), after_s=100.0) == []


def test_a_hard_deadline_cuts_nothing() -> None:
    bench = measured(Bench(slots=1))
    assert bench.submit(1, max_new_tokens=256, deadline=hard(5.0)) == [Start(1, 0, 0.0)]


@pytest.mark.parametrize(("deadline", "is_hard"), [(hard(8.0), True), (soft(8.0), False)])
def test_a_deadline_that_passes_in_a_pause_ends_the_answer_with_what_there_is(
    deadline: object, is_hard: bool
) -> None:
    bench = Bench(slots=1)
    bench.submit(1, priority="background", deadline=deadline)
    bench.submit(2, after_s=6.0, priority="interactive")
    bench.apply(Paused(1))
    assert bench.apply(Tick(), after_s=2.0) == [Expire(1, running=False, hard=is_hard)]
    assert bench.apply(Withdraw(1)) == []


def test_a_pause_that_comes_after_the_soft_deadline_drops_the_generation() -> None:
    bench = Bench(slots=1)
    bench.submit(1, priority="background", deadline=soft(8.0))
    bench.submit(2, after_s=6.0, priority="interactive")
    assert bench.apply(Tick(), after_s=2.0) == [Expire(1, running=True, hard=False)]
    assert bench.apply(Paused(1)) == [Dropped(1), Start(2, 1, 2.0)]


def test_a_clock_that_goes_back_expires_nobody_and_gives_no_negative_wait() -> None:
    bench = Bench(slots=1)
    bench.now_s = 1000.0
    bench.submit(1)
    bench.submit(2, deadline=hard(1030.0))
    assert bench.apply(Tick(), after_s=-900.0) == []
    assert bench.admission.next_wake_s(bench.now_s) == 1030.0
    assert bench.end(1) == [Start(2, 0, 0.0)]
    assert bench.apply(Tick(), after_s=929.0) == []
    assert expiries(bench.apply(Tick(), after_s=1.0)) == [Expire(2, running=True, hard=True)]


# --- reservations ---


def test_a_reserved_slot_is_left_free_for_the_client_that_announced_itself() -> None:
    bench = Bench(slots=2)
    bench.apply(Reserve("agent", 1, hold_s=10.0))
    bench.submit(1, client="other")
    assert bench.submit(2, client="other") == []
    assert starts(bench.submit(3, client="agent")) == [3]


def test_a_used_reservation_is_gone() -> None:
    bench = Bench(slots=2)
    bench.apply(Reserve("agent", 1, hold_s=10.0))
    bench.submit(1, client="agent")
    bench.end(1)
    bench.submit(2, client="other")
    assert starts(bench.submit(3, client="other")) == [3]


def test_a_reservation_ends_with_its_time() -> None:
    bench = Bench(slots=2)
    bench.apply(Reserve("agent", 1, hold_s=8.0))
    bench.submit(1, client="other")
    bench.submit(2, client="other")
    assert bench.admission.next_wake_s(bench.now_s) == 8.0
    assert starts(bench.apply(Tick(), after_s=8.0)) == [2]


def test_a_higher_class_is_not_held_back_by_a_reservation() -> None:
    bench = Bench(slots=2)
    bench.apply(Reserve("agent", 1, hold_s=10.0, priority="normal"))
    bench.submit(1, client="other")
    assert starts(bench.submit(2, client="other", priority="interactive")) == [2]


def test_all_reservations_together_leave_one_slot_to_everybody() -> None:
    bench = Bench(slots=3)
    bench.apply(Reserve("a", 5, hold_s=10.0))
    bench.apply(Reserve("b", 5, hold_s=10.0))
    assert [(r.client, r.requests) for r in bench.admission.figures(0.0)[0].reservations] == [("a", 2)]
    assert starts(bench.submit(1, client="c")) == [1]
    bench.end(1)
    bench.apply(SetComputeSlots("m", 1))
    assert starts(bench.submit(2, client="c")) == [2]


def test_nobody_holds_slots_for_longer_than_the_limit() -> None:
    bench = Bench(slots=2)
    bench.apply(Reserve("agent", 1, hold_s=1e9))
    assert bench.admission.figures(0.0)[0].reservations[0].until_s == LONGEST_HOLD_S


def reservations(bench: Bench) -> list[tuple[str, int, float]]:
    bench.apply(Tick())
    return [(r.client, r.requests, r.until_s) for r in bench.admission.figures(bench.now_s)[0].reservations]


def test_announcing_again_and_again_without_a_request_holds_no_slot_for_longer() -> None:
    bench = Bench(slots=2)
    bench.apply(Reserve("agent", 1, hold_s=40.0))
    bench.apply(Reserve("agent", 1, hold_s=40.0), after_s=30.0)
    assert reservations(bench) == [("agent", 1, LONGEST_HOLD_S)]
    bench.apply(Reserve("agent", 1, hold_s=40.0), after_s=30.0)
    assert reservations(bench) == []
    bench.apply(Reserve("agent", 1, hold_s=40.0), after_s=LONGEST_HOLD_S)
    assert reservations(bench) == [("agent", 1, bench.now_s + 40.0)]


def test_a_request_renews_the_right_to_reserve() -> None:
    bench = Bench(slots=2)
    bench.apply(Reserve("agent", 1, hold_s=50.0))
    bench.submit(1, after_s=40.0, client="agent")
    bench.apply(Reserve("agent", 1, hold_s=50.0), after_s=1.0)
    assert reservations(bench) == [("agent", 1, 91.0)]


def test_a_client_can_learn_what_is_held_for_it_and_why_it_is_not_all() -> None:
    bench = Bench(slots=3)

    def reserve(client: str, requests: int, hold_s: float = 10.0, model: str = "m") -> tuple[int, float, str]:
        bench.apply(Reserve(client, requests, hold_s, model=model))
        hold = bench.admission.hold(client, model, bench.now_s)
        return hold.requests, hold.until_s, hold.reason

    few = "one compute slot is left to everybody"
    assert reserve("a", 1) == (1, 10.0, "")
    assert reserve("b", 5) == (1, 10.0, few)
    assert reserve("c", 1) == (0, 0.0, few)
    assert reserve("c", 1, model="x") == (0, 0.0, "the model is not loaded")
    assert reserve("a", 0) == (0, 0.0, "")
    assert reserve("a", 1, model="") == (1, 10.0, "")
    bench.now_s = 70.0
    assert reserve("a", 1) == (0, 70.0, "what was announced before did not come")


@pytest.mark.parametrize("hold_s", [0.0, -1.0, float("nan")])
def test_a_hold_that_is_no_time_holds_nothing(hold_s: float) -> None:
    bench = Bench(slots=2)
    bench.apply(Reserve("agent", 1, hold_s=hold_s))
    assert reservations(bench) == []


def test_a_reservation_can_be_taken_back() -> None:
    bench = Bench(slots=2)
    bench.apply(Reserve("agent", 1, hold_s=10.0))
    bench.submit(1, client="other")
    bench.submit(2, client="other")
    assert bench.apply(Reserve("agent", 0, hold_s=0.0)) == [Start(2, 1, 0.0)]


def test_expected_requests_are_reserved_when_the_announcing_one_ends() -> None:
    bench = Bench(slots=2)
    bench.submit(1, client="agent", expect=1)
    assert bench.admission.figures(0.0)[0].reservations == ()
    bench.end(1, after_s=1.0)
    bench.submit(2, client="other")
    assert bench.submit(3, client="other") == []
    assert starts(bench.submit(4, client="agent")) == [4]


def test_the_hold_of_expected_requests_follows_the_measured_waits() -> None:
    bench = Bench(slots=2)
    for request_id in range(3):
        bench.submit(request_id, client="agent", conversation="c", task="tool")
        bench.end(request_id, after_s=1.0)
        bench.now_s += 4.0
    bench.submit(9, client="agent", conversation="c", task="tool", expect=1)
    bench.end(9)
    assert bench.admission.figures(bench.now_s)[0].reservations[0].until_s == bench.now_s + 8.0


def test_one_that_is_overdue_is_not_held_back_by_reservations() -> None:
    bench = Bench(slots=2, aging_s=1.0)
    bench.submit(1, client="other")
    bench.apply(Reserve("agent", 1, hold_s=50.0, priority="interactive"))
    bench.submit(2, client="other")
    for _ in range(6):
        wake_s = bench.admission.next_wake_s(bench.now_s)
        assert wake_s is not None
        effects = bench.apply(Tick(), after_s=wake_s - bench.now_s)
    assert (starts(effects), bench.now_s) == ([2], 6.0)
