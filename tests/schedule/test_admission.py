"""Who starts, who waits, who is refused: facts about single decisions. Properties: `test_admission_properties.py`."""

import pytest
from admission_bench import Bench, Slots, pauses, starts

from magnitude.schedule.admission import PAUSE_INTERVAL_S, RUN_PLACES, Admission
from magnitude.schedule.events import (
    Dropped,
    Ended,
    EngineDown,
    EngineUp,
    Interrupt,
    Lost,
    Pause,
    Paused,
    PlacesChanged,
    Proved,
    Reject,
    SetComputeSlots,
    Start,
    Submit,
    Tick,
    Withdraw,
)
from magnitude.schedule.inference import Deadline


def test_generations_start_at_once_while_compute_slots_are_free() -> None:
    bench = Bench(slots=2)
    assert [bench.submit(1), bench.submit(2), bench.submit(3)] == [[Start(1, 0, 0.0)], [Start(2, 1, 0.0)], []]


def test_a_freed_slot_goes_to_the_one_who_waited_longest_and_its_wait_is_counted() -> None:
    bench = Bench(slots=1)
    bench.submit(1)
    bench.submit(2, after_s=1.0)
    bench.submit(3, after_s=1.0)
    assert bench.end(1, after_s=3.0) == [Start(2, 0, 4.0)]


def test_without_an_engine_requests_wait_and_start_when_it_comes_up() -> None:
    admission = Admission(max_queue=4, places=Slots())
    assert admission.apply(Submit(1, "generation", "m"), 0.0) == []
    assert admission.apply(EngineUp({"m": 1}), 2.0) == [Start(1, 0, 2.0)]


def test_waiting_generations_do_not_hold_up_embeddings() -> None:
    bench = Bench(slots=1)
    bench.submit(1)
    bench.submit(2)
    assert bench.submit(3, lane="run", model="e") == [Start(3, None, 0.0)]


def test_models_do_not_hold_up_each_other() -> None:
    bench = Bench(slots=1)
    bench.apply(EngineUp({"m": 1, "n": 1}))
    bench.submit(1)
    bench.submit(2)
    assert starts(bench.submit(3, model="n")) == [3]


def test_a_flood_of_embeddings_leaves_most_of_them_waiting_here() -> None:
    bench = Bench()
    effects = [effect for i in range(20) for effect in bench.submit(i, lane="run", model="e")]
    assert starts(effects) == list(range(RUN_PLACES))


def test_withdrawing_a_running_request_interrupts_it_once_and_its_slot_comes_free_at_its_end() -> None:
    bench = Bench(slots=1)
    bench.submit(1)
    assert bench.apply(Withdraw(1)) == [Interrupt(1)]
    assert bench.apply(Withdraw(1)) == []
    assert bench.admission.free_slots("m") == 0
    assert bench.end(1) == []
    assert bench.admission.free_slots("m") == 1


def test_withdrawing_a_waiting_request_takes_it_out_of_the_queue() -> None:
    bench = Bench(slots=1)
    bench.submit(1)
    bench.submit(2)
    assert bench.apply(Withdraw(2)) == [Dropped(2)]
    assert bench.end(1) == []


def test_what_ran_in_an_engine_that_dies_goes_on_with_the_next_one_before_what_waits() -> None:
    bench = Bench(slots=1)
    bench.submit(1)
    bench.submit(2)
    assert bench.apply(EngineDown(), after_s=1.0) == [Lost(1)]
    assert bench.submit(3) == []
    effects = bench.apply(EngineUp({"m": 2}), after_s=2.0)
    assert starts(effects) == [1, 2]
    assert isinstance(effects[0], Start) and effects[0].resumed


def test_what_was_asked_to_stop_ends_with_its_engine() -> None:
    bench = Bench(slots=2)
    bench.submit(1)
    bench.submit(2, deadline=Deadline(at_s=1.0, hard=True))
    bench.apply(Withdraw(1))
    bench.apply(Tick(), after_s=2.0)
    assert bench.apply(EngineDown()) == [Dropped(1), Dropped(2)]
    assert bench.apply(EngineUp({"m": 2})) == []


