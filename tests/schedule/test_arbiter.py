"""One account of cores and memory over several engines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnitude.schedule.arbiter import (
    Arbiter,
    ArbiterEffect,
    ArbiterEvent,
    EngineGone,
    GaveBack,
    GiveBack,
    MayUse,
    MustWait,
    SetAccount,
    Want,
)


def test_a_lone_engine_gets_what_it_wants_within_the_account() -> None:
    arbiter = Arbiter(threads=4, memory_bytes=100)
    assert arbiter.apply(Want("a", 8, 60)) == [MayUse("a", 4, 60)]
    assert arbiter.apply(Want("a", 2, 80)) == [MayUse("a", 2, 80)]


def test_memory_is_granted_whole_or_not_at_all_and_when_it_comes_free() -> None:
    arbiter = Arbiter(threads=4, memory_bytes=100)
    arbiter.apply(Want("a", 2, 60))
    assert arbiter.apply(Want("b", 2, 50)) == [MayUse("b", 2, 0), MustWait("b", 0, 50, possible=True)]
    assert arbiter.apply(Want("a", 2, 40)) == [MayUse("a", 2, 40), MayUse("b", 2, 50)]


def test_a_small_wish_does_not_take_what_an_earlier_larger_one_waits_for() -> None:
    arbiter = Arbiter(threads=4, memory_bytes=100)
    arbiter.apply(Want("a", 1, 60))
    arbiter.apply(Want("b", 1, 80))
    assert MustWait("c", 0, 10, possible=True) in arbiter.apply(Want("c", 1, 10))
    assert arbiter.apply(EngineGone("a")) == [MayUse("b", 1, 80), MayUse("c", 1, 10)]


def test_a_wish_beyond_the_account_is_impossible_and_holds_up_nobody() -> None:
    arbiter = Arbiter(threads=4, memory_bytes=100)
    assert arbiter.apply(Want("a", 1, 101)) == [MayUse("a", 1, 0), MustWait("a", 0, 101, possible=False)]
    assert arbiter.apply(Want("b", 1, 100)) == [MayUse("b", 1, 100)]


def test_a_second_engine_gets_its_even_share_of_threads_once_the_first_gave_back() -> None:
    arbiter = Arbiter(threads=4, memory_bytes=100)
    arbiter.apply(Want("a", 4, 0))
    assert arbiter.apply(Want("b", 4, 0)) == [MustWait("b", 1, 0, possible=True), GiveBack("a", 2, 0)]
    assert arbiter.apply(GaveBack("a", 2, 0)) == [MayUse("a", 2, 0), MayUse("b", 2, 0)]


def test_an_engine_that_wants_little_leaves_the_rest_to_the_others() -> None:
    arbiter = Arbiter(threads=8, memory_bytes=0)
    arbiter.apply(Want("a", 1, 0))
    assert arbiter.apply(Want("b", 8, 0)) == [MayUse("b", 7, 0)]


def test_what_a_dead_engine_used_is_free() -> None:
    arbiter = Arbiter(threads=4, memory_bytes=100)
    arbiter.apply(Want("a", 4, 100))
    arbiter.apply(EngineGone("a"))
    assert (arbiter.free_threads, arbiter.free_memory_bytes, arbiter.allowances()) == (4, 100, ())
    assert arbiter.apply(EngineGone("a")) == []


def test_a_smaller_account_asks_the_youngest_engine_to_give_memory_back_once() -> None:
    arbiter = Arbiter(threads=4, memory_bytes=100)
    arbiter.apply(Want("a", 2, 60))
    arbiter.apply(Want("b", 2, 40))
    assert arbiter.apply(SetAccount(4, 70)) == [GiveBack("b", 2, 10)]
    assert arbiter.apply(SetAccount(4, 70)) == []
    assert arbiter.apply(GaveBack("b", 2, 10)) == [MayUse("b", 2, 10)]
    assert arbiter.apply(SetAccount(4, 100)) == [MayUse("b", 2, 40)]


def test_fewer_threads_are_asked_back_from_those_above_their_share() -> None:
    arbiter = Arbiter(threads=4, memory_bytes=0)
    arbiter.apply(Want("a", 3, 0))
    arbiter.apply(Want("b", 1, 0))
    assert arbiter.apply(SetAccount(2, 0)) == [GiveBack("a", 1, 0)]


def test_more_engines_than_threads_is_impossible_for_the_last_one() -> None:
    arbiter = Arbiter(threads=1, memory_bytes=10)
    arbiter.apply(Want("a", 1, 0))
    assert arbiter.apply(Want("b", 1, 0)) == [MustWait("b", 1, 0, possible=False)]


class ArbiterMachine(RuleBasedStateMachine):
    """Engines that obey sooner or later: never is more in use than there is, and everybody ends up with a share."""

    def __init__(self) -> None:
        super().__init__()
        self.account = (4, 100)
        self.arbiter = Arbiter(threads=4, memory_bytes=100)
        self.uses: dict[str, tuple[int, int]] = {}
        self.asked: dict[str, tuple[int, int]] = {}
        self.shrunk = False  # whether engines may still use more than the account, because it became smaller

    def apply(self, event: ArbiterEvent) -> None:
        for effect in self.arbiter.apply(event):
            self.take(effect)

    def take(self, effect: ArbiterEffect) -> None:
        assert effect.engine in self.uses
        if isinstance(effect, MayUse):
            self.uses[effect.engine] = (effect.threads, effect.memory_bytes)
        elif isinstance(effect, GiveBack):
            threads, memory_bytes = self.uses[effect.engine]
            assert effect.threads <= threads and effect.memory_bytes <= memory_bytes
            self.asked[effect.engine] = (effect.threads, effect.memory_bytes)

    @rule(engine=st.sampled_from("abcd"), threads=st.integers(-1, 8), memory_bytes=st.integers(-1, 120))
    def want(self, engine: str, threads: int, memory_bytes: int) -> None:
        self.uses.setdefault(engine, (0, 0))
        self.apply(Want(engine, threads, memory_bytes))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(sorted(self.asked)))
        self.apply(GaveBack(engine, *self.asked.pop(engine)))

    @precondition(lambda self: self.uses)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(sorted(self.uses)))
        del self.uses[engine]
        self.asked.pop(engine, None)
        self.apply(EngineGone(engine))

    @rule(threads=st.integers(0, 8), memory_bytes=st.integers(0, 150))
    def change_account(self, threads: int, memory_bytes: int) -> None:
        self.account = (threads, memory_bytes)
        before = self.used()
        self.apply(SetAccount(threads, memory_bytes))
        after = self.used()
        assert all(a <= max(b, limit) for a, b, limit in zip(after, before, self.account, strict=True))
        self.shrunk = True

    def used(self) -> tuple[int, int]:
        return sum(t for t, _ in self.uses.values()), sum(m for _, m in self.uses.values())

    @invariant()
    def the_account_knows_what_is_in_use(self) -> None:
        told = {a.engine: (a.threads, a.memory_bytes) for a in self.arbiter.allowances()}
        assert told == self.uses
        free = (self.arbiter.free_threads, self.arbiter.free_memory_bytes)
        assert free == tuple(limit - used for limit, used in zip(self.account, self.used(), strict=True))

    @invariant()
    def never_more_is_in_use_than_there_is(self) -> None:
        if not self.shrunk:
            assert self.arbiter.free_threads >= 0 and self.arbiter.free_memory_bytes >= 0

    @rule()
    def all_obey(self) -> None:
        while self.asked:
            engine = min(self.asked)
            self.apply(GaveBack(engine, *self.asked.pop(engine)))
        assert self.arbiter.free_threads >= 0 and self.arbiter.free_memory_bytes >= 0
        self.shrunk = False
        for allowance in self.arbiter.allowances():
            assert allowance.threads >= min(1, self.account[0] // len(self.uses))
            assert allowance.threads == max(1, allowance.wanted_threads) or self.arbiter.free_threads == 0


TestArbiterMachine = ArbiterMachine.TestCase
TestArbiterMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(threads=st.integers(1, 16), wanted=st.lists(st.integers(1, 16), min_size=1, max_size=6))
def test_threads_are_shared_evenly_among_engines_that_obey(threads: int, wanted: list[int]) -> None:
    arbiter = Arbiter(threads=threads, memory_bytes=0)
    for number, wish in enumerate(wanted):
        asked = [e for e in arbiter.apply(Want(f"{number}", wish, 0)) if isinstance(e, GiveBack)]
        for effect in asked:
            arbiter.apply(GaveBack(effect.engine, effect.threads, effect.memory_bytes))
    shares = [allowance.threads for allowance in arbiter.allowances()]
    assert sum(shares) == min(threads, sum(wanted))
    unmet = [share for share, wish in zip(shares, wanted, strict=True) if share < wish]
    assert not unmet or max(shares) <= min(unmet) + 1


@pytest.mark.parametrize("event", [GaveBack("x", 0, 0), EngineGone("x")])
def test_news_of_an_unknown_engine_changes_nothing(event: ArbiterEvent) -> None:
    arbiter = Arbiter(threads=4, memory_bytes=100)
    assert arbiter.apply(event) == []
