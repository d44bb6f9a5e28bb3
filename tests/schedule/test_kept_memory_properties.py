"""However services end and whatever ran in them: what the next one finds belongs to whom it says, and nothing that
waited quietly is missing."""

from __future__ import annotations

import mmap

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from test_kept_memory import Run, Store, plan_of, task_of

from magnitude.engine.slot_header import SlotState
from magnitude.schedule.inference import GenerationTask
from magnitude.schedule.slot_terms import Placement

SLOTS = 2
# Few beginnings, so that conversations of different owners begin alike.
BEGINNINGS = [list(range(20)), list(range(30)), [*range(20), *range(50, 70)]]
owners = st.sampled_from(["ann", "bob"])


class Open:
    """A request under way. `begun`: the engine has written the slot for it."""

    def __init__(self, number: int, task: GenerationTask, placement: Placement, answer: list[int]) -> None:
        self.number = number
        self.task = task
        self.placement = placement
        self.ids = [*task.prompt, *answer]
        self.begun = False


class Services(RuleBasedStateMachine):
    @initialize(share=st.booleans())
    def first(self, share: bool) -> None:
        self.store = Store()
        self.share = share
        self.now_s = 0.0
        self.open: list[Open] = []
        # What each owner has had computed and not asked to be private or forgotten.
        self.computed: dict[str, list[list[int]]] = {"ann": [], "bob": []}
        self.answers = 1000
        self.run_service()

    def run_service(self) -> None:
        plan = plan_of(slots=SLOTS, share=self.share)
        self.run = Run(self.store, plan, now_s=self.now_s)
        self.run.conversations._background.start = lambda work: work.close()  # type: ignore[method-assign]  # see `clean`

    @rule(owner=owners, beginning=st.sampled_from(BEGINNINGS), private=st.booleans(), keep=st.booleans())
    def ask(self, owner: str, beginning: list[int], private: bool, keep: bool) -> None:
        self.now_s = self.run.now_s = self.now_s + 1
        task = task_of(list(beginning), client=owner, save_kv=not private, keep_kv=keep)
        self.place(task)

    @rule(owner=owners, beginning=st.sampled_from(BEGINNINGS))
    def converse(self, owner: str, beginning: list[int]) -> None:
        """A whole request."""
        before = len(self.open)
        self.ask(owner, beginning, private=False, keep=True)
        for one in self.open[before:]:
            self.advance(one, len(one.ids))
            self.end(one)

    @rule(owner=owners, data=st.data())
    def go_on(self, owner: str, data: st.DataObject) -> None:
        """The next turn of something that this owner has had computed."""
        if self.computed[owner]:
            self.now_s = self.run.now_s = self.now_s + 1
            before = data.draw(st.sampled_from(self.computed[owner]))
            if len(before) < 200:
                self.place(task_of([*before, 7, 8], client=owner))

    def place(self, task: GenerationTask) -> None:
        self.run.requests += 1
        placement = self.run.conversations.place(self.run.plan, self.run.requests, task)
        if placement is not None:
            self.answers += 10
            answer = list(range(self.answers, self.answers + 8))
            self.open.append(Open(self.run.requests, task, placement, answer))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), more=st.integers(0, 40))
    def compute(self, data: st.DataObject, more: int) -> None:
        """The engine gets so much further with a request; nobody is told."""
        self.advance(data.draw(st.sampled_from(self.open)), more)

    def advance(self, one: Open, more: int) -> None:
        kv = self.run.plan.kv
        assert kv is not None
        with mmap.mmap(kv.fd, kv.layout.total_bytes) as view:
            state = SlotState(view, kv.layout.header_offset(one.placement.slot), "0", kv.layout.layout_id)
            start = one.placement.valid_tokens
            if one.begun:
                content = kv.content(one.placement.slot)
                assert content is not None
                start = len(content.ids)
            state.begin(one.ids[:start])
            state.extend(one.ids[start : start + more], len(one.ids[start : start + more]))
        one.begun = True
        if one.task.save_kv and one.task.keep_kv:
            self.computed[one.task.client].append(one.ids)

    @precondition(lambda self: any(one.begun for one in self.open))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from([one for one in self.open if one.begun])))

    def end(self, one: Open) -> None:
        self.open.remove(one)
        run = self.run
        run.conversations.finished(run.plan, one.number, one.placement.slot, one.task, one.ids)

    @rule()
    def clean(self) -> None:
        """What the service does in a thread, at some time after the table asked for it."""
        kv, table = self.run.plan.kv, self.run.plan.table
        assert kv is not None and table is not None
        for slot in table._slots:
            if slot.state == "cleaning" and slot.offered:
                kv.release_slot(slot.index)
                table.cleaned(slot.index)

    @rule(owner=owners)
    def forget(self, owner: str) -> None:
        self.run.conversations.forget_in_memory(owner)
        self.computed[owner].clear()
        for one in self.open:
            if one.task.client == owner:
                one.task = task_of(one.task.prompt, client=owner, save_kv=False)

    @rule()
    def kill(self) -> None:
        table = self.run.plan.table
        assert table is not None
        waiting = {
            (idle.scope.owner, tuple(idle.ids))
            for idle in table.idle(self.now_s, 0.0, 1)
            if ("chat", idle.slot) not in self.run.conversations._unsaved
        }
        self.run.killed()
        self.open.clear()
        self.run_service()
        table = self.run.plan.table
        assert table is not None
        found = {(idle.scope.owner, tuple(idle.ids)) for idle in table.idle(self.now_s, 0.0, 1)}
        assert waiting <= found
        for owner, ids in found:
            assert any(tuple(computed[: len(ids)]) == ids for computed in self.computed[owner])

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.killed()
            self.store.remove("magnitude-kv-chat")
            self.store.remove("magnitude-table-chat")


TestServices = Services.TestCase
TestServices.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
