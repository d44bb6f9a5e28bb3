"""The KV memory: a memfd that the service creates and owns, so that it outlives every engine.

The engine maps the same file. Pages exist only where something was written; a freed slot gives its pages back
to the system at once, so that idle conversations hold no memory.
"""

from __future__ import annotations

import mmap
import os

from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.slot_header import HEADER_BYTES, trusted_length, unpack_header


class KvMemory:
    """KV memory of one model. Not thread-safe; owned by the service's event loop."""

    def __init__(self, name: str, layout: KvLayout) -> None:
        self.layout = layout
        self.fd = os.memfd_create(f"magnitude-kv-{name}"[:200], os.MFD_CLOEXEC)
        os.ftruncate(self.fd, layout.total_bytes)
        self._map = mmap.mmap(self.fd, layout.total_bytes)

    def release_slot(self, slot: int) -> None:
        """Give the pages of `slot` back. What was in them reads as zero afterwards.

        Only pages that lie wholly inside the slot are dropped: slots share tensors, and a slot's border need not
        be a page's border.
        """
        page = mmap.PAGESIZE
        for layer in range(self.layout.layers):
            for value in (False, True):
                start = self.layout.tensor_offset(layer, value, slot)
                first = -(-start // page) * page
                last = (start + self.layout.slot_bytes) // page * page
                if last > first:
                    self._map.madvise(mmap.MADV_REMOVE, first, last - first)
        header = self.layout.header_offset(slot)
        self._map.madvise(mmap.MADV_REMOVE, header, self.layout.header_offset(1))

    def held_tokens(self, slot: int, model_hash: str, ids: list[int]) -> int:
        """How many positions of the beginning of `ids` the slot's header says that it holds; 0 for other contents."""
        header = unpack_header(os.pread(self.fd, HEADER_BYTES, self.layout.header_offset(slot)))
        return trusted_length(header, model_hash, self.layout.layout_id, ids)

    def resident_bytes(self) -> int:
        """Bytes that are really held (allocated blocks of the memfd)."""
        return os.fstat(self.fd).st_blocks * 512

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)
