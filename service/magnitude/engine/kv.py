"""The KV memory as the engine sees it: the service's memfd, mapped."""

from __future__ import annotations

import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

from magnitude.engine.kv_layout import ID_BYTES, IDS_AT, KvLayout
from magnitude.engine.protocol import SlotContents
from magnitude.engine.slot_header import (
    HEADER_BYTES,
    SlotHeader,
    SlotState,
    holds_more,
    stored_ids,
    unpack_header,
)
from magnitude.errors import ModelError, RequestError
from magnitude.models.description import KvPartName


def check_slot(slot: int, slots: int) -> None:
    """Raise `RequestError` for a slot that is not there."""
    if not 0 <= slot < slots:
        raise RequestError(f"slot {slot} does not exist, there are {slots}", param="slot")


class KvMemory:
    """The mapped memfd. The `fd` that is given stays the caller's to close.

    Raises `ModelError` when the memory is smaller than the layout needs.
    """

    def __init__(self, fd: int, layout: KvLayout) -> None:
        size_bytes = os.fstat(fd).st_size
        if size_bytes < layout.total_bytes:
            raise ModelError(
                f"the KV memory has {size_bytes} bytes, its layout needs {layout.total_bytes}",
                code="kv_memory_too_small",
                hint="The service and the engine disagree about slots or context length; restart the service",
            )
        self.layout = layout
        self.fd = os.dup(fd)
        self._closing = weakref.finalize(self, os.close, self.fd)  # also when a load fails half way
        self._map: mmap.mmap | None = mmap.mmap(fd, layout.total_bytes, mmap.MAP_SHARED)

    def slot_bytes(self, layer: int, part: KvPartName, slot: int) -> NDArray[np.uint8]:
        """`slot`'s block of one of `layer`'s tensors, `[kv_heads, padded_len, bytes of a head's position]`; no copy.

        The view must be gone before `close`.
        """
        assert self._map is not None
        layout = self.layout
        block = np.frombuffer(self._map, np.uint8, layout.slot_bytes(part), layout.tensor_offset(layer, part, slot))
        return block.reshape(layout.kv_heads, layout.padded_len, -1)

    def copy_prefix(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of a slot into another one. The headers are left alone."""
        for layer in range(self.layout.layers):
            for part in self.layout.parts:
                block = self.slot_bytes(layer, part.name, target)
                block[:, :tokens] = self.slot_bytes(layer, part.name, source)[:, :tokens]

    def read_header(self, slot: int) -> SlotHeader | None:
        assert self._map is not None
        at = self.layout.header_offset(slot)
        return unpack_header(self._map[at : at + HEADER_BYTES])

    def holds_more(self, slot: int, model_hash: str, contents: SlotContents) -> bool:
        """Whether `slot` holds the `contents` and possibly further positions, by the ids that it has itself."""
        assert self._map is not None
        header = self.read_header(slot)
        length = min(header.length, self.layout.max_len) if header is not None else 0
        at = self.layout.header_offset(slot) + IDS_AT
        stored = stored_ids(header, self._map[at : at + length * ID_BYTES])
        return holds_more(header, stored, model_hash, self.layout.layout_id, contents)

    def open_slot(self, slot: int, model_hash: str) -> SlotState:
        assert self._map is not None
        return SlotState(self._map, self.layout.header_offset(slot), model_hash, self.layout.layout_id)

    def close(self) -> None:
        """Unmap. No view of the memory may be left."""
        if self._map is not None:
            self._map.close()
            self._map = None
            self._closing()
