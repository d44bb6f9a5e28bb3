"""What a service that ends leaves the next one to know of its KV slots: whose contents they are.

A memory file of its own beside the KV memory (`kv_memory.py`) has one record a slot: the scope (model, adapter,
owner) and the name of the conversation. What the slot holds is not repeated here: the KV memory says that itself,
and the engine keeps it current with every token. A record is written when a request is given the slot, when it ends,
and when the slot is emptied; nothing is written a token.

The service can be killed between any two bytes. Each slot has places for two records, and the older one is
overwritten; a checksum tells a half-written record, and then the one before counts. A record is believed only as far
as the slot bears it out: an idle one when the slot holds what it held when the record was written, a running one when
the engine has begun to write the slot since. So nothing is ever taken for another owner's, not even when the service
dies between giving a slot to somebody and the engine's first write to it.

Everything is in memory: nothing here survives a reboot or reaches a disk.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Callable

import msgspec

from magnitude.engine.kv_layout import KvLayout
from magnitude.schedule.kv_memory import KvMemory, MemoryRefused, SlotContent, check_memory, create_memory
from magnitude.schedule.slot_terms import SlotRecord

MAGIC = b"MAGTABLE"
# Also to be raised when the place of headers and ids in the KV memory changes.
TABLE_VERSION = 1
PAGE_BYTES = 4096
# A record has about 400 bytes: names of models, keys and conversations are bounded by the configuration and the API.
RECORD_BYTES = 2048
DIGEST_BYTES = 8
# Checksum (over all that follows it), serial number, length of the msgpack part.
_PRELUDE = struct.Struct(f"<{DIGEST_BYTES}sQI")


class TableHead(msgspec.Struct, frozen=True, kw_only=True):
    """Which KV memory the table belongs to."""

    version: int
    model: str
    kv_inode: int
    layout: KvLayout
    slots: int


_HEAD = msgspec.msgpack.Decoder(TableHead)
_RECORD = msgspec.msgpack.Decoder(SlotRecord)
_ENCODER = msgspec.msgpack.Encoder()


def pack(serial: int, payload: bytes) -> bytes:
    """A record as it stands in memory."""
    rest = _PRELUDE.pack(b"", serial, len(payload))[DIGEST_BYTES:] + payload
    return _digest(rest) + rest


def unpack(data: bytes) -> tuple[int, bytes] | None:
    """Serial number and payload, or None for what is no whole record."""
    if len(data) < _PRELUDE.size:
        return None
    digest, serial, length = _PRELUDE.unpack_from(data)
    end = _PRELUDE.size + length
    if end > len(data) or _digest(data[DIGEST_BYTES:end]) != digest:
        return None
    return serial, data[_PRELUDE.size : end]


def borne_out(record: SlotRecord, content: SlotContent | None) -> int:
    """How many positions the slot holds of what `record` speaks of; 0: it holds something else."""
    if record.scope is None or content is None:
        return 0
    header, scope = content.header, record.scope
    if record.state == "running":
        same = (header.model_hash, header.layout_id) == (scope.model_hash, scope.layout_id)
        return header.length if same and header.sequence > record.since_sequence else 0
    same = record.state == "idle" and header.layout_id == scope.layout_id
    return record.contents.tokens if same and content.holds(scope.model_hash, record.contents) else 0


def read_head(fd: int) -> TableHead:
    """Which memory the table in `fd` belongs to. Raises `MemoryRefused` when there is none, or one of another
    version."""
    check_memory(fd)
    page = os.pread(fd, PAGE_BYTES, 0)
    found = unpack(page[len(MAGIC) :])
    if not page.startswith(MAGIC) or found is None:
        raise MemoryRefused("it is no table of slots")
    try:
        head = _HEAD.decode(found[1])
    except msgspec.MsgspecError as error:
        raise MemoryRefused("it is a table of slots of another version") from error
    if head.version != TABLE_VERSION:
        raise MemoryRefused(f"it is a table of slots of version {head.version}, not {TABLE_VERSION}")
    return head


class SlotJournal:
    """The table of one model's slots. Not thread-safe; owned by the service's event loop."""

    def __init__(self, fd: int, head: TableHead, *, mapped: Callable[[int, int], mmap.mmap] = mmap.mmap) -> None:
        """`fd` belongs to this object from now on. `mapped` maps so many bytes of a descriptor."""
        self.fd = fd
        self.head = head
        self._map = mapped(fd, _size_bytes(head.slots))
        self._serials: dict[int, int] = {}

    @classmethod
    def create(cls, model: str, kv: KvMemory, slots: int) -> SlotJournal:
        """A table of `slots` empty slots for the memory `kv`."""
        head = TableHead(version=TABLE_VERSION, model=model, kv_inode=kv.inode, layout=kv.layout, slots=slots)
        fd = create_memory(f"magnitude-table-{model}", _size_bytes(slots))
        os.pwrite(fd, MAGIC + pack(0, _ENCODER.encode(head)), 0)
        return cls(fd, head)

    @classmethod
    def open(cls, fd: int) -> SlotJournal:
        """The table in `fd`, which belongs to the new object from now on. Raises `MemoryRefused` when there is none,
        or one of another version; `fd` stays the caller's then."""
        head = read_head(fd)
        check_memory(fd, _size_bytes(head.slots))
        return cls(fd, head)

    def write(self, record: SlotRecord) -> None:
        """From now on this is known of the record's slot. Takes some ten microseconds."""
        payload = _ENCODER.encode(record)
        if _PRELUDE.size + len(payload) > RECORD_BYTES:  # an absurdly long name: nobody will know of it
            payload = _ENCODER.encode(SlotRecord(slot=record.slot, state="empty"))
        slot = record.slot
        serial = self._serials[slot] = self._newest_serial(slot) + 1
        self._put(slot, serial % 2, pack(serial, payload))
        if record.state == "empty":
            # What the slot held is gone on purpose: the record before must not speak for it either.
            self._put(slot, 1 - serial % 2, bytes(_PRELUDE.size))

    def forget_earlier(self) -> None:
        """From now on only the newest record of each slot counts: somebody wants what was before forgotten."""
        for slot in range(self.head.slots):
            self._put(slot, 1 - self._newest_serial(slot) % 2, bytes(_PRELUDE.size))

    def records(self, slot: int) -> list[SlotRecord]:
        """What is known of the slot, the newest record first; the one before may still speak for its contents."""
        return [record for _, record in self._whole(slot)]

    def speaking(self, slot: int, content: SlotContent | None) -> tuple[SlotRecord, int] | None:
        """The record that the slot bears out and how many positions it speaks of, or None when what the slot holds
        is nobody's."""
        for record in self.records(slot):
            tokens = borne_out(record, content)
            if tokens or record.state == "empty":
                return (record, tokens) if tokens else None
        return None

    def release(self) -> int:
        """End this object and hand the descriptor back."""
        self._map.close()
        return self.fd

    def close(self) -> None:
        os.close(self.release())

    # --- inside ---

    def _newest_serial(self, slot: int) -> int:
        if slot not in self._serials:
            self._serials[slot] = max((serial for serial, _ in self._whole(slot)), default=0)
        return self._serials[slot]

    def _whole(self, slot: int) -> list[tuple[int, SlotRecord]]:
        found = []
        for place in (0, 1):
            at = _record_at(slot, place)
            unpacked = unpack(self._map[at : at + RECORD_BYTES])
            if unpacked is None:
                continue
            try:
                record = _RECORD.decode(unpacked[1])
            except msgspec.MsgspecError:
                continue
            if record.slot == slot:
                found.append((unpacked[0], record))
        return sorted(found, key=lambda one: one[0], reverse=True)

    def _put(self, slot: int, place: int, data: bytes) -> None:
        at = _record_at(slot, place)
        self._map[at : at + len(data)] = data


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _record_at(slot: int, place: int) -> int:
    return PAGE_BYTES + (2 * slot + place) * RECORD_BYTES


def _size_bytes(slots: int) -> int:
    return -(-_record_at(slots, 0) // PAGE_BYTES) * PAGE_BYTES
