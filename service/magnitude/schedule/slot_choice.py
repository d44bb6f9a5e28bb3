"""What a cached sequence is worth, and which slot a request gets: all alternatives are priced in one currency.

The currency is the token that has to be computed. An alternative costs the tokens of the prompt that it leaves to
compute, what moving KV takes, and what everything it destroys is worth to those who may come back for it. That one
rule decides between going on in place and copying, between restoring from disk and computing, and who is evicted.

Worth follows GreedyDual-Size (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997): the cost of
getting a thing again, per byte that evicting it frees. Its ageing needs a running offset; here age enters as in
hyperbolic caching (Blankstein, Sen and Freedman, USENIX ATC 2017): the chance of a return falls inversely with
time. Tokens that another slot holds as well are worth nothing here: losing this slot does not lose them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from magnitude.engine.protocol import SlotContents
from magnitude.engine.slot_header import HASH_OF_NOTHING
from magnitude.schedule.prefix_tree import Ids, as_ids
from magnitude.schedule.slot_terms import PagedTensor

State = Literal["free", "running", "idle", "cleaning"]

NO_IDS = as_ids(())
NOTHING = SlotContents(tokens=0, ids_hash=HASH_OF_NOTHING)

# Idle times that are short against this count alike. An agent's tools take seconds to a minute, so that within a
# minute nothing is known about who comes back first.
RETURN_S = 60.0
# What a conversation's own next turn cuts off is an answer that came back rendered differently, or was taken back.
# Hardly anybody asks for it again; with one time in fifty, a long one (some 500 tokens) is still kept by copying
# what comes before it when a slot is free.
ABANDONED = 0.02
# Copying KV of a position against computing it: 46 kB (SmolLM2-135M, float32) move in about 10 us at the 5 GB/s of a
# small board, where a token of a prompt takes at least 1 ms (183 ms for 128 tokens here).
COPY_TOKENS = 0.01
# Giving the memory of a slot back before another may use it takes 0.2 s for 400 MB, in which a small board
# computes about 30 tokens.
CLEAN_TOKENS = 30.0


class Slot:
    """The record of one place in the KV memory.

    `ids` are the prompt while a request runs and all that is held while the slot is idle; the first `valid_tokens`
    of them are computed. `touched_tokens` are the positions that have taken memory since the slot was last cleaned.
    """

    __slots__ = (
        "conversation",
        "doomed",
        "hashed",
        "hits",
        "ids",
        "index",
        "keep",
        "offered",
        "owner",
        "prompt_tokens",
        "readers",
        "reserved_tokens",
        "saved_id",
        "saving",
        "state",
        "touched_tokens",
        "used_s",
        "valid_tokens",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.state: State = "free"
        self.touched_tokens = 0
        self.readers = 0  # requests that copy from here and may not have begun
        self.offered = False  # handed out for cleaning
        self.clear()

    def clear(self) -> None:
        """Forget what is held; the memory stays touched."""
        self.owner = ""
        self.ids: Ids = NO_IDS
        self.valid_tokens = 0
        self.prompt_tokens = 0
        self.reserved_tokens = 0
        self.conversation = ""
        self.used_s = -math.inf
        self.hits = 0
        self.hashed = NOTHING
        self.saved_id: str | None = None
        self.saving = False
        self.doomed = False  # forgotten while it was being saved
        self.keep = False

    @property
    def evictable(self) -> bool:
        return self.state == "idle" and not self.saving

    @property
    def counted_tokens(self) -> int:
        """Positions that count against the budget."""
        return max(self.touched_tokens, self.reserved_tokens)


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The KV memory of one model, which comes in pages: each of its `tensors` is counted in whole steps, up to the
    slot's end."""

    budget_bytes: int
    tensors: tuple[PagedTensor, ...]
    max_len: int

    def bytes_of(self, tokens: int) -> int:
        return sum(tensor.bytes_of(tokens, self.max_len) for tensor in self.tensors)


class Source(NamedTuple):
    """Where a beginning of `tokens` ids may come from: a slot, or else a saved copy of `saved_tokens`, whose
    reading takes as long as computing `restore_tokens`."""

    tokens: int
    slot: Slot | None = None
    continues: bool = False  # the request is the next turn of what the slot holds
    saved_id: str | None = None
    saved_tokens: int = 0
    restore_tokens: float = 0.0


class Choice(NamedTuple):
    """The slot for a request. `waits`: the `evict` slots must be cleaned before it can start."""

    cost: float
    target: Slot
    source: Source | None
    evict: tuple[Slot, ...]
    waits: bool


def continues(slot: Slot, tokens: int, *, owner: str, conversation: str) -> bool:
    """Whether a request of `owner` that shares `tokens` is a later turn of what `slot` holds: it says so, or it names
    no conversation and contains the whole prompt of the turn before."""
    if slot.owner != owner or slot.state != "idle":
        return False
    return conversation == slot.conversation if conversation else tokens >= slot.prompt_tokens


def return_chance(slot: Slot, now_s: float) -> float:
    """Relative: 1 for a slot that was just used for the first time."""
    return math.log2(2 + slot.hits) * RETURN_S / (RETURN_S + max(0.0, now_s - slot.used_s))


