import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from magnitude.schedule.admission import (
    RUN_PLACES,
    Admission,
    CleanSlot,
    Dropped,
    Effect,
    Ended,
    EngineDown,
    EngineUp,
    Interrupt,
    Lost,
    Reject,
    SlotCleaned,
    Start,
    Submit,
    Withdraw,
)


def up(slots: int = 2, max_queue: int = 4) -> Admission:
    admission = Admission(max_queue=max_queue)
    admission.apply(EngineUp({"m": slots}), 0.0)
    return admission


def starts(effects: list[Effect]) -> list[int]:
    return [effect.request_id for effect in effects if isinstance(effect, Start)]


def test_generations_start_at_once_while_slots_are_free() -> None:
    admission = up(slots=2)
    first = admission.apply(Submit(1, "generation", "m"), 0.0)
    second = admission.apply(Submit(2, "generation", "m"), 0.0)
    assert [first, second] == [[Start(1, 0, 0.0)], [Start(2, 1, 0.0)]]


def test_a_freed_slot_goes_to_the_one_who_waited_longest_and_its_wait_is_counted() -> None:
    admission = up(slots=1)
    admission.apply(Submit(1, "generation", "m"), 0.0)
    admission.apply(Submit(2, "generation", "m"), 1.0)
    admission.apply(Submit(3, "generation", "m"), 2.0)
    assert admission.apply(Ended(1), 5.0) == [Start(2, 0, 4.0)]


def test_a_full_queue_rejects_the_newcomer_and_keeps_the_others() -> None:
    admission = up(slots=1, max_queue=1)
    admission.apply(Submit(1, "generation", "m"), 0.0)
    admission.apply(Submit(2, "generation", "m"), 0.0)
    assert admission.apply(Submit(3, "generation", "m"), 0.0) == [Reject(3, 1)]
    assert starts(admission.apply(Ended(1), 0.0)) == [2]


def test_no_queue_at_all_still_serves_what_can_start_at_once() -> None:
    admission = up(slots=1, max_queue=0)
    assert starts(admission.apply(Submit(1, "generation", "m"), 0.0)) == [1]
    assert admission.apply(Submit(2, "generation", "m"), 0.0) == [Reject(2, 0)]


def test_waiting_generations_do_not_hold_up_embeddings() -> None:
    admission = up(slots=1)
    admission.apply(Submit(1, "generation", "m"), 0.0)
    admission.apply(Submit(2, "generation", "m"), 0.0)
    assert admission.apply(Submit(3, "run", "e"), 0.0) == [Start(3, None, 0.0)]


def test_a_flood_of_embeddings_leaves_most_of_them_waiting_here() -> None:
    admission = up(max_queue=100)
    effects = [effect for i in range(20) for effect in admission.apply(Submit(i, "run", "e"), 0.0)]
    assert starts(effects) == list(range(RUN_PLACES))


def test_withdrawing_a_running_request_interrupts_it_once_and_frees_its_slot_at_its_end() -> None:
    admission = up(slots=1)
    admission.apply(Submit(1, "generation", "m"), 0.0)
    assert admission.apply(Withdraw(1), 1.0) == [Interrupt(1)]
    assert admission.apply(Withdraw(1), 1.0) == []
    assert admission.free_slots("m") == 0
    assert admission.apply(Ended(1), 2.0) == [CleanSlot("m", 0)]
    assert admission.apply(Ended(1), 2.0) == []
    admission.apply(SlotCleaned("m", 0), 2.1)
    assert admission.free_slots("m") == 1


def test_withdrawing_a_waiting_request_takes_it_out_of_the_queue() -> None:
    admission = up(slots=1)
    admission.apply(Submit(1, "generation", "m"), 0.0)
    admission.apply(Submit(2, "generation", "m"), 0.0)
    assert admission.apply(Withdraw(2), 1.0) == [Dropped(2)]
    assert admission.apply(Ended(1), 2.0) == [CleanSlot("m", 0)]


def test_an_engine_that_dies_loses_what_ran_and_keeps_what_waits() -> None:
    admission = up(slots=1)
    admission.apply(Submit(1, "generation", "m"), 0.0)
    admission.apply(Submit(2, "generation", "m"), 0.0)
    assert admission.apply(EngineDown(), 1.0) == [Lost(1), CleanSlot("m", 0)]
    assert admission.apply(SlotCleaned("m", 0), 1.1) == []
    assert admission.apply(EngineUp({"m": 1}), 3.0) == [Start(2, 0, 3.0)]