def test_suspects_go_on_one_after_the_other_and_everybody_else_after_them() -> None:
    bench = Bench(slots=3)
    for request_id in (1, 2, 3):
        bench.submit(request_id)
    bench.apply(EngineDown(frozenset({1, 3})))
    assert starts(bench.apply(EngineUp({"m": 3}))) == [1]
    assert bench.submit(4) == []
    assert starts(bench.apply(Proved(1))) == [3]  # beside one that has proved itself
    assert starts(bench.apply(Proved(3))) == [2]
    assert starts(bench.end(3)) == [4]


def test_a_suspect_whose_model_is_not_loaded_holds_nobody_back() -> None:
    bench = Bench(slots=2)
    bench.submit(1)
    bench.submit(2)
    bench.places.absent.add("m")
    bench.apply(EngineDown(frozenset({1})))
    bench.apply(EngineUp({"m": 2, "n": 1}))
    assert starts(bench.submit(3, model="n")) == [3]
    bench.places.absent.clear()
    assert bench.apply(PlacesChanged()) == []
    assert starts(bench.end(3)) == [1]


def test_fewer_compute_slots_interrupt_nobody_and_hold_back_the_next() -> None:
    bench = Bench(slots=2)
    for request_id in (1, 2, 3):
        bench.submit(request_id)
    assert bench.apply(SetComputeSlots("m", 1)) == []
    assert bench.end(1) == []
    assert starts(bench.end(2)) == [3]


def test_more_compute_slots_start_who_waits() -> None:
    bench = Bench(slots=1)
    bench.submit(1)
    bench.submit(2)
    assert starts(bench.apply(SetComputeSlots("m", 2))) == [2]


def test_a_request_without_a_kv_slot_waits_until_places_change() -> None:
    bench = Bench(slots=4, kv_slots=1)
    bench.submit(1)
    assert bench.submit(2) == []
    bench.places.count = 2
    assert bench.apply(PlacesChanged()) == [Start(2, 1, 0.0)]


class Memory:
    """`Places` of different sizes: `needs` by request, out of `total`."""

    def __init__(self, total: int, needs: dict[int, int]) -> None:
        self.total, self.needs = total, needs
        self.held: set[int] = set()

    def ready(self, model: str, *, begun: bool) -> bool:
        return True

    def place(self, request_id: int, now_s: float) -> int | None:
        if sum(self.needs[held] for held in self.held | {request_id}) > self.total:
            return None
        self.held.add(request_id)
        return request_id


def test_small_requests_do_not_take_what_an_overdue_large_one_needs_for_ever() -> None:
    large = 2
    places = Memory(4, {large: 4} | {request_id: 2 for request_id in range(1, 50) if request_id != large})
    admission = Admission(max_queue=100, places=places, aging_s=1.0)
    admission.apply(EngineUp({"m": 4}), 0.0)
    running = []
    for request_id in (1, large, 3):
        running += starts(admission.apply(Submit(request_id, "generation", "m", client=f"{request_id}"), 0.0))
    now_s = 0.0
    while large not in running and now_s < 40.0:
        now_s += 1.0
        newcomer = 3 + int(now_s)
        running += starts(admission.apply(Submit(newcomer, "generation", "m", client=f"{newcomer}"), now_s))
        places.held.discard(running[0])
        running += starts(admission.apply(Ended(running.pop(0)), now_s))
    assert 6.0 <= now_s <= 8.0


# --- classes and aging ---


def test_classes_go_before_arrival() -> None:
    bench = Bench(slots=1)
    bench.submit(0)
    bench.submit(1, priority="background")
    bench.submit(2, priority="normal")
    bench.submit(3, priority="interactive")
    assert bench.order_of_starts() == [3, 2, 1]