class Request(NamedTuple):
    """What is to be placed: a prompt that needs `reserve_tokens` positions. `keep`: the slot's contents stay."""

    prompt_tokens: int
    reserve_tokens: int
    keep: bool


class Chooser:
    """Prices the alternatives for one request.

    `worth` and `unique` are of the evictable slots by index: what losing all of it costs, and how many tokens at
    the end of it no other slot has.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        account: Account,
        *,
        worth: Mapping[int, float],
        unique: Mapping[int, int],
        now_s: float,
    ) -> None:
        self._account = account
        self._worth = worth
        self._unique = unique
        self._now_s = now_s
        self._bytes = {slot.index: account.bytes_of(slot.counted_tokens) for slot in slots}
        self._total_bytes = sum(self._bytes.values())
        self._coming_bytes = sum(self._bytes[slot.index] for slot in slots if slot.state == "cleaning")
        self._free = next((slot for slot in slots if slot.state == "free"), None)
        evictable = [slot for slot in slots if slot.evictable]
        self._by_worth = sorted(evictable, key=lambda slot: (worth[slot.index], slot.used_s))
        self._by_density = sorted(
            evictable, key=lambda slot: (worth[slot.index] / max(1, self._bytes[slot.index]), slot.used_s)
        )

    def best(self, request: Request, sources: Sequence[Source]) -> Choice | None:
        """The cheapest alternative, computing everything included; None: there is no slot or no memory now."""
        choices: list[Choice | None] = []
        slots = [source for source in sources if source.slot is not None]
        # One of several equal slots to copy from: that which is the last to be evicted.
        copied = max(slots, key=lambda source: self._lasting(source.slot), default=None)
        for source in {copied, None, *(source for source in sources if source.slot is None)}:
            choices += [self._priced(request, source, target) for target in self._targets(source)]
        choices += [self._priced(request, s, s.slot) for s in slots if s.slot is not None and s.slot.evictable]
        return min((choice for choice in choices if choice is not None), key=lambda choice: choice[0], default=None)

    def _lasting(self, slot: Slot | None) -> float:
        return self._worth.get(slot.index, math.inf) if slot is not None else 0.0

    def _targets(self, source: Source | None) -> list[Slot]:
        """Other slots worth pricing: a free one, and of the others the least worth as a place and as memory."""
        from_disk = source is not None and source.saved_id is not None

        def fits(slot: Slot) -> bool:
            # A file is read by the service, at once; a copy is made by the engine, in its own time. What is still to
            # be copied must not be overwritten from a file.
            return (source is None or slot is not source.slot) and not (from_disk and slot.readers)

        targets = [self._free] if self._free is not None and fits(self._free) else []
        for order in (self._by_worth, self._by_density):
            victim = next((slot for slot in order if fits(slot)), None)
            if victim is not None and victim not in targets:
                targets.append(victim)
        return targets

    def _priced(self, request: Request, source: Source | None, target: Slot) -> Choice | None:
        in_place = source is not None and source.slot is target
        saved_tokens = source.saved_tokens if source is not None else 0
        need_tokens = max(target.touched_tokens, request.reserve_tokens, saved_tokens)
        kept = source.slot if source is not None and not in_place else None
        room = self._make_room(target, kept, self._account.bytes_of(need_tokens))
        if room is None:
            return None
        evict, waits = room
        cost = float(request.prompt_tokens) + sum(self._worth[slot.index] for slot in evict)
        cost += CLEAN_TOKENS * (len(evict) + waits)
        if source is not None:
            cost += source.restore_tokens - min(source.tokens, request.prompt_tokens - 1)
        if in_place and source is not None and request.keep:
            # Only what lies behind the match is lost, as far as nobody else has it.
            lost = min(self._unique[target.index], len(target.ids) - source.tokens)
            cost += lost * return_chance(target, self._now_s) * (ABANDONED if source.continues else 1.0)
        else:
            cost += self._worth.get(target.index, 0.0)
            cost += COPY_TOKENS * source.tokens if source is not None and source.slot is not None else 0.0
        return Choice(cost, target, source, evict, waits)

    def _make_room(self, target: Slot, kept: Slot | None, need_bytes: int) -> tuple[tuple[Slot, ...], bool] | None:
        """What to evict, and whether to wait for memory, so that `target` may take `need_bytes`. None: impossible
        now. A request that runs alone may take more than the budget: otherwise it would never run."""
        others_bytes = self._total_bytes - self._bytes[target.index]
        if others_bytes == 0 or others_bytes + need_bytes <= self._account.budget_bytes:
            return (), False
        short_bytes = others_bytes + need_bytes - self._account.budget_bytes - self._coming_bytes
        evict: list[Slot] = []
        staying_bytes = others_bytes - self._coming_bytes
        for slot in self._by_density:
            if short_bytes <= 0:
                break
            if slot is not target and slot is not kept and not slot.readers:
                evict.append(slot)
                short_bytes -= self._bytes[slot.index]
                staying_bytes -= self._bytes[slot.index]
        if short_bytes > 0 and staying_bytes > 0:
            return None
        # The last one may have freed so much that an earlier one was evicted for nothing.
        for slot in list(evict):
            if short_bytes + self._bytes[slot.index] <= 0:
                evict.remove(slot)
                short_bytes += self._bytes[slot.index]
        return tuple(evict), True
