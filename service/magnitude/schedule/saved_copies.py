"""Which token sequences lie on disk, as far as looking them up goes. Pure: the files are somebody else's."""

from __future__ import annotations

import msgspec

from magnitude.engine.protocol import SlotContents
from magnitude.schedule.prefix_tree import Ids, PrefixTree
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_choice import Source

# Until measured: a 135-million-parameter model on a small board, and an SD card of the better kind.
PREFILL_TOKENS_PER_S = 100.0
RESTORE_BYTES_PER_S = 40e6


class SavedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """One saved slot. `tree` is the scope within which it is found, `owner` whose it is."""

    tree: Scope
    owner: str
    ids: Ids
    size_bytes: int
    contents: SlotContents
    conversation: str
    prompt_tokens: int  # of `ids`, those that were the prompt of the last turn


class SavedCopies:
    """Saved copies by id, and one tree a scope."""

    def __init__(self) -> None:
        self._copies: dict[str, SavedCopy] = {}
        self.trees: dict[Scope, PrefixTree[str]] = {}
        self._tokens_per_byte = PREFILL_TOKENS_PER_S / RESTORE_BYTES_PER_S

    def __len__(self) -> int:
        return len(self._copies)

    def get(self, saved_id: str | None) -> SavedCopy | None:
        return None if saved_id is None else self._copies.get(saved_id)

    def set_rates(self, prefill_tokens_per_s: float, restore_bytes_per_s: float) -> None:
        self._tokens_per_byte = prefill_tokens_per_s / restore_bytes_per_s

    def add(self, saved_id: str, copy: SavedCopy) -> list[str]:
        """Returns the owner's copies that the new one contains whole."""
        self.drop(saved_id)
        tree = self.trees.setdefault(copy.tree, PrefixTree())
        contained = [key for key in tree.beginnings(copy.ids) if self._copies[key].owner == copy.owner]
        self._copies[saved_id] = copy
        tree.put(saved_id, copy.ids)
        return contained

    def drop(self, saved_id: str) -> None:
        """Nothing happens when it is not known."""
        copy = self._copies.pop(saved_id, None)
        if copy is not None:
            tree = self.trees[copy.tree]
            tree.remove(saved_id)
            if not tree:
                del self.trees[copy.tree]

    def forget(self, owner: str | None) -> list[str]:
        """Drop all of `owner` (None: of everybody); returns their ids."""
        found = [key for key, copy in self._copies.items() if owner is None or copy.owner == owner]
        for saved_id in found:
            self.drop(saved_id)
        return found

    def restore_tokens(self, copy: SavedCopy) -> float:
        """Tokens that could be computed while the copy is read. All of it is read, for its checksum."""
        return copy.size_bytes * self._tokens_per_byte

    def sources(self, tree: Scope, ids: Ids, *, owner: str, conversation: str) -> list[Source]:
        """The copy with the longest match and, of several, the one that is read soonest; or nothing."""
        if tree not in self.trees:
            return []
        best: tuple[float, str] | None = None
        longest = 0
        for saved_id, tokens in self.trees[tree].matches(ids):
            if tokens < longest:
                break
            longest = tokens
            candidate = (self.restore_tokens(self._copies[saved_id]), saved_id)
            best = candidate if best is None else min(best, candidate)
        if best is None:
            return []
        restore_tokens, saved_id = best
        copy = self._copies[saved_id]
        same = copy.owner == owner and (not conversation or conversation == copy.conversation)
        return [
            Source(
                longest,
                continues=same and longest >= copy.prompt_tokens,
                saved_id=saved_id,
                saved_tokens=len(copy.ids),
                restore_tokens=restore_tokens,
            )
        ]
