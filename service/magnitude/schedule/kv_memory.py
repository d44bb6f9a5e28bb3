"""The KV memory: a memfd that the service creates and owns, so that it outlives every engine.

The engine maps the same file. Pages exist only where something was written; a freed slot gives its pages back
to the system at once, so that idle conversations hold no memory.

The memory can outlive the service as well (`kept_memory.py`). Its size is sealed: nobody who holds the descriptor can
cut it under the feet of those who have it mapped.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from array import array

import msgspec

from magnitude.engine.kv_layout import ID_BYTES, IDS_AT, KvLayout
from magnitude.engine.protocol import SlotContents
from magnitude.engine.slot_header import (
    HASH_OF_NOTHING,
    HEADER_BYTES,
    SlotHeader,
    extend_hash,
    holds_more,
    stored_ids,
    trusted_length,
    unpack_header,
)
from magnitude.errors import MagnitudeError

# Neither size nor seals can be changed any more; contents and holes can.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# The kernel takes names of up to 249 bytes (memfd_create(2)).
_NAME_BYTES = 200


class MemoryRefused(MagnitudeError):
    """A descriptor is not the memory that it should be."""

    code = "memory_refused"


class SlotContent(msgspec.Struct, frozen=True):
    """What a slot says of itself."""

    header: SlotHeader
    ids: array[int]

    def holds(self, model_hash: str, contents: SlotContents) -> bool:
        """Whether those `contents` are there, and possibly more."""
        return holds_more(self.header, self.ids, model_hash, self.header.layout_id, contents)


def create_memory(name: str, size_bytes: int) -> int:
    """The descriptor of new memory, all zero, whose size stays as it is."""
    fd = os.memfd_create(name[:_NAME_BYTES], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_memory(fd: int, size_bytes: int | None = None) -> None:
    """Raise `MemoryRefused` unless `fd` is memory as `create_memory` makes it (of that size, when one is given)."""
    try:
        status = os.fstat(fd)
        # Only memory files know seals.
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    except OSError as error:
        raise MemoryRefused(f"it is no memory file: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_nlink:
        raise MemoryRefused("it is no memory file")
    if seals != SEALS or not writable:
        raise MemoryRefused("it can be cut or cannot be written")
    if size_bytes is not None and status.st_size != size_bytes:
        raise MemoryRefused(f"it has {status.st_size} bytes, not {size_bytes}")


class KvMemory:
    """KV memory of one model. Not thread-safe; owned by the service's event loop.

    `fd` is memory of this layout from before, which this object owns from now on; None makes new one. Raises
    `MemoryRefused` when it is not such memory; `fd` stays the caller's then.
    """

    def __init__(self, name: str, layout: KvLayout, fd: int | None = None) -> None:
        self.layout = layout
        if fd is not None:
            check_memory(fd, layout.total_bytes)
        self.fd = create_memory(f"magnitude-kv-{name}", layout.total_bytes) if fd is None else fd
        self._map = mmap.mmap(self.fd, layout.total_bytes)

    @property
    def inode(self) -> int:
        """Tells this memory from every other one that exists on the machine."""
        return os.fstat(self.fd).st_ino

    def release_slot(self, slot: int) -> None:
        """Give the pages of `slot` back. What was in them reads as zero afterwards.

        Only pages that lie wholly inside the slot are dropped: slots share tensors, and a slot's border need not
        be a page's border.
        """
        page = mmap.PAGESIZE
        for layer in range(self.layout.layers):
            for part in self.layout.parts:
                start = self.layout.tensor_offset(layer, part.name, slot)
                first = -(-start // page) * page
                last = (start + self.layout.slot_bytes(part.name)) // page * page
                if last > first:
                    self._map.madvise(mmap.MADV_REMOVE, first, last - first)
        header = self.layout.header_offset(slot)
        self._map.madvise(mmap.MADV_REMOVE, header, self.layout.slot_header_bytes)

    def header(self, slot: int) -> SlotHeader | None:
        """The slot's header; None when it was never written or is torn."""
        return unpack_header(os.pread(self.fd, HEADER_BYTES, self.layout.header_offset(slot)))

    def content(self, slot: int) -> SlotContent | None:
        """What the slot says that it holds; None when it says nothing that can be believed. Nobody may write to it
        meanwhile."""
        header = self.header(slot)
        if header is None or header.length > self.layout.max_len or header.layout_id != self.layout.layout_id:
            return None
        data = os.pread(self.fd, header.length * ID_BYTES, self.layout.header_offset(slot) + IDS_AT)
        ids = stored_ids(header, data)
        return None if ids is None else SlotContent(header, ids)

    def held_tokens(self, slot: int, model_hash: str, ids: list[int]) -> int:
        """How many positions of the beginning of `ids` the slot says that it holds; 0 for other contents."""
        header = self.header(slot)
        if header is None or header.length <= len(ids):
            return trusted_length(header, model_hash, self.layout.layout_id, ids)
        content = self.content(slot)
        known = SlotContents(tokens=len(ids), ids_hash=extend_hash(HASH_OF_NOTHING, ids))
        more = content is not None and content.holds(model_hash, known)
        return len(ids) if more else 0

    def resident_bytes(self) -> int:
        """Bytes that are really held (allocated blocks of the memfd)."""
        return os.fstat(self.fd).st_blocks * 512

    def release(self) -> int:
        """End this object and hand the descriptor back."""
        self._map.close()
        return self.fd

    def close(self) -> None:
        """Also once it is closed or released: then there is nothing to do."""
        if not self._map.closed:
            os.close(self.release())
