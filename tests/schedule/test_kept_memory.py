"""One service after the other over the same descriptors, without processes: what the next one finds and what not."""

from __future__ import annotations

import asyncio
import functools
import logging
import mmap
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from sample_plans import decoder_plan, token_bytes

from magnitude.engine.protocol import SamplerSettings
from magnitude.engine.slot_header import SlotState
from magnitude.models.description import KvType
from magnitude.schedule.conversations import Conversations, KvSettings
from magnitude.schedule.inference import GenerationTask
from magnitude.schedule.kept_memory import ASK_AGAIN_S, KeptMemory, stored_name
from magnitude.schedule.kv_memory import create_memory
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.slot_terms import KvFigures, Placement

KV, TABLE = "magnitude-kv-chat", "magnitude-table-chat"


def on_a_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Conversations clean slots in the background, on an event loop."""

    @functools.wraps(test)
    def run(*arguments: object, **named: object) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Given(msgspec.Struct):
    name: str
    fd: int


class Store:
    """Keeps copies of descriptors, as a service manager does."""

    def __init__(self) -> None:
        self.stored: list[Given] = []
        self.refuses = False

    def store(self, name: str, fds: Sequence[int]) -> bool:
        if self.refuses:
            return False
        self.stored += [Given(name, os.dup(fd)) for fd in fds]
        return True

    def remove(self, name: str) -> None:
        for one in [one for one in self.stored if one.name == name]:
            self.stored.remove(one)
            os.close(one.fd)

    def handed(self) -> list[Given]:
        """For the next service."""
        return [Given(one.name, os.dup(one.fd)) for one in self.stored]

    def names(self) -> list[str]:
        return sorted(one.name for one in self.stored)


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    for one in made.stored:
        os.close(one.fd)


def plan_of(
    *,
    name: str = "chat",
    slots: int = 3,
    context: int = 256,
    model_hash: str = "0",
    budget_bytes: int = 0,
    share: bool = False,
    kv_type: KvType = "float32",
) -> ModelPlan:
    return decoder_plan(
        name,
        head_dim=8,
        vocab_size=4096,
        slots=slots,
        context=context,
        model_hash=model_hash,
        kv_budget_bytes=budget_bytes,
        share_prefixes=share,
        kv_type=kv_type,
    )


def task_of(prompt: list[int], **fields: object) -> GenerationTask:
    wanted: dict[str, object] = {"client": "ann", "max_new_tokens": 10, "request_key": "r"} | fields
    return GenerationTask(model="chat", prompt=prompt, sampler=SamplerSettings(), stop_ids=[], **wanted)  # type: ignore[arg-type]


class Run:
    """One service's conversations of one model; `engine` does what the engine does to the slots."""

    def __init__(self, store: Store, plan: ModelPlan | None = None, *, now_s: float = 100.0) -> None:
        self.now_s = now_s
        self.plan = plan or plan_of()
        self.kept = KeptMemory(store, store.handed(), clock=lambda: self.now_s)
        self.kept.adopt([self.plan])
        self.requests = 0
        self.conversations = Conversations(
            {"chat": self.plan},
            settings=KvSettings(),
            files=None,
            changed=lambda: None,
            kept=self.kept,
            clock=lambda: self.now_s,
        )

    def begin(self, task: GenerationTask) -> Placement:
        self.requests += 1
        placement = self.conversations.place(self.plan, self.requests, task)
        assert placement is not None
        return placement

    def engine(self, slot: int, ids: list[int]) -> None:
        assert self.plan.kv is not None
        view = mmap.mmap(self.plan.kv.fd, self.plan.kv.layout.total_bytes)
        offset = self.plan.kv.layout.header_offset(slot)
        state = SlotState(view, offset, self.plan.description.model_hash, self.plan.kv.layout.layout_id)
        state.begin(ids)
        view.close()

    def say(self, task: GenerationTask, answer: list[int]) -> int:
        """A whole request; the slot it ran in."""
        placement = self.begin(task)
        ids = [*task.prompt, *answer]
        self.engine(placement.slot, ids)
        self.conversations.finished(self.plan, self.requests, placement.slot, task, ids)
        return placement.slot

    def known(self, prompt: list[int], **fields: object) -> int:
        return self.conversations.known(self.plan, task_of(prompt, **fields)).tokens

    def figures(self) -> KvFigures:
        assert self.plan.table is not None
        return self.plan.table.figures()

    def killed(self) -> None:
        """The process is gone, and its descriptors with it."""
        assert self.plan.kv is not None
        self.plan.kv.close()
        for journal in self.kept._journals.values():
            journal.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def text(start: int, count: int = 40) -> list[int]:
    return list(range(start, start + count))


