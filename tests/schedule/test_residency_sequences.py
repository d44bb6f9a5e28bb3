"""Which models are in memory, under any sequence of events."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnitude.schedule.residency import (
    EngineDown,
    EngineUp,
    Event,
    InUse,
    Load,
    Loaded,
    LoadFailed,
    MemoryChanged,
    MemoryWanted,
    ModelNeed,
    Refuse,
    Residency,
    Tick,
    Unload,
    Unloaded,
    Wanted,
)

SIZES = {"chat": 30, "a": 20, "b": 30, "c": 45, "d": 5, "huge": 200}


class AnySequence(RuleBasedStateMachine):
    """An engine and a dispatcher that do what they are told, in any order of events."""

    @initialize(budget=st.sampled_from([75, 80, 120]), keep_alive_s=st.sampled_from([0.0, 5.0, 900.0]))
    def start(self, budget: int, keep_alive_s: float) -> None:
        needs = [ModelNeed(name=name, weight_bytes=size, pinned=name == "chat") for name, size in SIZES.items()]
        self.residency = Residency(needs, budget_bytes=budget, keep_alive_s=keep_alive_s)
        self.budget = budget
        self.now = 0.0
        self.up = False
        self.engine: dict[str, str] = {}  # model: loading, loaded or unloading
        self.waiting = dict.fromkeys(SIZES, 0)
        self.running = dict.fromkeys(SIZES, 0)
        self.engine_up()

    def apply(self, event: Event) -> None:
        effects = self.residency.apply(event, self.now)
        for effect in effects:
            match effect:
                case Load(model):
                    assert self.up
                    assert model not in self.engine
                    assert "loading" not in self.engine.values()
                    used = sum(SIZES[name] for name in self.engine) + SIZES[model]
                    assert used <= self.budget
                    self.engine[model] = "loading"
                case Unload(model):
                    assert self.engine[model] == "loaded"
                    assert self.running[model] == 0
                    assert model != "chat"
                    self.engine[model] = "unloading"
                case Refuse(model, reason):
                    assert reason
                    assert model not in self.engine
                    self.waiting[model] = 0

    def begin_what_may(self) -> None:
        for model in SIZES:
            if self.waiting[model] and self.residency.may_start(model):
                assert self.engine[model] == "loaded"
                self.running[model] += self.waiting[model]
                self.waiting[model] = 0
                self.apply(InUse(model, self.running[model]))

    @precondition(lambda self: not self.up)
    @rule()
    def engine_up(self) -> None:
        self.up = True
        self.apply(EngineUp())

    @precondition(lambda self: self.up)
    @rule()
    def engine_down(self) -> None:
        self.up = False
        self.engine.clear()
        self.running = dict.fromkeys(SIZES, 0)
        self.apply(EngineDown())

    @rule(model=st.sampled_from(sorted(SIZES)))
    def request(self, model: str) -> None:
        self.waiting[model] += 1
        self.apply(Wanted(model))

    @rule(model=st.sampled_from(sorted(SIZES)))
    def withdraw(self, model: str) -> None:
        self.waiting[model] = 0
        self.apply(InUse(model, self.running[model]))

    @rule()
    def begin(self) -> None:
        self.begin_what_may()

    @rule(model=st.sampled_from(sorted(SIZES)))
    def end(self, model: str) -> None:
        if self.running[model]:
            self.running[model] -= 1
            self.apply(InUse(model, self.running[model], self.waiting[model] > 0))

    @precondition(lambda self: self.engine)
    @rule(fails=st.sampled_from([False, False, False, True]), permanent=st.booleans(), load_s=st.floats(0.1, 30.0))
    def answer(self, fails: bool, permanent: bool, load_s: float) -> None:
        for model, state in sorted(self.engine.items()):
            if state == "unloading":
                del self.engine[model]
                self.apply(Unloaded(model))
                return
            if state == "loading":
                if fails:
                    del self.engine[model]
                    self.apply(LoadFailed(model, permanent))
                else:
                    self.engine[model] = "loaded"
                    self.apply(Loaded(model, load_s))
                return

    @rule(seconds=st.floats(0.0, 100.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.apply(Tick())

    @rule(budget=st.sampled_from([50, 75, 120]))
    def memory_changes(self, budget: int) -> None:
        self.budget = budget
        self.apply(MemoryChanged(budget))

    @rule()
    def memory_is_short(self) -> None:
        self.apply(MemoryWanted())

    @invariant()
    def both_sides_agree(self) -> None:
        if hasattr(self, "residency"):
            states = {model: self.residency.state(model) for model in SIZES}
            assert {model: state for model, state in states.items() if state != "absent"} == self.engine
            assert self.residency.used_bytes() == sum(SIZES[model] for model in self.engine)

    def teardown(self) -> None:
        """Every request that waits is begun or refused, when engine and running requests go on as they should."""
        if not hasattr(self, "residency"):
            return
        if not self.up:
            self.engine_up()
        for _ in range(200):
            for model in SIZES:
                while self.running[model]:
                    self.end(model)
            if {"loading", "unloading"} & set(self.engine.values()):
                self.answer(False, False, 1.0)
            self.begin_what_may()
            pending = {"loading", "unloading"} & set(self.engine.values()) or any(self.running.values())
            if not any(self.waiting.values()) and not pending:
                break
            wake = self.residency.next_wake_s()
            if not pending:
                assert wake is not None, "somebody waits, and nothing will happen"
                assert wake > self.now
                self.now = wake
                self.apply(Tick())
        assert not any(self.waiting.values())
        assert sum(SIZES[model] for model in self.engine) <= self.budget


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=60, stateful_step_count=40)
