"""What was learned is read once, written seldom, and nothing about its files reaches the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest
from scripted_chooser import BINDING, TWO, ScriptedChooser

from magnitude.policy.dumps import Dumps
from magnitude.policy.learned import Binding, Choice, Entry, Learned, Verified
from magnitude.policy.pinned import Pinned
from magnitude.schedule.strategy_dumps import DumpKeeper

ENTRY = Entry(part="decode", key="rows=1", chosen=Choice(session=TWO))
LEARNED = Learned(
    binding=BINDING, entries=(ENTRY,), verified=(Verified(session=TWO, passed=True, equal=True),), samples=7
)


class Found(msgspec.Struct):
    learned: Learned | None = None
    prior: Learned | None = None
    why: str = "as the test says"


class Store:
    """Dumps in memory."""

    folder = Path("/tmp/strategies")

    def __init__(self, found: Found | None = None, *, broken: bool = False) -> None:
        self.found = found or Found()
        self.saved: list[Learned] = []
        self.off = ""
        self.broken = broken

    def load(self, binding: Binding) -> Found:
        if self.broken:
            raise OSError("the card is gone")
        return self.found

    def pinned(self, binding: Binding) -> Pinned | None:
        if self.broken:
            raise OSError("the card is gone")
        return None

    def save(self, learned: Learned) -> bool:
        if self.broken:
            raise OSError("the card is gone")
        self.saved.append(learned)
        return True


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30))  # type: ignore[arg-type]


def learned_from(store: Store, binding: Binding = BINDING) -> Learned:
    async def ask() -> Learned:
        return (await DumpKeeper(cast(Dumps, store), every_s=300).learned(binding))[0]

    return asyncio.run(ask())


def test_what_is_known_of_the_very_binding_is_taken_as_it_is() -> None:
    assert learned_from(Store(Found(learned=LEARNED))) == LEARNED


def test_a_hint_of_another_binding_is_taken_where_there_is_nothing_else() -> None:
    assert learned_from(Store(Found(prior=LEARNED))) == LEARNED
    assert learned_from(Store(Found(learned=LEARNED, prior=Learned(binding=BINDING)))) == LEARNED


def test_without_a_dump_the_binding_is_known_and_nothing_else() -> None:
    assert learned_from(Store()) == Learned(binding=BINDING)


def test_a_dump_that_cannot_be_read_costs_what_was_learned_only() -> None:
    assert learned_from(Store(broken=True)) == Learned(binding=BINDING)


def test_what_has_changed_is_saved_no_more_often_than_allowed_and_with_its_date() -> None:
    async def scenario() -> None:
        now, store, chooser = [0.0], Store(), ScriptedChooser(learned=LEARNED)
        keeper = DumpKeeper(cast(Dumps, store), every_s=300, clock=lambda: now[0], wall=lambda: 1234.5)
        keeper.keep(BINDING, chooser)
        now[0] = 1000.0
        keeper.look()
        await keeper.close()
        assert store.saved == []  # nothing has changed
        chooser.changed = 1
        keeper.look()
        keeper.look()
        await keeper.close()
        assert store.saved == [msgspec.structs.replace(LEARNED, saved_at_s=1234.5)]
        chooser.changed, now[0] = 2, 1299.0
        keeper.look()
        await asyncio.sleep(0)
        assert len(store.saved) == 1
        await keeper.close()  # the end is always written
        assert len(store.saved) == 2

    play(scenario)


def test_storage_that_fails_stops_nothing() -> None:
    async def scenario() -> None:
        chooser = ScriptedChooser()
        keeper = DumpKeeper(cast(Dumps, Store(broken=True)), every_s=0)
        keeper.keep(BINDING, chooser)
        chooser.changed = 1
        keeper.look()
        await keeper.close()
        assert await keeper.pinned(BINDING) is None

    play(scenario)


@pytest.mark.parametrize("raises", [True, False])
def test_what_could_not_be_saved_is_tried_again_when_it_is_due_and_at_the_end(raises: bool) -> None:
    class Refusing(Store):
        tries = 0

        def save(self, learned: Learned) -> bool:
            self.tries += 1
            return super().save(learned) if raises or not self.broken else False

    async def scenario() -> None:
        now, store, chooser = [0.0], Refusing(broken=True), ScriptedChooser(learned=LEARNED)
        keeper = DumpKeeper(cast(Dumps, store), every_s=300, clock=lambda: now[0])
        keeper.keep(BINDING, chooser)
        chooser.changed = 1
        for due_s, tries in ((300.0, 1), (599.0, 1), (600.0, 2)):
            now[0] = due_s
            keeper.look()
            await asyncio.gather(*keeper._writing.values())
            assert store.tries == tries
        store.broken = False
        await keeper.close()
        assert len(store.saved) == 1
        await keeper.close()
        assert len(store.saved) == 1

    play(scenario)


def test_what_is_learned_while_it_is_written_is_saved_at_the_end() -> None:
    class Slow(Store):
        def save(self, learned: Learned) -> bool:
            assert goes_on.wait(10)
            return super().save(learned)

    async def scenario() -> None:
        store, chooser = Slow(), ScriptedChooser(learned=LEARNED)
        keeper = DumpKeeper(cast(Dumps, store), every_s=0)
        keeper.keep(BINDING, chooser)
        chooser.changed = 1
        keeper.look()
        chooser.changed = 2
        goes_on.set()
        await keeper.close()
        assert len(store.saved) == 2

    goes_on = threading.Event()
    play(scenario)


def test_storage_that_cannot_be_written_is_told_before_the_first_save_and_until_one_succeeds(
    tmp_path: Path,
) -> None:
    (tmp_path / "state").write_text("no folder")

    async def scenario() -> None:
        store, chooser = Store(), ScriptedChooser()
        store.folder = tmp_path / "state" / "strategies"
        keeper = DumpKeeper(cast(Dumps, store), every_s=0)
        assert keeper.off == ""
        await keeper.learned(BINDING)
        assert "cannot be written" in keeper.off
        keeper.keep(BINDING, chooser)
        chooser.changed = 1
        await keeper.close()
        assert keeper.off == ""

    play(scenario)


def test_why_nothing_is_kept_is_the_stores_word() -> None:
    store = Store()
    store.off = "read-only"
    assert DumpKeeper(cast(Dumps, store), every_s=1).off == "read-only"
