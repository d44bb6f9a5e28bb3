"""Where each KV tensor and each slot header lies in the memfd that the service owns.

Pure arithmetic, shared by the service (which creates and frees the memory) and the engine (which maps it and
binds it to ONNX Runtime by pointer).

The file is: one header a slot with the ids of its positions (`slot_header.py`), then for each layer K and V as
`[slots, kv_heads, padded_len, head_dim]`.
`padded_len` is `max_len` rounded up until a slot ends at a 64 KiB border, which is a page's border for every page
size that Arm Linux uses (4, 16 and 64 KiB): a slot can be mapped by itself, and freeing its pages never touches its
neighbour. The positions of the padding are never used and take no memory.
"""

from __future__ import annotations

import math

import msgspec

from magnitude.models.description import KV_ITEM_BYTES, DecoderShape, KvType

ALIGN_BYTES = 65536
LAYOUT_VERSION = 2
# Where the ids of a slot's positions begin behind its header, which takes 230 bytes; 32 bits each.
IDS_AT = 1024
ID_BYTES = 4


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Layout of one model's KV memory."""

    layers: int
    slots: int
    kv_heads: int
    max_len: int
    head_dim: int
    kv_type: KvType

    @classmethod
    def of(cls, shape: DecoderShape, *, slots: int, max_len: int) -> KvLayout:
        return cls(
            layers=shape.layers,
            slots=slots,
            kv_heads=shape.kv_heads,
            max_len=max_len,
            head_dim=shape.head_dim,
            kv_type=shape.kv_type,
        )

    @property
    def layout_id(self) -> str:
        """Names the layout in slot headers, saved prefixes and dumps."""
        return f"v{LAYOUT_VERSION}-{self.kv_type}-l{self.layers}-h{self.kv_heads}-d{self.head_dim}-m{self.max_len}"

    @property
    def padded_len(self) -> int:
        """Positions for which a slot has addresses; the tensors' length dimension."""
        step = ALIGN_BYTES // math.gcd(ALIGN_BYTES, self.kv_heads * self.head_dim * KV_ITEM_BYTES[self.kv_type])
        return -(-self.max_len // step) * step

    @property
    def slot_bytes(self) -> int:
        """Bytes of address space of one slot within one tensor."""
        return self.kv_heads * self.padded_len * self.head_dim * KV_ITEM_BYTES[self.kv_type]

    @property
    def slot_header_bytes(self) -> int:
        """Bytes of address space of one slot's header and ids: 64 KiB up to 16,128 positions."""
        return -(-(IDS_AT + ID_BYTES * self.max_len) // ALIGN_BYTES) * ALIGN_BYTES

    @property
    def header_bytes(self) -> int:
        return self.slot_header_bytes * self.slots

    @property
    def tensor_bytes(self) -> int:
        return self.slot_bytes * self.slots

    @property
    def total_bytes(self) -> int:
        return self.header_bytes + 2 * self.layers * self.tensor_bytes

    def header_offset(self, slot: int) -> int:
        return self.slot_header_bytes * slot

    def tensor_offset(self, layer: int, value: bool, slot: int = 0) -> int:
        """Offset of `slot` in layer `layer`'s K (`value=False`) or V (`value=True`) tensor."""
        return self.header_bytes + (2 * layer + value) * self.tensor_bytes + slot * self.slot_bytes
