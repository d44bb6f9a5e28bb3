"""What is said about KV slots: what a request wants, where it is placed, what is held and why something was not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from magnitude.engine.protocol import SlotContents
from magnitude.schedule.scope import Scope

MissReason = Literal["cold", "differs", "evicted", "other_model", "other_adapter", "other_key", "other_layout", "off"]


class PagedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a slot that grows by `bytes_per_token`, in steps of `page_tokens`: those that share pages."""

    bytes_per_token: int
    page_tokens: int = 1

    def bytes_of(self, tokens: int, max_len: int) -> int:
        """What `tokens` positions take in a slot of `max_len`."""
        whole = -(-tokens // self.page_tokens) * self.page_tokens
        return min(whole, max_len) * self.bytes_per_token


class Wanted(msgspec.Struct, frozen=True):
    """A generation that wants a slot. `keep` False: nothing of it stays or serves others. `reuse` False: computed
    from its first token."""

    request_id: int
    scope: Scope
    ids: Sequence[int]
    max_new_tokens: int
    keep: bool
    conversation: str = ""
    reuse: bool = True


class Miss(msgspec.Struct, frozen=True):
    """Why the ids from `at_token` on have to be computed.

    cold: nothing like it is known; differs: the longest known sequence goes on differently; evicted: it was here
    (or is on disk, where reading it would take longer); other_*: only another scope has it; off: requests of this
    kind are not kept or not served from the cache. For figures only: `other_key` must never reach a client.
    """

    reason: MissReason
    at_token: int


class Placement(msgspec.Struct, frozen=True):
    """Where a generation runs, and what it need not compute.

    `valid_tokens` (always fewer than the prompt's) are in `slot` already, or are copied from `copy_from`, or come
    with the saved copy `saved`, which is to be read into `slot` first. `holds` is the record of all that the source
    holds; None beside a `copy_from` says that a generation still runs in it, whose ids the engine itself knows.
    """

    slot: int
    valid_tokens: int
    copy_from: int | None
    holds: SlotContents | None
    saved: str | None
    miss: Miss | None
    conversation: str = ""  # the request's own name for it, or the one that the table gave


class Known(msgspec.Struct, frozen=True):
    """The longest usable beginning, and the conversation that these ids continue ("": none that is known)."""

    tokens: int
    conversation: str


class IdleSlot(msgspec.Struct, frozen=True):
    """A slot that could be saved. `saved_id`: this very sequence is on disk already, so that it can just be freed."""

    slot: int
    scope: Scope
    ids: Sequence[int]
    conversation: str
    idle_s: float
    contents: SlotContents
    saved_id: str | None = None


class SlotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a slot, except for the ids that it holds; for the service after this one (`slot_journal.py`).

    `empty`: whatever it holds is to be forgotten. `contents` count while it is idle, `since_sequence` (the sequence
    number of the slot's header when the request was given the slot) while one runs in it. `used_s` is monotonic,
    which goes on over a restart of the service.
    """

    slot: int
    state: Literal["empty", "running", "idle"]
    scope: Scope | None = None
    conversation: str = ""
    prompt_tokens: int = 0
    contents: SlotContents = SlotContents(tokens=0, ids_hash=0)
    since_sequence: int = 0
    touched_tokens: int = 0
    hits: int = 0
    used_s: float = 0.0


class Revived(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's slots have from the service before this one."""

    conversations: int = 0
    of_running: int = 0  # of those, how many were being computed when that service ended
    tokens: int = 0


class Forgotten(msgspec.Struct, frozen=True):
    """Slots whose contents were dropped, and saved copies that are to be deleted."""

    slots: int
    saved_ids: list[str]


class KvFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start; a request can be both a hit and, for the rest of its prompt, a miss."""

    hits: int
    misses: dict[str, int]
    reused_tokens: int  # positions that were not computed, from wherever
    copied_tokens: int  # of those, copied from another slot
    restored_tokens: int  # of those, read from disk
    evictions: int
    resident_tokens: int  # held by idle and running slots
    resident_bytes: int  # counted against the budget
    budget_bytes: int
    running_slots: int
    idle_slots: int
    free_slots: int
    cleaning_slots: int
    saved_copies: int
