"""Where each KV tensor and each slot header lies in the memfd that the service owns.

Pure arithmetic, shared by the service (which creates and frees the memory) and the engine (which maps it and
binds it to ONNX Runtime by pointer).

The file is: one header a slot with the ids of its positions (`slot_header.py`), then for each layer K and V as
`[slots, kv_heads, padded_len, head_dim]` and, where they have a scale for each position and head, the scales of K and
of V as `[slots, kv_heads, padded_len]`.
`padded_len` is `max_len` rounded up until a slot ends at a 64 KiB border in each of these tensors, which is a page's
border for every page size that Arm Linux uses (4, 16 and 64 KiB): a slot can be mapped by itself, and freeing its
pages never touches its neighbour. The positions of the padding are never used and take no memory.
"""

from __future__ import annotations

import math

import msgspec

from magnitude.models.description import DecoderShape, KvPart, KvPartName, KvType, kv_parts

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
    def parts(self) -> tuple[KvPart, ...]:
        """The tensors of one layer, in their order in memory."""
        return kv_parts(self.kv_type, self.head_dim)

    @property
    def padded_len(self) -> int:
        """Positions for which a slot has addresses; the tensors' length dimension."""
        steps = (ALIGN_BYTES // math.gcd(ALIGN_BYTES, self.kv_heads * part.row_bytes) for part in self.parts)
        step = math.lcm(*steps)
        return -(-self.max_len // step) * step

    @property
    def token_bytes(self) -> int:
        """Bytes of one position over all layers and heads."""
        return self.layers * self.kv_heads * sum(part.row_bytes for part in self.parts)

    def slot_bytes(self, part: KvPartName) -> int:
        """Bytes of address space of one slot within one tensor."""
        return self.kv_heads * self.padded_len * self._part(part).row_bytes

    @property
    def slot_header_bytes(self) -> int:
        """Bytes of address space of one slot's header and ids: 64 KiB up to 16,128 positions."""
        return -(-(IDS_AT + ID_BYTES * self.max_len) // ALIGN_BYTES) * ALIGN_BYTES

    @property
    def header_bytes(self) -> int:
        return self.slot_header_bytes * self.slots

    def tensor_bytes(self, part: KvPartName) -> int:
        return self.slot_bytes(part) * self.slots

    @property
    def layer_bytes(self) -> int:
        """Bytes of address space of one layer's tensors, which lie one behind the other."""
        return sum(self.tensor_bytes(part.name) for part in self.parts)

    @property
    def total_bytes(self) -> int:
        return self.header_bytes + self.layers * self.layer_bytes

    def header_offset(self, slot: int) -> int:
        return self.slot_header_bytes * slot

    def tensor_offset(self, layer: int, part: KvPartName, slot: int = 0) -> int:
        """Offset of `slot` in that tensor of layer `layer`."""
        place = self.header_bytes + layer * self.layer_bytes
        for other in self.parts:
            if other.name == part:
                break
            place += self.tensor_bytes(other.name)
        return place + slot * self.slot_bytes(part)

    def _part(self, name: KvPartName) -> KvPart:
        return next(part for part in self.parts if part.name == name)