def test_waiting_lifts_a_request_into_higher_classes() -> None:
    bench = Bench(slots=1, aging_s=10.0)
    bench.submit(0)
    bench.submit(1, priority="background", client="a")
    bench.submit(2, after_s=10.0, priority="normal", client="b")
    assert starts(bench.end(0)) == [1]


def test_the_backlog_of_a_client_that_is_being_served_does_not_age() -> None:
    bench = Bench(slots=1, aging_s=10.0)
    for request_id in range(10):
        bench.submit(request_id, client="busy", max_new_tokens=100)
    for request_id in range(4):
        bench.end(request_id, after_s=9.0, new_tokens=100)
    bench.submit(99, client="other", max_new_tokens=100)
    assert starts(bench.end(4, after_s=9.0, new_tokens=100)) == [99]


def test_one_that_was_passed_over_for_too_long_goes_before_everybody() -> None:
    bench = Bench(slots=1, aging_s=10.0)
    bench.submit(0, client="busy", max_new_tokens=1000)
    bench.submit(1, client="busy", priority="background")
    bench.submit(2, after_s=59.0, client="b", priority="interactive")
    bench.submit(3, client="c", priority="interactive")
    assert starts(bench.end(0, new_tokens=1000)) == [2]
    assert starts(bench.end(2, after_s=1.0)) == [1]


# --- fair shares ---


def test_a_client_with_many_requests_does_not_hold_up_one_with_few() -> None:
    bench = Bench(slots=1)
    for request_id in range(10):
        bench.submit(request_id, client="many", max_new_tokens=50)
    for request_id in (10, 11):
        bench.submit(request_id, client="few", max_new_tokens=50)
    order = []
    while bench.running:
        order += starts(bench.end(bench.running[0], new_tokens=50))
    assert order[:4] == [10, 1, 11, 2]


def test_shares_are_counted_in_work_not_in_requests() -> None:
    bench = Bench(slots=1)
    bench.submit(0)
    for request_id in range(10, 20):
        bench.submit(request_id, client="long", max_new_tokens=300)
    for request_id in range(20, 40):
        bench.submit(request_id, client="short", max_new_tokens=100)
    order = []
    while bench.running:
        request_id = bench.running[0]
        order += starts(bench.end(request_id, new_tokens=300 if request_id < 20 else 100))
    first = order[:12]
    assert (sum(i < 20 for i in first), sum(i >= 20 for i in first)) == (3, 9)


def test_an_answer_shorter_than_allowed_costs_its_client_only_what_it_was() -> None:
    bench = Bench(slots=1)
    bench.submit(1, client="a", max_new_tokens=1000)
    bench.submit(2, client="b", max_new_tokens=100)
    bench.submit(3, client="a", max_new_tokens=100)
    bench.submit(4, client="b", max_new_tokens=100)
    assert starts(bench.end(1, new_tokens=10)) == [2]
    assert starts(bench.end(2, new_tokens=100)) == [3]


# --- the bounded queue ---


def test_a_full_queue_rejects_the_newcomer_and_keeps_the_others() -> None:
    bench = Bench(slots=1, max_queue=1)
    bench.submit(1)
    bench.submit(2)
    assert bench.submit(3) == [Reject(3, 1, 2, 1.0)]
    assert starts(bench.end(1)) == [2]


def test_no_queue_at_all_still_serves_what_can_start_at_once() -> None:
    bench = Bench(slots=1, max_queue=0)
    assert starts(bench.submit(1)) == [1]
    assert bench.submit(2) == [Reject(2, 0, 1, 1.0)]


def test_a_full_queue_gives_the_newest_background_request_up_for_a_higher_class() -> None:
    bench = Bench(slots=1, max_queue=3)
    bench.submit(1)
    bench.submit(2, priority="background")
    bench.submit(3, priority="background")
    bench.submit(4, priority="interactive")
    effects = bench.submit(5, priority="normal")
    assert [effect.request_id for effect in effects if isinstance(effect, Reject)] == [3]
    assert bench.order_of_starts() == [4, 5, 2]


