"""The slot table under any sequence of events."""

import itertools
from collections.abc import Sequence

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from slot_table_bench import SCOPE, contents

from magnitude.schedule.slot_table import SlotTable
from magnitude.schedule.slot_terms import PagedTensor, Placement, Wanted


def lcp(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class _Run(msgspec.Struct):
    slot: int
    owner: str
    prompt: list[int]
    reserve: int
    keep: bool
    valid: int
    copies_from: int | None
    forgotten: bool = False


LEAST = 2
LIMIT = 16
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=10)


class AnySequence(RuleBasedStateMachine):
    """The table against a record that is kept by hand: what each slot holds, and who runs where."""

    @initialize(budget_tokens=st.sampled_from([12, 30, 1000]), slots=st.integers(1, 4), share=st.booleans())
    def start(self, budget_tokens: int, slots: int, share: bool) -> None:
        self.budget = budget_tokens
        self.share = share
        self.kv = SlotTable(
            slots=slots,
            max_len=LIMIT,
            tensors=(PagedTensor(bytes_per_token=1),),
            budget_bytes=budget_tokens,
            share_prefixes=share,
            min_reuse_tokens=LEAST,
        )
        self.now = 0.0
        self.ids = itertools.count(1)
        self.idle: dict[int, tuple[str, list[int]]] = {}
        self.saving: set[int] = set()
        self.doomed: set[int] = set()
        self.running: dict[int, _Run] = {}
        self.cleaning: set[int] = set()
        self.touched = [0] * slots
        self.saved: dict[str, tuple[str, list[int]]] = {}

    def visible(self, owner: str, other: str) -> bool:
        return self.share or owner == other

    def known(self, owner: str, ids: list[int]) -> int:
        """The longest beginning that anything visible has, by comparing with everything."""
        held = [(o, c) for slot, (o, c) in self.idle.items() if slot not in self.doomed]
        held += [(r.owner, r.prompt[: r.valid]) for r in self.running.values() if r.keep and not r.forgotten]
        held += self.saved.values()
        return max((lcp(c, ids) for o, c in held if self.visible(owner, o)), default=0)

    def observe_evictions(self) -> None:
        """The table may evict idle slots that are not being saved. What it still shows must be as it was."""
        shown = {idle.slot: (idle.scope.owner, list(idle.ids)) for idle in self.kv.idle(self.now, 0.0, 1)}
        assert all(self.idle[slot] == held for slot, held in shown.items())
        self.idle = {slot: held for slot, held in self.idle.items() if slot in shown or slot in self.saving}

    @rule(owner=st.sampled_from(["ann", "bob"]), ids=prompts, new=st.integers(0, 9), keep=st.booleans())
    def place(self, owner: str, ids: list[int], new: int, keep: bool) -> None:
        self.now += 1
        scope = msgspec.structs.replace(SCOPE, owner=owner)
        request_id = next(self.ids)
        known = min(self.known(owner, ids), len(ids) - 1)
        assert self.kv.peek(scope, ids).tokens == (known if known >= LEAST else 0)
        placement = self.kv.place(Wanted(request_id, scope, ids, new, keep), self.now)
        if placement is None:
            assert self.running or self.saving or self.kv.figures().cleaning_slots, "nothing stands in the way"
            self.observe_evictions()
            return
        slot, valid = placement.slot, placement.valid_tokens
        assert slot not in {run.slot for run in self.running.values()} | self.saving | self.cleaning
        assert valid == 0 or LEAST <= valid < len(ids)
        assert valid <= known
        if not self.saved and self.budget == 1000 and known >= LEAST:
            assert valid == known
        self.check_source(placement, owner, ids)
        reserve = min(len(ids) + new, LIMIT)
        if placement.saved is not None:
            self.touched[slot] = max(self.touched[slot], len(self.saved[placement.saved][1]))
        in_place = placement.copy_from is None and placement.saved is None
        self.running[request_id] = _Run(
            slot, owner, ids, reserve, keep, valid if in_place else 0, placement.copy_from
        )
        self.idle.pop(slot, None)
        self.observe_evictions()

    def check_source(self, placement: Placement, owner: str, ids: list[int]) -> None:
        valid = placement.valid_tokens
        if placement.saved is not None:
            assert placement.slot not in {run.copies_from for run in self.running.values()}
            whose, held = self.saved[placement.saved]
        elif valid == 0:
            assert placement.copy_from is None
            return
        else:
            source = placement.slot if placement.copy_from is None else placement.copy_from
            if source in self.idle:
                assert source not in self.doomed
                whose, held = self.idle[source]
            else:
                (run,) = [run for run in self.running.values() if run.slot == source]
                assert run.keep
                assert not run.forgotten
                assert placement.holds is None
                whose, held = run.owner, run.prompt[: run.valid]
                assert held[:valid] == ids[:valid]
                assert self.visible(owner, whose)
                return
        assert held[:valid] == ids[:valid]
        assert placement.holds == contents(held)
        assert self.visible(owner, whose)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def progress(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        run = self.running[request_id]
        run.valid = data.draw(st.integers(0, len(run.prompt)))
        run.copies_from = None
        self.kv.progressed(request_id, run.valid)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), answer=st.lists(st.integers(0, 1), max_size=9), whole=st.booleans())
    def finish(self, data: st.DataObject, answer: list[int], whole: bool) -> None:
        self.now += 1
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        run = self.running.pop(request_id)
        held = (run.prompt + answer)[: run.reserve] if whole else run.prompt[: run.valid]
        self.kv.finished(request_id, held, self.now)
        if run.keep and not run.forgotten and len(held) >= LEAST:
            self.idle[run.slot] = (run.owner, held)
            self.touched[run.slot] = max(self.touched[run.slot], run.valid, len(held))
        else:
            self.touched[run.slot] = max(self.touched[run.slot], run.reserve)

    @rule()
    def take_cleanups(self) -> None:
        taken = self.kv.take_cleanups()
        assert not self.cleaning & set(taken)
        assert not {run.copies_from for run in self.running.values()} & set(taken)
        assert not set(taken) & (set(self.idle) | {run.slot for run in self.running.values()})
        self.cleaning |= set(taken)

    @precondition(lambda self: self.cleaning)
    @rule(data=st.data())
    def cleaned(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.cleaning)))
        self.cleaning.remove(slot)
        self.touched[slot] = 0
        self.kv.cleaned(slot)

    @precondition(lambda self: set(self.idle) - self.saving)
    @rule(data=st.data())
    def begin_save(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(set(self.idle) - self.saving)))
        self.saving.add(slot)
        self.kv.begin_save(slot)

    @precondition(lambda self: self.saving)
    @rule(data=st.data(), free=st.booleans(), success=st.booleans())
    def save_done(self, data: st.DataObject, free: bool, success: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.saving)))
        saved_id = f"s{next(self.ids)}" if success else None
        superseded = self.kv.save_done(slot, saved_id, free, size_bytes=1)
        self.saving.discard(slot)
        if slot in self.doomed:
            self.doomed.discard(slot)
            del self.idle[slot]
            assert superseded == ([saved_id] if saved_id else [])
            return
        owner, ids = self.idle[slot]
        if saved_id is not None:
            expected = {
                key for key, (whose, held) in self.saved.items() if whose == owner and held == ids[: len(held)]
            }
            assert set(superseded) == expected
            self.saved[saved_id] = (owner, ids)
        if free:
            del self.idle[slot]

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def drop_saved(self, data: st.DataObject) -> None:
        saved_id = data.draw(st.sampled_from(sorted(self.saved)))
        del self.saved[saved_id]
        self.kv.drop_saved(saved_id)

    @rule(owner=st.sampled_from(["ann", "bob", None]))
    def forget(self, owner: str | None) -> None:
        before = [(whose, ids) for whose, ids in self.idle.values() if owner in (None, whose)]
        forgotten = self.kv.forget(owner)
        assert set(forgotten.saved_ids) == {key for key, (whose, _) in self.saved.items() if owner in (None, whose)}
        for key in forgotten.saved_ids:
            del self.saved[key]
        for run in self.running.values():
            run.forgotten |= owner in (None, run.owner)
        gone = {slot for slot, (whose, _) in self.idle.items() if owner in (None, whose)}
        self.doomed |= gone & self.saving
        self.idle = {slot: held for slot, held in self.idle.items() if slot not in gone - self.saving}
        for whose, ids in before:
            if not self.share:
                assert self.kv.peek(msgspec.structs.replace(SCOPE, owner=whose), [*ids, 0]).tokens == 0

    @rule(budget_tokens=st.sampled_from([12, 30, 1000]))
    def change_budget(self, budget_tokens: int) -> None:
        self.budget = budget_tokens
        self.kv.set_budget(budget_tokens, self.now)
        self.observe_evictions()

    @invariant()
    def memory_is_within_the_budget(self) -> None:
        if not hasattr(self, "kv"):
            return
        reserved = {run.slot: run.reserve for run in self.running.values()}
        used = [max(touched, reserved.get(slot, 0)) for slot, touched in enumerate(self.touched)]
        figures = self.kv.figures()
        assert figures.resident_bytes == sum(used)
        assert figures.running_slots == len(self.running)
        assert figures.idle_slots == len(self.idle)


class WithinBudget(AnySequence):
    """The same without changes of the budget and without saved copies, which only add what cannot be evicted."""

    @initialize(budget_tokens=st.sampled_from([12, 20, 30]), slots=st.integers(1, 4), share=st.booleans())
    def start(self, budget_tokens: int, slots: int, share: bool) -> None:
        super().start(budget_tokens, slots, share)

    @rule()
    def change_budget(self) -> None:
        pass

    @invariant()
    def only_a_request_alone_exceeds_the_budget(self) -> None:
        if not hasattr(self, "kv"):
            return
        used = self.kv.figures().resident_bytes
        occupied = sum(1 for slot, touched in enumerate(self.touched) if touched or slot in self.slots_running())
        assert used <= self.budget or occupied == 1

    def slots_running(self) -> set[int]:
        return {run.slot for run in self.running.values()}


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=60, stateful_step_count=40)
TestWithinBudget = WithinBudget.TestCase
TestWithinBudget.settings = settings(max_examples=60, stateful_step_count=40)
