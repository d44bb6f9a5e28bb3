"""Which slots hold sequences that begin like a new one: one prefix tree for each scope. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from magnitude.schedule.prefix_tree import Ids, PrefixTree
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_choice import Slot, Source, continues


class SlotIndex:
    """`share`: what one owner has, all find."""

    def __init__(self, slots: Sequence[Slot], *, share: bool) -> None:
        self._slots = slots
        self._share = share
        self._trees: dict[Scope, PrefixTree[int]] = {}
        self._scopes: dict[int, Scope] = {}

    def tree_of(self, scope: Scope) -> Scope:
        """The scope within which contents of `scope` are found."""
        return msgspec.structs.replace(scope, owner="") if self._share else scope

    def set_scope(self, slot: Slot, scope: Scope) -> None:
        """From now on the slot's contents are of `scope`."""
        self._scopes[slot.index] = scope

    def scope_of(self, slot: Slot) -> Scope:
        """The scope of the slot's contents, as the request gave it."""
        return self._scopes[slot.index]

    def tree_of_slot(self, slot: Slot) -> Scope:
        return self.tree_of(self._scopes[slot.index])

    def trees(self) -> Iterable[tuple[Scope, PrefixTree[int]]]:
        return self._trees.items()

    def put(self, slot: Slot) -> None:
        """Let the slot be found by what is valid of it, or not at all."""
        if not slot.keep or slot.doomed or slot.valid_tokens == 0:
            self.remove(slot)
            return
        tree = self._trees.setdefault(self.tree_of_slot(slot), PrefixTree())
        tree.put(slot.index, slot.ids[: slot.valid_tokens])

    def remove(self, slot: Slot) -> None:
        """The slot is not found any more; nothing happens when it was not."""
        scope = self.tree_of_slot(slot)
        tree = self._trees.get(scope)
        if tree is not None:
            tree.remove(slot.index)
            if not tree:
                del self._trees[scope]

    def sources(self, tree: Scope, ids: Ids, owner: str, conversation: str) -> list[Source]:
        """Slots with the longest match: all idle ones, or a running one when there is none."""
        longest = 0
        idle: list[Source] = []
        running: list[Source] = []
        for index, tokens in self._trees[tree].matches(ids) if tree in self._trees else ():
            if tokens < longest:
                break
            longest, slot = tokens, self._slots[index]
            source = Source(tokens, slot, continues(slot, tokens, owner=owner, conversation=conversation))
            (idle if slot.state == "idle" else running).append(source)
        return idle or running[:1]

    def unique_tokens(self, slot: Slot) -> int:
        """Tokens at the end of the slot's sequence that no other slot of its scope has."""
        return self._trees[self.tree_of_slot(slot)].unique_tokens(slot.index)