@pytest.mark.parametrize("priority", ["interactive", "normal"])
def test_accepted_requests_of_the_higher_classes_are_never_given_up(priority: str) -> None:
    bench = Bench(slots=1, max_queue=1)
    bench.submit(1)
    bench.submit(2, priority=priority)
    effects = bench.submit(3, priority="interactive")
    assert [effect.request_id for effect in effects if isinstance(effect, Reject)] == [3]


def test_a_background_request_that_aged_is_not_given_up() -> None:
    bench = Bench(slots=1, max_queue=1, aging_s=10.0)
    bench.submit(1)
    bench.submit(2, priority="background")
    effects = bench.submit(3, after_s=10.0, priority="interactive")
    assert [effect.request_id for effect in effects if isinstance(effect, Reject)] == [3]


def test_a_rejected_request_is_told_to_return_when_those_before_it_were_served() -> None:
    bench = Bench(slots=2, max_queue=3)
    bench.submit(1)
    bench.end(1, after_s=8.0)  # a request takes 8 s
    for request_id in (2, 3, 4, 5, 6):
        bench.submit(request_id)
    # Two slots end at 8 s, at 16 s, ...: number four in line starts with the second pair.
    assert bench.submit(7) == [Reject(7, 3, 4, 16.0)]
    assert bench.submit(8, after_s=3.0) == [Reject(8, 3, 4, 13.0)]


# --- preemption ---


def busy_with_background(**options: int) -> Bench:
    bench = Bench(slots=2, **options)
    bench.submit(1, priority="background")
    bench.submit(2, after_s=1.0, priority="background")
    bench.now_s += PAUSE_INTERVAL_S
    return bench


def test_an_interactive_request_pauses_the_background_generation_that_ran_longest() -> None:
    bench = busy_with_background()
    assert bench.submit(3, priority="interactive") == [Pause(1)]
    assert bench.apply(Paused(1)) == [Start(3, 2, 0.0)]


def test_a_paused_generation_goes_on_before_others_of_its_class_and_in_its_own_place() -> None:
    bench = busy_with_background()
    bench.submit(3, priority="background")
    bench.submit(4, priority="interactive")
    bench.running.remove(1)
    bench.apply(Paused(1))
    assert bench.end(4, after_s=2.0) == [Start(1, 0, 2.0, resumed=True)]


def test_only_as_many_are_paused_as_wait() -> None:
    bench = busy_with_background()
    assert pauses(bench.submit(3, priority="interactive")) == [1]
    assert bench.apply(Tick()) == []
    assert pauses(bench.submit(4, priority="interactive")) == [2]
    assert pauses(bench.submit(5, priority="interactive")) == []


@pytest.mark.parametrize("priority", ["normal", "background"])
def test_other_classes_pause_nobody(priority: str) -> None:
    assert busy_with_background().submit(3, priority=priority) == []


def test_a_normal_generation_is_not_paused() -> None:
    bench = Bench(slots=1)
    bench.submit(1)
    assert bench.submit(2, after_s=60.0, priority="interactive") == []


def test_a_generation_runs_for_a_while_before_it_is_paused() -> None:
    bench = Bench(slots=1)
    bench.submit(1, priority="background")
    assert bench.submit(2, after_s=1.0, priority="interactive") == []
    assert bench.admission.next_wake_s(bench.now_s) == PAUSE_INTERVAL_S
    assert bench.apply(Tick(), after_s=PAUSE_INTERVAL_S - 1.0) == [Pause(1)]


def test_a_slot_that_comes_free_anyway_is_waited_for() -> None:
    bench = busy_with_background()
    bench.apply(Withdraw(2))
    assert bench.submit(3, priority="interactive") == []


def test_nobody_is_paused_for_one_that_lacks_a_kv_slot() -> None:
    bench = Bench(slots=2, kv_slots=2)
    bench.submit(1, priority="background")
    bench.submit(2, priority="background")
    bench.submit(3, after_s=PAUSE_INTERVAL_S, priority="interactive")
    bench.running.remove(1)
    assert bench.apply(Paused(1)) == [Start(1, 0, 0.0, resumed=True)]
    assert bench.apply(Tick(), after_s=PAUSE_INTERVAL_S) == []
    bench.places.count = 3
    assert pauses(bench.apply(PlacesChanged())) == [2]


