"""What holds whatever happens, in whatever order."""

from typing import Any

from admission_bench import Slots
from admission_simulation import Simulation
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnitude.schedule.admission import PAUSE_INTERVAL_S, RUN_PLACES, Admission
from magnitude.schedule.events import (
    Dropped,
    Effect,
    Ended,
    EngineDown,
    EngineUp,
    Event,
    Expire,
    Interrupt,
    LimitChanged,
    Lost,
    Pause,
    Paused,
    PlacesChanged,
    Proved,
    Reject,
    Reserve,
    SetComputeSlots,
    Start,
    Submit,
    Tick,
    Withdraw,
)
from magnitude.schedule.inference import Deadline
from magnitude.schedule.pool import OVERDUE_AGINGS

CLIENTS = st.sampled_from(["a", "b", "c"])
PRIORITIES = st.sampled_from(["interactive", "normal", "background"])
MODELS = st.sampled_from(["m", "n"])
MAX_QUEUE = 4
KV_SLOTS = 5
AGING_S = 3.0


class AdmissionMachine(RuleBasedStateMachine):
    """Nothing is lost, started twice or ended twice, no slot is shared or leaked, and none stands idle in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Slots(KV_SLOTS)
        self.admission = Admission(max_queue=MAX_QUEUE, places=self.places, aging_s=AGING_S)
        self.now_s = 0.0
        self.slots: dict[str, int] = {}  # of an engine that is up
        self.limit = 1000  # of generations, whatever their model
        self.submits: dict[int, Submit] = {}
        self.waiting: set[int] = set()
        self.paused: set[int] = set()
        self.running: set[int] = set()
        self.pausing: set[int] = set()
        self.interrupted: set[int] = set()
        self.expired: set[int] = set()
        self.over: set[int] = set()
        self.suspects: set[int] = set()
        self.proved: set[int] = set()
        self.newest = 0

    def apply(self, event: Event) -> None:
        effects = self.admission.apply(event, self.now_s)
        for effect in effects:
            self.take(effect)
        wake_s = self.admission.next_wake_s(self.now_s)
        assert wake_s is None or wake_s > self.now_s

    def take(self, effect: Effect) -> None:
        request_id = effect.request_id
        assert request_id not in self.over
        match effect:
            case Start(_, placement, waited_s, max_new_tokens, resumed):
                assert waited_s >= 0
                assert request_id in (self.paused if resumed else self.waiting)
                self.waiting.discard(request_id)
                self.paused.discard(request_id)
                self.running.add(request_id)
                if self.suspects & self.running:
                    assert self.suspects & self.running == {request_id}
                    assert self.running - {request_id} <= self.proved
                submit = self.submits[request_id]
                if submit.lane == "run":
                    assert placement is None and len(self.of_pool("")) <= RUN_PLACES
                else:
                    assert placement == self.places.held[request_id]
                    assert len(self.of_pool(submit.model)) <= self.slots[submit.model]
                    assert len(self.generating()) <= self.limit
                if max_new_tokens is not None:
                    assert submit.deadline is not None and not submit.deadline.hard
                    assert 0 < max_new_tokens < submit.max_new_tokens
            case Reject(_, waiting, position, retry_after_s):
                assert request_id in self.waiting
                assert request_id == self.newest or self.submits[request_id].priority == "background"
                assert waiting == MAX_QUEUE and 1 <= position <= MAX_QUEUE + 1 + len(self.paused)
                assert retry_after_s >= 1
                self.end(request_id)
            case Dropped():
                assert request_id in self.waiting | self.paused | self.pausing | self.interrupted | self.expired
                self.end(request_id)
            case Lost():
                assert request_id in self.running - self.interrupted - self.expired
                self.running.remove(request_id)
                self.pausing.discard(request_id)
                self.paused.add(request_id)
            case Interrupt():
                assert request_id in self.running - self.interrupted
                self.interrupted.add(request_id)
            case Pause():
                assert self.submits[request_id].priority == "background"
                assert request_id in self.running - self.pausing - self.interrupted
                self.pausing.add(request_id)
            case Expire(_, running, _):
                assert request_id not in self.expired
                assert running == (request_id in self.running)
                self.expired.add(request_id)
                if not running:
                    self.end(request_id)

    def end(self, request_id: int) -> None:
        for state in (self.waiting, self.paused, self.running, self.pausing, self.interrupted, self.expired):
            state.discard(request_id)
        self.suspects.discard(request_id)
        self.over.add(request_id)
        self.places.free(request_id)

    def of_pool(self, name: str) -> list[int]:
        def pool(submit: Submit) -> str:
            return submit.model if submit.lane == "generation" else ""

        return [request_id for request_id in self.running if pool(self.submits[request_id]) == name]

    def generating(self) -> list[int]:
        return [request_id for request_id in self.running if self.submits[request_id].lane == "generation"]

    @rule(
        lane=st.sampled_from(["generation", "generation", "generation", "run"]),
        model=MODELS,
        client=CLIENTS,
        priority=PRIORITIES,
        deadline_s=st.none() | st.floats(-1, 20),
        hard=st.booleans(),
        may_cut=st.sampled_from([("tokens",), (), ("model",)]),
        conversation=st.sampled_from(["", "x", "y"]),
        expect=st.integers(0, 2),
        tokens=st.integers(0, 1000),
        new_tokens=st.integers(20, 300),
    )
    def submit(
        self, lane: Any, model: str, client: str, priority: Any, deadline_s: float | None, hard: bool, may_cut: Any,
        conversation: str, expect: int, tokens: int, new_tokens: int,
    ) -> None:  # fmt: skip
        deadline = None if deadline_s is None else Deadline(at_s=self.now_s + deadline_s, hard=hard, may_cut=may_cut)
        self.newest += 1
        submit = Submit(
            self.newest,
            lane,
            model,
            client,
            priority,
            deadline,
            "chat",
            conversation,
            False,
            expect,
            tokens,
            new_tokens,
        )
        self.submits[self.newest] = submit
        self.waiting.add(self.newest)
        self.apply(submit)

    @precondition(lambda self: self.newest)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        self.apply(Withdraw(data.draw(st.integers(1, self.newest))))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), failed=st.booleans())
    def finish(self, data: st.DataObject, failed: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        self.end(request_id)
        self.apply(Ended(request_id, prefill_tokens=10, prefill_s=0.1, new_tokens=20, decode_s=2.0, failed=failed))

    @precondition(lambda self: self.newest)
    @rule(data=st.data())
    def say_that_something_ended_that_does_not_run(self, data: st.DataObject) -> None:
        request_id = data.draw(st.integers(1, self.newest))
        if request_id not in self.running:
            self.apply(Ended(request_id))
            self.apply(Paused(request_id))

    @precondition(lambda self: self.pausing)
    @rule(data=st.data())
    def confirm_pause(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.pausing)))
        if request_id not in self.interrupted | self.expired:
            self.pausing.remove(request_id)
            self.running.remove(request_id)
            self.paused.add(request_id)
        self.apply(Paused(request_id))
        assert request_id in self.over | self.paused | self.running

    @rule(m=st.integers(0, 3), n=st.integers(0, 2))
    def engine_up(self, m: int, n: int) -> None:
        if not self.slots:
            self.slots = {"m": m, "n": n}
            self.apply(EngineUp({"m": m, "n": n}))

    @rule(data=st.data())
    def engine_down(self, data: st.DataObject) -> None:
        self.slots = {}
        suspects = data.draw(st.sets(st.sampled_from(sorted(self.running)))) if self.running else set()
        self.suspects |= suspects
        self.proved.clear()
        self.apply(EngineDown(frozenset(suspects)))
        assert not self.running

    @precondition(lambda self: self.suspects & self.running)
    @rule()
    def a_suspect_comes_further(self) -> None:
        (request_id,) = self.suspects & self.running
        self.suspects.remove(request_id)
        self.proved.add(request_id)
        self.apply(Proved(request_id))

    @precondition(lambda self: self.slots)
    @rule(model=MODELS, slots=st.integers(0, 4))
    def set_compute_slots(self, model: str, slots: int) -> None:
        self.slots[model] = slots
        self.apply(SetComputeSlots(model, slots))

    @rule(limit=st.integers(1, 4) | st.none())
    def limit_generations(self, limit: int | None) -> None:
        running, waiting = self.running - self.expired, set(self.waiting | self.paused)
        self.limit = 1000 if limit is None else limit
        self.apply(LimitChanged(limit))
        # Nothing is ended by it, and whoever waited waits or has started.
        assert running <= self.running | self.expired
        assert waiting <= self.waiting | self.paused | self.running | self.expired

    @rule(client=CLIENTS, requests=st.integers(0, 5), hold_s=st.floats(0, 100), priority=PRIORITIES)
    def reserve(self, client: str, requests: int, hold_s: float, priority: Any) -> None:
        self.apply(Reserve(client, requests, hold_s, "m", priority))
        hold = self.admission.hold(client, "m", self.now_s)
        assert hold.requests <= requests and (hold.requests == requests or hold.reason)

    @rule(count=st.integers(0, KV_SLOTS))
    def places_change(self, count: int) -> None:
        self.places.count = max(count, 1 + max(self.places.held.values(), default=-1))
        self.apply(PlacesChanged())

    @rule(step_s=st.floats(0, 10))
    def pass_time(self, step_s: float) -> None:
        self.now_s += step_s
        self.apply(Tick())

    @rule(step_s=st.floats(0, 10))
    def clock_goes_back(self, step_s: float) -> None:
        before_s = self.now_s
        self.now_s -= step_s
        wake_s = self.admission.next_wake_s(self.now_s)
        assert wake_s is None or wake_s > before_s
        self.admission.apply(Tick(), self.now_s)
        self.now_s = before_s

    @invariant()
    def counts_agree(self) -> None:
        assert self.admission.running == len(self.running)
        assert self.admission.waiting == len(self.waiting | self.paused)
        assert set(self.submits) == self.over | self.running | self.waiting | self.paused

    @invariant()
    def the_queue_is_bounded(self) -> None:
        assert len(self.waiting) <= MAX_QUEUE

    @invariant()
    def no_place_is_shared_and_only_those_that_began_hold_one(self) -> None:
        assert len(set(self.places.held.values())) == len(self.places.held)
        generations = {i for i in self.running | self.paused if self.submits[i].lane == "generation"}
        assert set(self.places.held) == generations

    @invariant()
    def reservations_leave_a_slot_and_end(self) -> None:
        for figures in self.admission.figures(self.now_s):
            assert sum(held.requests for held in figures.reservations) <= 3
            assert all(self.now_s < held.until_s <= self.now_s + 60 for held in figures.reservations)

    @invariant()
    def no_slot_stands_idle_in_vain(self) -> None:
        if not self.slots:
            return
        if self.suspects:
            # One of them runs, or what has to end before one of them can.
            able = [i for i in self.suspects if self.submits[i].lane == "run" or self.slots[self.submits[i].model]]
            assert self.running or not able
            return
        full = len(self.generating()) >= self.limit
        for figures in self.admission.figures(self.now_s):
            if figures.name == "":
                assert not sum(figures.waiting.values()) or len(self.of_pool("")) == RUN_PLACES
            elif full:
                continue
            elif not figures.reservations and len(self.places.held) < self.places.count:
                assert not sum(figures.waiting.values()) or figures.running >= figures.compute_slots
            elif not figures.reservations:
                assert not figures.paused or figures.running >= figures.compute_slots

    def teardown(self) -> None:
        """Whoever waits still starts, once there is an engine and room; nothing is left over."""
        self.places.count = KV_SLOTS
        self.slots = {"m": 1, "n": 1}
        self.apply(EngineUp(self.slots))
        for _ in range(1000):
            if not self.waiting | self.paused | self.running:
                break
            self.now_s += AGING_S
            for request_id in sorted(self.running):
                self.end(request_id)
                self.apply(Ended(request_id))
            self.apply(Tick())
        assert not self.waiting | self.paused | self.running
        assert not self.places.held


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


@given(st.integers(0, 8), st.integers(1, 4), st.integers(0, 20))
def test_what_is_accepted_is_at_most_slots_and_queue(max_queue: int, slots: int, requests: int) -> None:
    admission = Admission(max_queue=max_queue, places=Slots())
    admission.apply(EngineUp({"m": slots}), 0.0)
    effects = [e for i in range(requests) for e in admission.apply(Submit(i, "generation", "m"), 0.0)]
    rejected = sum(isinstance(effect, Reject) for effect in effects)
    assert requests - rejected == min(requests, slots + max_queue)


ARRIVALS = st.lists(
    st.tuples(st.floats(0, 60), st.floats(0.1, 20), CLIENTS, PRIORITIES, st.sampled_from(["", "x", "y", "z"])),
    min_size=1,
    max_size=40,
)


@given(arrivals=ARRIVALS, slots=st.integers(1, 4), max_queue=st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_every_accepted_request_ends_and_slots_are_busy_while_any_waits(
    arrivals: list[tuple[float, float, str, str, str]], slots: int, max_queue: int
) -> None:
    simulation = Simulation(slots=slots, max_queue=max_queue)
    for time_s, work_s, client, priority, conversation in arrivals:
        simulation.at(
            time_s,
            lambda work_s=work_s, client=client, priority=priority, conversation=conversation: simulation.submit(  # type: ignore[misc]
                work_s, client=client, priority=priority, conversation=conversation
            ),
        )
    simulation.run()
    assert all(job.ended_s is not None for job in simulation.jobs.values())
    # Slots that are never idle beside waiting work need no longer than the work divided by the slots, plus the
    # longest piece (Graham, 1969), after the last arrival.
    work_s = sum(arrival[1] for arrival in arrivals)
    assert simulation.now_s <= 60 + work_s / slots + 20


@given(
    flood_clients=st.sampled_from([1, 3, 1000]),
    flood_class=PRIORITIES,
    victim_class=PRIORITIES,
    slots=st.integers(1, 3),
    work_s=st.floats(0.5, 8.0),
    conversations=st.booleans(),
    used=st.sampled_from([1, 100_000]),
)
@settings(max_examples=25, deadline=None)
def test_no_flood_keeps_a_request_from_starting(
    flood_clients: int, flood_class: str, victim_class: str, slots: int, work_s: float, conversations: bool, used: int
) -> None:
    aging_s, queue = 5.0, 8
    simulation = Simulation(slots=slots, aging_s=aging_s, max_queue=queue)

    def flood(number: int) -> None:
        """Keeps the queue full for ever, by new clients or known ones, with conversations under way."""
        name = f"c{number % 5}" if conversations else ""
        client = f"flood{number % flood_clients}"
        if simulation.admission.waiting < queue:
            simulation.submit(work_s, client=client, priority=flood_class, conversation=name, max_new_tokens=50)
        simulation.at(simulation.now_s + work_s / slots / 2, lambda: flood(number + 1))

    def come() -> None:
        victim.append(simulation.submit(work_s, client="victim", priority=victim_class, max_new_tokens=50))

    victim: list[int] = []
    simulation.submit(0.1, client="victim", max_new_tokens=used)  # it may have had far more than its share
    flood(0)
    simulation.at(1.5 * work_s, come)
    # It goes before all newcomers once it is overdue; until then it may have the whole queue before it.
    bound_s = OVERDUE_AGINGS * aging_s + (queue + 1) * (work_s + PAUSE_INTERVAL_S)
    simulation.run(until_s=1.5 * work_s + bound_s + 1.0)
    job = simulation.jobs[victim[0]]
    assert job.runs and not job.rejected and job.waited_s <= bound_s


@given(work_s=st.floats(1.0, 20.0), gap_s=st.floats(0.5, 3.0), short_s=st.floats(0.1, 4.0))
@settings(max_examples=20, deadline=None)
def test_a_stream_of_interactive_requests_does_not_keep_a_paused_generation_from_ending(
    work_s: float, gap_s: float, short_s: float
) -> None:
    simulation = Simulation(slots=1, aging_s=5.0, max_queue=4)
    background = simulation.submit(work_s, client="batch", priority="background", max_new_tokens=100)

    def chat() -> None:
        simulation.submit(short_s, client="person", priority="interactive", max_new_tokens=10)
        simulation.at(simulation.now_s + gap_s, chat)

    simulation.at(0.1, chat)
    # Each turn of waiting is bounded by aging, and each run lasts at least the interval.
    turns = work_s / PAUSE_INTERVAL_S + 1
    simulation.run(until_s=turns * (OVERDUE_AGINGS * 5.0 + 6 * short_s + PAUSE_INTERVAL_S + 1.0) + work_s)
    assert simulation.jobs[background].ended_s is not None
