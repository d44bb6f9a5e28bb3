"""A slot's record for the service after this one, and a slot from the record of the one before. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from magnitude.engine.protocol import SlotContents
from magnitude.engine.slot_header import extend_hash
from magnitude.schedule.prefix_tree import Ids, as_ids
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_choice import NOTHING, Slot
from magnitude.schedule.slot_terms import SlotRecord


def record_of(slot: Slot, scope: Scope) -> SlotRecord:
    """What the next service should know of a slot with contents of `scope`."""
    running = slot.state == "running"
    return SlotRecord(
        slot=slot.index,
        state="running" if running else "idle",
        scope=scope,
        conversation=slot.conversation,
        prompt_tokens=len(slot.ids) if running else slot.prompt_tokens,
        contents=NOTHING if running else slot.hashed,
        touched_tokens=slot.touched_tokens,
        hits=slot.hits,
        used_s=slot.used_s,
    )


def fill(slot: Slot, record: SlotRecord, ids: Sequence[int], *, owner: str, now_s: float) -> None:
    """The free `slot` is an idle one from now on, with the KV of `ids`."""
    slot.state, slot.keep = "idle", True
    slot.owner, slot.conversation, slot.hits = owner, record.conversation, record.hits
    slot.ids, slot.valid_tokens = as_ids(ids), len(ids)
    slot.prompt_tokens = min(record.prompt_tokens, len(ids))
    slot.touched_tokens = max(record.touched_tokens, len(ids))
    slot.used_s = min(record.used_s, now_s)
    slot.hashed = extended(NOTHING, slot.ids)


def extended(known: SlotContents, ids: Ids) -> SlotContents:
    """The record of all of `ids`, of which `known` is the record of a beginning."""
    return SlotContents(tokens=len(ids), ids_hash=extend_hash(known.ids_hash, ids[known.tokens :].tolist()))
