"""Which KV slot holds what, who runs in which, and what a new request can take over. A pure state machine.

A slot holds the KV of one token sequence. There are more slots than generations that run together: idle ones keep
finished conversations, so that the next turn, or another conversation with the same system prompt, is not computed
again. One table serves one model. Every answer follows from the calls so far and the times given with them.

Contents are found only within their scope: model, layout, plan and adapter always, and the owner (API key) unless
prefixes are shared. What other scopes hold may only colour the figures (`Miss.reason`), never an answer.

Memory is bounded by a budget: a running request counts its prompt and all tokens it may still write, an idle slot
what it has touched. Running requests are never evicted. Who is evicted, and whether a request goes on in place, is
`slot_choice`'s to price.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

import msgspec

from magnitude.engine.protocol import SlotContents
from magnitude.schedule.prefix_tree import EvictedPrefixes, Ids, as_ids, common_tokens
from magnitude.schedule.saved_copies import SavedCopies, SavedCopy
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_choice import (
    NOTHING,
    Account,
    Choice,
    Chooser,
    Request,
    Slot,
    Source,
    return_chance,
)
from magnitude.schedule.slot_index import SlotIndex
from magnitude.schedule.slot_misses import Lookup, why_missed
from magnitude.schedule.slot_revival import extended, fill, record_of
from magnitude.schedule.slot_terms import (
    Forgotten,
    IdleSlot,
    Known,
    KvFigures,
    Miss,
    PagedTensor,
    Placement,
    SlotRecord,
    Wanted,
)

# A shorter beginning is not worth a copy or a cut: a piece of a prompt takes about as long with 16 tokens less, and
# the opening tokens of a chat template, which all prompts share, are fewer.
MIN_REUSE_TOKENS = 16


class SlotTable:
    """The slots of one model. Not thread-safe.

    `tensors` say what a position takes.

    After every call that ends, frees or evicts something, `take_cleanups()` says which slots' memory to give back.
    A request that was not placed is to be tried again after `finished`, `cleaned` or `save_done`. `take_changes()`
    says what the service after this one should know.
    """

    def __init__(
        self,
        *,
        slots: int,
        max_len: int,
        tensors: tuple[PagedTensor, ...],
        budget_bytes: int,
        share_prefixes: bool,
        min_reuse_tokens: int = MIN_REUSE_TOKENS,
    ) -> None:
        self._slots = [Slot(index) for index in range(slots)]
        self._max_len = max_len
        self._account = Account(budget_bytes=budget_bytes, tensors=tensors, max_len=max_len)
        self._index = SlotIndex(self._slots, share=share_prefixes)
        self._min_reuse = max(1, min_reuse_tokens)
        self._running: dict[int, Slot] = {}
        self._reading: dict[int, Slot] = {}  # source of a copy by the request that may not have begun it
        self._saved = SavedCopies()
        self._evicted: EvictedPrefixes[Scope] = EvictedPrefixes()
        self._changed: set[int] = set()
        self._conversations = 0
        self._hits = self._reused = self._copied = self._restored = self._evictions = 0
        self._misses: Counter[str] = Counter()

    # --- requests ---

    def peek(self, scope: Scope, ids: Sequence[int]) -> Known:
        """What `place` would find now. Changes nothing."""
        array = as_ids(ids)
        sources = self._sources(scope, array, "")
        best = max((min(source.tokens, len(array) - 1) for source in sources), default=0)
        continued = max((source for source in sources if source.continues), key=lambda s: s.tokens, default=None)
        conversation = self._conversation_of(continued) if continued is not None else ""
        return Known(best if best >= self._min_reuse else 0, conversation)

    def place(self, wanted: Wanted, now_s: float) -> Placement | None:
        """Give the request a slot, or None: no slot or no memory within the budget now.

        None may have evicted something to make room. Raises `ValueError` for a request that runs already.
        """
        if wanted.request_id in self._running:
            raise ValueError(f"request {wanted.request_id} has slot {self._running[wanted.request_id].index} already")
        if not any(slot.state == "free" or slot.evictable for slot in self._slots):
            return None  # asked often while all are taken, for every request that waits
        ids = as_ids(wanted.ids)
        sources = self._sources(wanted.scope, ids, wanted.conversation) if wanted.reuse else []
        usable = [source for source in sources if min(source.tokens, len(ids) - 1) >= self._min_reuse]
        worth, unique = self._worths(now_s)
        chooser = Chooser(self._slots, self._account, worth=worth, unique=unique, now_s=now_s)
        choice = chooser.best(Request(len(ids), self._reserve(wanted), wanted.keep), usable)
        if choice is None:
            return None
        if choice.waits:
            for slot in choice.evict:
                self._evict(slot)
            return None
        lookup = Lookup(wanted, self._index.tree_of(wanted.scope), ids, sources)
        miss = why_missed(
            lookup,
            choice.source,
            evicted=self._evicted,
            trees=(*self._index.trees(), *self._saved.trees.items()),
            min_reuse_tokens=self._min_reuse,
        )
        if miss is not None:
            self._misses[miss.reason] += 1
        return self._take(lookup, choice, miss, now_s)

    def progressed(self, request_id: int, valid_tokens: int) -> None:
        """The engine has `valid_tokens` of the prompt in the KV now; others may copy as many."""
        slot = self._running.get(request_id)
        if slot is None:
            return
        self._began(request_id)
        valid_tokens = min(valid_tokens, len(slot.ids))
        if valid_tokens != slot.valid_tokens:
            slot.valid_tokens = valid_tokens
            self._index.put(slot)

    def finished(self, request_id: int, held_ids: Sequence[int], now_s: float) -> None:
        """The request is over; its slot verifiably holds the KV of `held_ids` from position 0 on (empty: nothing, as
        after a window has slid).

        The slot stays as it is when that is worth keeping and the request allows it, and is cleaned otherwise. A
        request that is not running is ignored: it was finished before.
        """
        slot = self._running.pop(request_id, None)
        if slot is None:
            return
        self._began(request_id)
        if not slot.keep or len(held_ids) < self._min_reuse:
            slot.touched_tokens = slot.counted_tokens
            self._drop(slot)
            return
        ids = as_ids(held_ids)[: self._max_len]
        slot.touched_tokens = max(slot.touched_tokens, slot.valid_tokens, len(ids))
        slot.state = "idle"
        slot.prompt_tokens = min(len(slot.ids), len(ids))
        known = slot.hashed if common_tokens(slot.ids, ids) >= slot.hashed.tokens else NOTHING
        slot.ids, slot.valid_tokens, slot.reserved_tokens = ids, len(ids), 0
        slot.used_s = now_s
        slot.hashed = extended(known, ids)
        self._index.put(slot)
        self._changed.add(slot.index)

    def spoiled(self, slot: int) -> None:
        """What `slot` holds is not what was recorded (the engine found another header, or something else was
        computed there): it is not used again. A request that runs there goes on, and counts as starting anew."""
        record = self._slots[slot]
        if record.state == "running":
            record.valid_tokens = 0
            self._index.put(record)
        elif record.saving:
            self._doom(record)
        elif record.state == "idle":
            self._drop(record)

    # --- over a restart of the service ---

    def take_changes(self) -> list[SlotRecord]:
        """What is known of each slot that another request got, that became idle, or that was emptied since this was
        asked last."""
        changed, self._changed = sorted(self._changed), set()
        return [
            record_of(slot, self._index.scope_of(slot))
            if slot.state in ("running", "idle") and slot.keep and not slot.doomed
            else SlotRecord(slot=slot.index, state="empty")
            for slot in (self._slots[index] for index in changed)
        ]

    def rewritten(self, slot: int) -> None:
        """The header of `slot` was written anew by somebody else than the engine; its record counts from now on."""
        self._changed.add(slot)

    def revive(self, record: SlotRecord, ids: Sequence[int], now_s: float) -> bool:
        """The slot of `record` holds the KV of `ids` from an earlier service: it is idle from now on, unless that is
        more than the budget leaves or too short to be of use. Raises `ValueError` for a slot that is not free."""
        slot = self._slots[record.slot]
        if slot.state != "free" or record.scope is None:
            raise ValueError(f"slot {record.slot} is {slot.state} and cannot be revived")
        counted_bytes = sum(self._account.bytes_of(other.counted_tokens) for other in self._slots)
        more_bytes = self._account.bytes_of(max(record.touched_tokens, len(ids)))
        too_much = counted_bytes + more_bytes > self._account.budget_bytes
        if too_much or not self._min_reuse <= len(ids) <= self._max_len:
            return False
        fill(slot, record, ids, owner=record.scope.owner, now_s=now_s)
        self._index.set_scope(slot, record.scope)
        self._index.put(slot)
        self._changed.add(slot.index)
        return True

    # --- memory ---

    def take_cleanups(self) -> list[int]:
        """Slots whose memory is to be given back, each once; unusable until `cleaned`. A slot that the engine may
        yet copy from is held back until it has."""
        ready = [slot for slot in self._slots if slot.state == "cleaning" and not slot.offered and not slot.readers]
        for slot in ready:
            slot.offered = True
        return [slot.index for slot in ready]

    def cleaned(self, slot: int) -> None:
        """The memory of `slot` is given back. Raises `ValueError` for a slot that was not to be cleaned."""
        record = self._slots[slot]
        if record.state != "cleaning" or not record.offered:
            raise ValueError(f"slot {slot} is {record.state} and was not handed out for cleaning")
        record.state, record.offered, record.touched_tokens = "free", False, 0

    def set_budget(self, budget_bytes: int, now_s: float) -> None:
        """From now on all slots together may take `budget_bytes`. Idle ones are evicted until they do."""
        self._account = msgspec.structs.replace(self._account, budget_bytes=budget_bytes)
        over_bytes = sum(
            self._account.bytes_of(slot.counted_tokens) for slot in self._slots if slot.state != "cleaning"
        )
        worth, _ = self._worths(now_s)
        by_density = sorted(
            (slot for slot in self._slots if slot.evictable),
            key=lambda slot: (worth[slot.index] / max(1, slot.touched_tokens), slot.used_s),
        )
        for slot in by_density:
            if over_bytes <= budget_bytes:
                break
            over_bytes -= self._account.bytes_of(slot.touched_tokens)
            self._evict(slot)

    def evict_all(self) -> None:
        """The model leaves memory: nothing that is idle stays in a slot. Saved copies do; one that is being made is
        to be deleted at its `save_done`."""
        for slot in self._slots:
            if slot.evictable:
                self._evict(slot)
            elif slot.saving:
                self._doom(slot)

    def set_rates(self, *, prefill_tokens_per_s: float, restore_bytes_per_s: float) -> None:
        """Measured speeds: they decide when reading a saved copy pays."""
        self._saved.set_rates(prefill_tokens_per_s, restore_bytes_per_s)

    # --- saved copies ---

    def idle(self, now_s: float, idle_s: float, min_tokens: int) -> list[IdleSlot]:
        """Slots that nobody used for `idle_s` and that hold at least `min_tokens`, longest idle first."""
        found = [
            slot
            for slot in self._slots
            if slot.evictable and now_s - slot.used_s >= idle_s and len(slot.ids) >= min_tokens
        ]
        return [
            IdleSlot(
                slot=slot.index,
                scope=self._index.scope_of(slot),
                ids=slot.ids.tolist(),
                conversation=slot.conversation,
                idle_s=now_s - slot.used_s,
                contents=slot.hashed,
                saved_id=slot.saved_id if self._saved.get(slot.saved_id) is not None else None,
            )
            for slot in sorted(found, key=lambda slot: slot.used_s)
        ]

    def begin_save(self, slot: int) -> None:
        """`slot` is being read: until `save_done` it is neither evicted nor written to (copying from it is fine).
        Raises `ValueError` when it is not idle."""
        record = self._slots[slot]
        if not record.evictable:
            raise ValueError(f"slot {slot} is {record.state} and cannot be saved now")
        record.saving = True

    def save_done(self, slot: int, saved_id: str | None, free: bool, size_bytes: int = 0) -> list[str]:
        """`slot` was saved as `saved_id` (None: it was not); `free` gives its memory back.

        Returns saved copies to delete: those that the new one contains whole, and the new one itself when its
        contents were forgotten meanwhile. Raises `ValueError` when no save is under way.
        """
        record = self._slots[slot]
        if not record.saving:
            raise ValueError(f"slot {slot} is not being saved")
        record.saving = False
        if record.doomed:
            self._drop(record)
            return [] if saved_id is None else [saved_id]
        superseded: list[str] = []
        if saved_id is not None:
            if self._saved.get(saved_id) is None:
                superseded = self._saved.add(saved_id, self._copy_of(record, size_bytes))
            record.saved_id = saved_id
        if free:
            if saved_id is None:
                self._evict(record)
            else:
                self._drop(record)
        return superseded

    def add_saved(
        self, saved_id: str, scope: Scope, ids: Sequence[int], size_bytes: int, conversation: str = ""
    ) -> list[str]:
        """A saved copy takes part in lookups, as when they are found at start. Returns those it contains whole."""
        array = as_ids(ids)
        copy = SavedCopy(
            tree=self._index.tree_of(scope),
            owner=scope.owner,
            ids=array,
            size_bytes=size_bytes,
            contents=extended(NOTHING, array),
            conversation=conversation,
            prompt_tokens=len(array),
        )
        return self._saved.add(saved_id, copy)

    def drop_saved(self, saved_id: str) -> None:
        """The saved copy is gone; nothing happens when it is not known."""
        self._saved.drop(saved_id)

    def forget(self, owner: str | None) -> Forgotten:
        """Drop everything of `owner` (None: of everybody). What runs goes on, and is dropped at its end."""
        slots = 0
        for slot in self._slots:
            if slot.state not in ("idle", "running") or (owner is not None and slot.owner != owner):
                continue
            if slot.state == "running":
                slot.keep = False
                self._index.remove(slot)
                self._changed.add(slot.index)
            elif slot.saving:
                slots += not slot.doomed
                self._doom(slot)
            else:
                slots += 1
                self._drop(slot)
        saved_ids = self._saved.forget(owner)
        self._evicted.forget(owner)
        return Forgotten(slots, saved_ids)

    # --- figures ---

    def figures(self) -> KvFigures:
        states = Counter(slot.state for slot in self._slots)
        return KvFigures(
            hits=self._hits,
            misses=dict(self._misses),
            reused_tokens=self._reused,
            copied_tokens=self._copied,
            restored_tokens=self._restored,
            evictions=self._evictions,
            resident_tokens=sum(slot.valid_tokens for slot in self._slots if slot.state in ("idle", "running")),
            resident_bytes=sum(self._account.bytes_of(slot.counted_tokens) for slot in self._slots),
            budget_bytes=self._account.budget_bytes,
            running_slots=states["running"],
            idle_slots=states["idle"],
            free_slots=states["free"],
            cleaning_slots=states["cleaning"],
            saved_copies=len(self._saved),
        )

    # --- finding ---

    def _sources(self, scope: Scope, ids: Ids, conversation: str) -> list[Source]:
        tree = self._index.tree_of(scope)
        return [
            *self._index.sources(tree, ids, scope.owner, conversation),
            *self._saved.sources(tree, ids, owner=scope.owner, conversation=conversation),
        ]

    def _conversation_of(self, source: Source) -> str:
        if source.slot is not None:
            return source.slot.conversation
        copy = self._saved.get(source.saved_id)
        return copy.conversation if copy is not None else ""

    def _worths(self, now_s: float) -> tuple[dict[int, float], dict[int, int]]:
        """Of the evictable slots, by index: what losing them costs in tokens, and the tokens that only they hold."""
        worth: dict[int, float] = {}
        unique: dict[int, int] = {}
        for slot in self._slots:
            if slot.evictable:
                alone = unique[slot.index] = self._index.unique_tokens(slot)
                copy = self._saved.get(slot.saved_id)
                again = alone if copy is None else min(alone, self._saved.restore_tokens(copy))
                worth[slot.index] = again * return_chance(slot, now_s)
        return worth, unique

    # --- changing ---

    def _take(self, lookup: Lookup, choice: Choice, miss: Miss | None, now_s: float) -> Placement:
        wanted, ids = lookup.wanted, lookup.ids
        slot, source = choice.target, choice.source
        matched = source.tokens if source is not None else 0
        valid = min(matched, len(ids) - 1)
        held = source.slot if source is not None else None
        copy = self._saved.get(source.saved_id) if source is not None else None
        goes_on = source is not None and source.continues
        conversation = wanted.conversation
        if source is not None and goes_on and not conversation:
            conversation = self._conversation_of(source)
        holds: SlotContents | None = None
        known = NOTHING  # record of a beginning of ids, so that less is to be hashed when the request ends
        if held is not None:
            known = held.hashed
            holds = held.hashed if held.state == "idle" else None
            held.hits, held.used_s = held.hits + 1, now_s
        elif copy is not None:
            known = holds = copy.contents
            slot.touched_tokens = max(slot.touched_tokens, len(copy.ids))
        in_place = held is slot
        if slot.state == "idle":
            # What the next turn of a conversation cuts off is no loss that anybody will ask about.
            kept = in_place and wanted.keep
            self._overwrite(slot, remember=not (kept and goes_on), counts=not kept)
        hits = slot.hits if in_place else 0
        slot.clear()
        slot.state, slot.keep = "running", wanted.keep
        slot.owner, slot.ids, slot.hits = wanted.scope.owner, ids, hits
        slot.conversation, slot.used_s = conversation or self._new_conversation(ids), now_s
        slot.reserved_tokens = self._reserve(wanted)
        slot.hashed = known if known.tokens <= matched else NOTHING
        # What is in place was reported by `finished`; what is copied or read counts when the engine says so.
        slot.valid_tokens = valid if in_place else 0
        self._running[wanted.request_id] = slot
        self._index.set_scope(slot, wanted.scope)
        self._index.put(slot)
        self._changed.add(slot.index)
        self._hits += valid > 0
        self._reused += valid
        self._restored += valid if copy is not None else 0
        if held is not None and not in_place:
            held.readers += 1
            self._reading[wanted.request_id] = held
            self._copied += valid
        return Placement(
            slot=slot.index,
            valid_tokens=valid,
            copy_from=held.index if held is not None and not in_place else None,
            holds=holds,
            saved=source.saved_id if source is not None else None,
            miss=miss,
            conversation=slot.conversation,
        )

    def _reserve(self, wanted: Wanted) -> int:
        return min(len(wanted.ids) + wanted.max_new_tokens, self._max_len)

    def _new_conversation(self, ids: Ids) -> str:
        """A name that no other conversation has, also not a saved one of an earlier run."""
        self._conversations += 1
        return f"#{zlib.crc32(ids.tobytes()):08x}-{self._conversations}"

    def _began(self, request_id: int) -> None:
        """The engine has begun the request: what it copies is copied."""
        source = self._reading.pop(request_id, None)
        if source is not None:
            source.readers -= 1

    def _copy_of(self, slot: Slot, size_bytes: int) -> SavedCopy:
        return SavedCopy(
            tree=self._index.tree_of_slot(slot),
            owner=slot.owner,
            ids=slot.ids,
            size_bytes=size_bytes,
            contents=slot.hashed,
            conversation=slot.conversation,
            prompt_tokens=slot.prompt_tokens,
        )

    def _overwrite(self, slot: Slot, *, remember: bool, counts: bool) -> None:
        """What the idle `slot` held can no longer be found; remembered, so that a miss can be explained."""
        self._index.remove(slot)
        if remember:
            self._evicted.add(self._index.tree_of_slot(slot), slot.owner, slot.ids)
        self._evictions += counts

    def _evict(self, slot: Slot) -> None:
        self._overwrite(slot, remember=True, counts=True)
        self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        """Nothing of it is of use: clean it."""
        self._index.remove(slot)
        slot.clear()
        slot.state, slot.offered = "cleaning", False
        self._changed.add(slot.index)

    def _doom(self, slot: Slot) -> None:
        """The slot is to be dropped as soon as its save is done."""
        slot.doomed = True
        self._index.remove(slot)
        self._changed.add(slot.index)