@on_a_loop
async def test_idle_and_running_conversations_are_found_by_the_next_service(store: Store) -> None:
    first = Run(store, now_s=100.0)
    first.say(task_of(text(0), conversation="tools"), text(500, 5))
    placement = first.begin(task_of(text(1000), client="bob"))
    first.engine(placement.slot, [*text(1000), 7, 8])
    first.killed()

    second = Run(store, now_s=160.0)
    assert (second.plan.revived.conversations, second.plan.revived.of_running) == (2, 1)
    assert second.known([*text(0), *text(500, 5), 9]) == 45
    assert second.known([*text(1000), 7, 8, 9], client="bob") == 42
    assert second.known([*text(1000), 7, 8, 9], client="ann") == 0
    kept = {(one.owner, one.tokens, one.idle_s) for one in second.conversations.kept(None)}
    assert kept == {("ann", 45, 60.0), ("bob", 42, 60.0)}
    again = second.begin(task_of([*text(0), *text(500, 5), 9, 10]))
    assert (again.valid_tokens, again.copy_from, again.conversation) == (45, None, "tools")
    second.killed()


@on_a_loop
async def test_what_the_engine_was_ahead_of_the_service_counts(store: Store) -> None:
    first = Run(store)
    placement = first.begin(task_of(text(0)))
    first.engine(placement.slot, [*text(0), *text(700, 20)])  # nobody has read these tokens yet
    first.killed()
    second = Run(store)
    assert second.known([*text(0), *text(700, 20), 1]) == 60
    second.killed()


@on_a_loop
async def test_private_conversations_do_not_outlive_the_service(store: Store) -> None:
    first = Run(store, plan_of(slots=4))
    first.say(task_of(text(0)), [1, 2])
    first.say(task_of(text(1000), save_kv=False), [1, 2])
    first.begin(task_of(text(2000), keep_kv=False))
    running = first.begin(task_of(text(3000), save_kv=False))
    first.engine(running.slot, text(3000))
    first.killed()
    second = Run(store, plan_of(slots=4))
    assert [one.tokens for one in second.conversations.kept(None)] == [42]
    assert second.known([*text(1000), 1]) == second.known([*text(3000), 1]) == 0
    second.killed()


@on_a_loop
async def test_what_was_deleted_while_it_ran_stays_deleted(store: Store) -> None:
    first = Run(store)
    placement = first.begin(task_of(text(0)))
    first.engine(placement.slot, text(0))
    await first.conversations.forget(None, None)
    first.killed()
    second = Run(store)
    assert second.plan.revived.conversations == 0
    second.killed()


@on_a_loop
async def test_a_slot_that_changed_hands_before_the_engine_wrote_stays_with_its_owner(store: Store) -> None:
    first = Run(store, plan_of(slots=1))
    first.say(task_of(text(0)), [1, 2])
    first.begin(task_of([*text(0), 1, 2, 3], client="ann"))
    first.killed()
    second = Run(store, plan_of(slots=1))
    assert second.known([*text(0), 1, 2, 3]) == 42
    second.begin(task_of(text(0), client="bob"))  # the same beginning, another key
    second.killed()
    third = Run(store, plan_of(slots=1))
    assert third.known([*text(0), 1, 2, 3], client="bob") == 0
    assert third.known([*text(0), 1, 2, 3], client="ann") == 42
    third.killed()


@pytest.mark.parametrize(
    "change",
    [{"context": 128}, {"slots": 4}, {"model_hash": "1"}, {"name": "other"}, {"kv_type": "int8_per_token"}],
    ids=lambda change: str(change),
)
@on_a_loop
async def test_memory_of_another_layout_or_model_is_given_up(store: Store, change: dict[str, object]) -> None:
    first = Run(store)
    first.say(task_of(text(0)), [1, 2])
    first.killed()
    plan = plan_of(**change)  # type: ignore[arg-type]
    second = Run(store, plan)
    assert plan.revived.conversations == 0
    assert plan.kv is not None
    assert plan.kv.resident_bytes() <= 4096  # of a slot, at most what belongs to no slot alone
    second.killed()


@on_a_loop
async def test_over_a_smaller_budget_the_oldest_go(store: Store) -> None:
    first = Run(store)
    for number in range(3):
        first.now_s += 10
        first.say(task_of(text(1000 * number, 200)), [1])
    first.killed()
    second = Run(store, plan_of(budget_bytes=2 * 256 * token_bytes(plan_of())), now_s=200.0)
    assert second.known([*text(0, 200), 1, 2]) == 0
    assert second.known([*text(1000, 200), 1, 2]) == second.known([*text(2000, 200), 1, 2]) == 201
    figures = second.figures()
    assert figures.resident_bytes <= figures.budget_bytes
    second.killed()