def test_when_compute_slots_became_fewer_as_many_more_are_paused() -> None:
    bench = busy_with_background()
    bench.apply(SetComputeSlots("m", 1))
    assert pauses(bench.submit(3, priority="interactive")) == [1, 2]


def test_without_any_compute_slot_nobody_is_paused() -> None:
    bench = busy_with_background()
    bench.apply(SetComputeSlots("m", 0))
    assert bench.submit(3, priority="interactive") == []


def test_a_generation_that_was_withdrawn_while_it_was_paused_is_dropped_at_the_confirmation() -> None:
    bench = busy_with_background()
    bench.submit(3, priority="interactive")
    assert bench.apply(Withdraw(1)) == [Interrupt(1)]
    assert bench.apply(Paused(1)) == [Dropped(1), Start(3, 2, 0.0)]


def test_a_paused_generation_survives_the_engine() -> None:
    bench = busy_with_background()
    bench.submit(3, priority="interactive")
    bench.apply(Paused(1))
    assert bench.apply(EngineDown()) == [Lost(2), Lost(3)]
    assert bench.apply(EngineUp({"m": 1})) == [Start(3, 2, 0.0, resumed=True)]
    assert starts(bench.apply(SetComputeSlots("m", 3))) == [1, 2]


def test_a_generation_that_ends_before_its_pause_simply_ends() -> None:
    bench = busy_with_background()
    bench.submit(3, priority="interactive")
    assert starts(bench.end(1)) == [3]
    assert bench.apply(Paused(1)) == []


# --- conversations ---


def converse(bench: Bench, request_id: int, name: str, *, compute_s: float = 1.0) -> None:
    bench.submit(request_id, conversation=name)
    bench.end(request_id, after_s=compute_s)


def test_while_too_many_conversations_are_alive_those_under_way_go_first() -> None:
    bench = Bench(slots=1)
    converse(bench, 1, "a")
    converse(bench, 2, "b")
    bench.submit(3)
    bench.submit(4, conversation="new")
    bench.submit(5, conversation="a")
    assert starts(bench.end(3)) == [5]


def test_conversations_under_way_do_not_keep_a_new_one_out_for_ever() -> None:
    bench = Bench(slots=1, aging_s=1.0)
    for name in "abc":
        converse(bench, ord(name), name)
    bench.submit(1, conversation="a")
    bench.submit(2, conversation="new")
    bench.submit(3, conversation="b")
    started_at_s = {}
    for request_id in range(4, 40):
        for started in starts(bench.end(bench.running[0], after_s=1.0)):
            started_at_s[started] = bench.now_s
        bench.submit(request_id, conversation="abc"[request_id % 3])
    assert 6.0 <= started_at_s[2] <= 12.0


def test_with_room_for_more_conversations_a_new_one_keeps_its_turn() -> None:
    bench = Bench(slots=1)
    for turn in range(5):
        converse(bench, turn, "a")
        bench.now_s += 99.0  # waits: the slot could carry a hundred such conversations
    bench.submit(10)
    bench.submit(11, conversation="new")
    bench.submit(12, conversation="a")
    assert starts(bench.end(10)) == [11]


def test_the_state_shows_segments_and_capacity() -> None:
    bench = Bench(slots=2, utilisation=0.7)
    for turn in range(4):
        converse(bench, turn, "a")
        bench.now_s += 3.0
    figures = bench.admission.figures(bench.now_s)[0]
    assert (figures.name, figures.compute_slots, figures.running) == ("m", 2, 0)
    assert figures.segments[0].compute_s == pytest.approx(1.0)
    assert figures.segments[0].wait_s == pytest.approx(3.0)
    assert figures.capacity.conversations == pytest.approx(8.0)
    assert figures.capacity.limit == pytest.approx(5.6)
