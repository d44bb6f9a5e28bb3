"""A model that is to be served: how it runs, its KV, and what became of loading it."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Literal

from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.protocol import TensorInfo
from magnitude.errors import MagnitudeError
from magnitude.models.adapters import AdapterDescription, kv_hash
from magnitude.models.description import ModelDescription
from magnitude.policy.provision import Provision
from magnitude.schedule.kv_memory import KvMemory
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_table import SlotTable
from magnitude.schedule.slot_terms import PagedTensor, Revived

# When a model is in memory: always; from the start on, unless another one needs the room; or while it is asked for.
Stay = Literal["pinned", "at_start", "on_demand"]


class ModelPlan:
    """`failure` says why the model cannot serve, `degraded` why it serves on another graph than planned or without
    its draft model `draft` ("" while it does not), `graph_refused` why it is not planned with the graph that is
    wished for; `signature` are its graph's inputs and outputs once it is loaded; `graph_file` is the one in use.

    A decoder has KV memory, a table of what lies in its slots, and one slot beyond them (`scratch_slot`) for what
    runs before it serves. All slots together may take `kv_budget_bytes`. `measured_slots` generations run at once as
    planned: the knee of its throughput, once that is measured. `chosen_slots` run instead where somebody has chosen.
    """

    def __init__(
        self,
        description: ModelDescription,
        provision: Provision,
        *,
        draft: ModelDescription | None = None,
        adapters: Sequence[AdapterDescription] = (),
        share_prefixes: bool = False,
        stay: Stay = "pinned",
    ) -> None:
        self.description = description
        self.provision = provision
        self.draft = draft
        self.adapters = tuple(adapters)
        self.stay: Stay = stay
        self.graph_file = description.graph_file
        self.failure: MagnitudeError | None = None
        self.degraded = ""
        self.graph_refused = ""
        self.outside = description.outside  # of a variant: why it is never chosen by itself
        self.signature: tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]] | None = None
        self.measured_slots = provision.max_batch
        self.chosen_slots: int | None = None
        self.verifies_exactly = False  # until it is measured
        self.kv: KvMemory | None = None
        self.table: SlotTable | None = None
        self.kv_budget_bytes = 0
        self.revived = Revived()
        if description.decoder is not None:
            token_bytes = description.decoder.kv_bytes_per_token()
            full_bytes = provision.slots * provision.context_length * token_bytes
            self.kv_budget_bytes = provision.kv_budget_bytes or full_bytes
            layout = KvLayout.of(description.decoder, slots=provision.slots + 1, max_len=provision.context_length)
            self.kv = KvMemory(description.name, layout)
            self.table = SlotTable(
                slots=provision.slots,
                max_len=provision.context_length,
                tensors=_paged(layout),
                budget_bytes=self.kv_budget_bytes,
                share_prefixes=share_prefixes,
            )

    @property
    def compute_slots(self) -> int:
        """Generations that run at once."""
        return max(1, min(self.chosen_slots, self.provision.max_batch)) if self.chosen_slots else self.measured_slots

    @property
    def stands_in(self) -> bool:
        """Whether requests for its parent may be answered by this variant."""
        own_graph = self.graph_file == self.description.graph_file  # its fallback graph is slower than any parent
        return bool(self.description.variant_of) and not self.outside and self.failure is None and own_graph

    @property
    def max_draft(self) -> int:
        """Most tokens drafted ahead: none where that could change the text, unless it is asked for."""
        return self.provision.max_draft if self.verifies_exactly or self.provision.draft_inexact else 0

    @property
    def scratch_slot(self) -> int:
        return self.provision.slots

    def scope(self, owner: str, adapter: str) -> Scope:
        """What must be the same for KV of this model to be used again."""
        hashes = {entry.name: entry.adapter_hash for entry in self.adapters}
        return Scope(
            model=self.description.name,
            model_hash=kv_hash(self.description.model_hash, hashes.get(adapter, "")),
            layout_id=self.kv.layout.layout_id if self.kv is not None else "",
            plan=self.graph_file,
            adapter=adapter,
            owner=owner,
        )


def _paged(layout: KvLayout) -> tuple[PagedTensor, ...]:
    """What a position of a slot takes in each tensor of all layers: a head's positions lie page by page."""
    heads = layout.layers * layout.kv_heads
    return tuple(
        PagedTensor(bytes_per_token=heads * part.row_bytes, page_tokens=max(1, mmap.PAGESIZE // part.row_bytes))
        for part in layout.parts
    )