@on_a_loop
async def test_foreign_descriptors_are_closed_removed_and_told_once_each(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    first = Run(store)
    first.say(task_of(text(0)), [1, 2])
    first.killed()
    reader, writer = os.pipe()
    store.store("magnitude-kv-gone", [reader])
    store.store(TABLE, [writer])  # beside the good one
    null = os.open(os.devnull, os.O_RDWR)
    store.store("magnitude-table-null", [null])
    store.store("magnitude-table-empty", [empty := create_memory("x", 4096)])
    for fd in (reader, writer, null, empty):
        os.close(fd)
    before = open_descriptors()
    with caplog.at_level(logging.WARNING):
        second = Run(store)
    assert second.known([*text(0), 1, 2, 3]) == 42
    assert store.names() == [KV, TABLE]
    refused = [record for record in caplog.records if "not used" in record.message]
    assert len(refused) == 4
    # Two for the adopted pair and one more for each mapping; four foreign ones fewer in the store, nothing else.
    assert open_descriptors() == before + 4 - 4
    second.killed()
    third = Run(store)  # what was stored again is whole
    assert third.known([*text(0), 1, 2, 3]) == 42
    third.killed()


@on_a_loop
async def test_what_came_with_the_start_is_known_before_there_are_plans(store: Store) -> None:
    first = Run(store)
    first.say(task_of(text(0)), [1, 2])
    assert first.plan.kv is not None
    resident_bytes = first.plan.kv.resident_bytes()
    first.killed()
    kept = KeptMemory(store, store.handed())
    assert kept.contexts() == {"chat": 256}
    assert resident_bytes < kept.inherited_bytes() <= resident_bytes + 16 * 1024  # the table as well
    kept.adopt([])
    assert kept.contexts() == {}
    assert kept.inherited_bytes() == 0


@on_a_loop
async def test_a_table_without_its_memory_and_memory_without_its_table_are_of_no_use(store: Store) -> None:
    for missing in (KV, TABLE):
        run = Run(store)
        run.say(task_of(text(0)), [1, 2])
        run.killed()
        store.remove(missing)
        run = Run(store)
        assert run.plan.revived.conversations == 0
        assert store.names() == []
        run.killed()


@on_a_loop
async def test_a_stop_leaves_conversations_and_nothing_else(store: Store) -> None:
    first = Run(store)
    first.say(task_of(text(0)), [1, 2])
    first.say(task_of(text(1000, 200), save_kv=False), [1, 2])
    await first.conversations.close()
    assert store.names() == [KV, TABLE]
    second = Run(store)
    assert second.known([*text(0), 1, 2, 3]) == 42
    await second.conversations.forget(None, None)
    await second.conversations.close()
    assert store.names() == []


@on_a_loop
async def test_a_service_that_leaves_for_want_of_memory_leaves_none_behind(store: Store) -> None:
    run = Run(store)
    run.say(task_of(text(0)), [1, 2])
    assert store.names() == [KV, TABLE]
    run.kept.give_up()
    assert not await run.kept.continues()
    await run.conversations.close()
    assert store.names() == []


@on_a_loop
async def test_without_a_store_nothing_is_kept_and_nothing_breaks(store: Store) -> None:
    store.refuses = True
    run = Run(store)
    run.say(task_of(text(0)), [1, 2])
    assert not run.kept.keeps(run.plan)
    await run.conversations.close()
    assert run.plan.kv is not None
    with pytest.raises(OSError, match="descriptor"):
        run.plan.kv.resident_bytes()


@on_a_loop
async def test_a_store_that_was_busy_for_a_moment_gets_what_comes_later(store: Store) -> None:
    store.refuses = True
    first = Run(store, now_s=100.0)
    first.say(task_of(text(0)), [1, 2])
    store.refuses = False
    first.say(task_of(text(1000)), [1, 2])
    assert store.names() == []  # not asked again at each request
    first.now_s += ASK_AGAIN_S
    first.say(task_of(text(2000)), [1, 2])
    assert store.names() == [KV, TABLE]
    first.killed()

    second = Run(store, now_s=200.0)
    assert second.known([*text(2000), 1, 2, 9]) == 42
    second.killed()


def test_names_in_the_store_are_fit_for_it_and_tell_models_apart() -> None:
    names = {stored_name("magnitude-kv-", model) for model in ("chat", "a:b", "a_b", "é" * 300, "x" * 300, "x" * 301)}
    assert len(names) == 6
    assert all(len(name) < 256 and name.isascii() and ":" not in name for name in names)