def test_a_slot_is_not_used_while_its_memory_is_given_back() -> None:
    admission = up(slots=1)
    admission.apply(Submit(1, "generation", "m"), 0.0)
    assert admission.apply(Ended(1), 1.0) == [CleanSlot("m", 0)]
    assert admission.apply(Submit(2, "generation", "m"), 1.0) == []
    assert admission.apply(SlotCleaned("m", 0), 1.2) == [Start(2, 0, pytest.approx(0.2))]


def test_a_slot_that_is_given_back_slowly_is_not_used_by_the_next_engine_either() -> None:
    admission = up(slots=1)
    admission.apply(Submit(1, "generation", "m"), 0.0)
    admission.apply(Submit(2, "generation", "m"), 0.0)
    admission.apply(EngineDown(), 1.0)
    assert admission.apply(EngineUp({"m": 1}), 2.0) == []
    assert admission.apply(SlotCleaned("m", 0), 3.0) == [Start(2, 0, 3.0)]


class AdmissionMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: slots are never shared or lost, and every request ends once."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(max_queue=3)
        self.next_id = 0
        self.now_s = 0.0
        self.engine_slots = 0
        self.slot_of: dict[int, int | None] = {}
        self.cleaning: set[int] = set()
        self.interrupted: set[int] = set()
        self.ended: set[int] = set()

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(request_id, slot, waited_s):
                    assert waited_s >= 0
                    assert request_id not in self.ended | set(self.slot_of)
                    assert slot is None or slot not in {*self.slot_of.values(), *self.cleaning}
                    self.slot_of[request_id] = slot
                case Reject(request_id) | Dropped(request_id):
                    assert request_id not in self.slot_of
                    self.end(request_id)
                case Lost(request_id):
                    del self.slot_of[request_id]
                    self.end(request_id)
                case Interrupt(request_id):
                    assert request_id in self.slot_of and request_id not in self.interrupted
                    self.interrupted.add(request_id)
                case CleanSlot(_, slot):
                    assert slot not in self.slot_of.values() and slot not in self.cleaning
                    self.cleaning.add(slot)

    def end(self, request_id: int) -> None:
        assert request_id not in self.ended
        self.ended.add(request_id)

    @rule(target=requests, lane=st.sampled_from(["generation", "run"]))
    def submit(self, lane: str) -> int:
        self.next_id += 1
        self.take(self.admission.apply(Submit(self.next_id, lane, "m"), self.now_s))  # type: ignore[arg-type]
        return self.next_id

    @rule(request=requests)
    def withdraw(self, request: int) -> None:
        self.take(self.admission.apply(Withdraw(request), self.now_s))

    @rule(request=consumes(requests))
    def finish(self, request: int) -> None:
        if request in self.slot_of:
            del self.slot_of[request]
            self.end(request)
            self.take(self.admission.apply(Ended(request), self.now_s))

    @precondition(lambda self: self.cleaning)
    @rule(data=st.data())
    def cleaned(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.cleaning)))
        self.cleaning.remove(slot)
        self.take(self.admission.apply(SlotCleaned("m", slot), self.now_s))

    @rule()
    def engine_up(self) -> None:
        if not self.engine_slots:
            self.engine_slots = 2
            self.take(self.admission.apply(EngineUp({"m": 2}), self.now_s))

    @rule()
    def engine_down(self) -> None:
        self.engine_slots = 0
        self.take(self.admission.apply(EngineDown(), self.now_s))

    @rule(step_s=st.floats(0, 100))
    def pass_time(self, step_s: float) -> None:
        self.now_s += step_s

    @invariant()
    def every_slot_is_free_or_held(self) -> None:
        held = [slot for slot in self.slot_of.values() if slot is not None]
        cleaning = len(self.cleaning) if self.engine_slots else 0
        assert len(held) + cleaning + self.admission.free_slots("m") == self.engine_slots
        assert self.admission.running == len(self.slot_of)

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        known = self.next_id - len(self.ended) - len(self.slot_of)
        assert self.admission.waiting == known


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(0, 8), st.integers(1, 4), st.integers(0, 20))
def test_what_is_accepted_is_at_most_slots_and_queue(max_queue: int, slots: int, requests: int) -> None:
    admission = up(slots=slots, max_queue=max_queue)
    effects = [e for i in range(requests) for e in admission.apply(Submit(i, "generation", "m"), 0.0)]
    rejected = sum(isinstance(effect, Reject) for effect in effects)
    assert requests - rejected == min(requests, slots + max_queue)
