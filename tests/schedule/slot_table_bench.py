"""What tests of the slot table share: a small one, and requests that pass through it."""

import itertools
from collections.abc import Sequence

import msgspec

from magnitude.engine.protocol import SlotContents
from magnitude.engine.slot_header import HASH_OF_NOTHING, extend_hash
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_table import SlotTable
from magnitude.schedule.slot_terms import PagedTensor, Placement, Wanted

SCOPE = Scope(model="m", model_hash="h", layout_id="l", plan="p", adapter="", owner="ann")
SYSTEM = list(range(1000, 1800))  # a system prompt with tools, as agents have it
MAX_LEN = 4096

requests = itertools.count(1)


def table(slots: int = 4, *, budget_tokens: int = 100_000, share: bool = False) -> SlotTable:
    return SlotTable(
        slots=slots,
        max_len=MAX_LEN,
        tensors=(PagedTensor(bytes_per_token=10),),
        budget_bytes=10 * budget_tokens,
        share_prefixes=share,
    )


def text(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def wanted(ids: Sequence[int], *, scope: Scope = SCOPE, **rest: object) -> Wanted:
    fields: dict[str, object] = {"request_id": next(requests), "max_new_tokens": 50, "keep": True} | rest
    return msgspec.convert({"scope": scope, "ids": ids} | fields, Wanted)


def placed(kv: SlotTable, request: Wanted, now_s: float = 0.0) -> Placement:
    placement = kv.place(request, now_s)
    assert placement is not None
    return placement


def served(kv: SlotTable, ids: list[int], answer: list[int], now_s: float = 0.0, **rest: object) -> Placement:
    """Place, run and finish a request."""
    request = wanted(ids, **rest)
    placement = placed(kv, request, now_s)
    kv.progressed(request.request_id, len(ids))
    kv.finished(request.request_id, ids + answer, now_s)
    return placement


def contents(ids: Sequence[int]) -> SlotContents:
    return SlotContents(tokens=len(ids), ids_hash=extend_hash(HASH_OF_NOTHING, ids))


def clean(kv: SlotTable) -> None:
    for slot in kv.take_cleanups():
        kv.cleaned(slot)
