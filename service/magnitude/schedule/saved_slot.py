"""A conversation's KV in a file: what is known of it, and how the file is laid out.

The file is sequential: a prelude of fixed size, `_Known` as msgpack, the token ids (32 bit, little-endian), the
checksum of all that; then for each layer K and V (and their scales, where they have such), for each KV head, the
positions `[0, n)` as they stand in memory; then the checksum of everything before it. The first checksum lets a start
look at many files without reading gigabytes, the second one is checked before a restored slot is trusted. Nothing in
the file depends on the slot it came from.

The checksum is SHA-256: the CPUs of the boards in question (Cortex-A76 and A55, x86 with SHA extensions) compute it
in hardware, so that it is faster than BLAKE2b, which has no such help (measured together on x86_64: 606 against
271 MB/s).
"""

from __future__ import annotations

import array
import hashlib
import re
import struct
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from magnitude.engine.kv_layout import KvLayout
from magnitude.errors import MagnitudeError
from magnitude.schedule.scope import Scope

MAGIC = b"MAGSAVED"
FORMAT_VERSION = 1
DIGEST_BYTES = 32
# Magic, format version, length of the msgpack part, number of token ids.
PRELUDE = struct.Struct("<8sIII")
MAX_KNOWN_BYTES = 64 * 1024  # names only; a larger length word is a broken file and must not fill the memory
MAX_IDS = 1 << 22  # four times the longest context that models advertise today
_NAME = re.compile(r"([0-9a-f]{16})\.kv")


class SavedSlotRefused(MagnitudeError):
    """A saved conversation cannot be used: its file is gone, broken, of another version or not what is on record."""

    code = "saved_slot_refused"
    permanent = True


class OtherFormat(SavedSlotRefused):
    """It is of another version of the program, which may come back for it."""


class SavedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation on disk. Ages come from `boot_id` and `saved_at_s` (monotonic); wall time is for people, and
    `serial` grows with every file, so that their order is known without any clock."""

    saved_id: str
    scope: Scope
    ids: tuple[int, ...]
    conversation: str
    size_bytes: int
    saved_wall_s: float
    saved_at_s: float
    boot_id: str
    serial: int

    @property
    def tokens(self) -> int:
        return len(self.ids)


class _Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The msgpack part of a file: a `SavedSlot` but for what stands elsewhere."""

    saved_id: str
    scope: Scope
    conversation: str
    saved_wall_s: float
    saved_at_s: float
    boot_id: str
    serial: int
    token_bytes: int


_KNOWN = msgspec.msgpack.Decoder(_Known)


def file_name(saved_id: str) -> str:
    return f"{saved_id}.kv"


def saved_id_of(name: str) -> str | None:
    """The id in a file's name, or None for a name that is not one of ours."""
    found = _NAME.fullmatch(name)
    return found[1] if found else None


def head_bytes(saved: SavedSlot, layout_token_bytes: int) -> bytes:
    """Everything before the KV, its checksum included. `saved.size_bytes` is not part of it."""
    known = msgspec.msgpack.encode(
        _Known(
            saved_id=saved.saved_id,
            scope=saved.scope,
            conversation=saved.conversation,
            saved_wall_s=saved.saved_wall_s,
            saved_at_s=saved.saved_at_s,
            boot_id=saved.boot_id,
            serial=saved.serial,
            token_bytes=layout_token_bytes,
        )
    )
    words = array.array("I", saved.ids)
    if sys.byteorder == "big":
        words.byteswap()
    head = PRELUDE.pack(MAGIC, FORMAT_VERSION, len(known), len(saved.ids)) + known + words.tobytes()
    return head + hashlib.sha256(head).digest()


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A file's head, checked. `raw` are its bytes, for the checksum over the whole file."""

    saved: SavedSlot
    raw: bytes
    token_bytes: int


def read_head(file: Any, name: str, size_bytes: int) -> Head:
    """The head of the open binary `file` called `name`. Raises `SavedSlotRefused` when anything is not as written.

    The file's position is at the first byte of KV afterwards.
    """
    prelude = file.read(PRELUDE.size)
    if len(prelude) < PRELUDE.size:
        raise SavedSlotRefused(f"{name} is torn: it ends after {len(prelude)} bytes")
    magic, version, known_bytes, count = PRELUDE.unpack(prelude)
    if magic != MAGIC:
        raise SavedSlotRefused(f"{name} is no saved conversation")
    if version != FORMAT_VERSION:
        raise OtherFormat(f"{name} has format {version}, this version reads {FORMAT_VERSION}")
    if known_bytes > MAX_KNOWN_BYTES or not 0 < count <= MAX_IDS:
        raise SavedSlotRefused(f"{name} is broken: its lengths make no sense")
    ids_bytes = 4 * count
    rest = file.read(known_bytes + ids_bytes + DIGEST_BYTES)
    if len(rest) < known_bytes + ids_bytes + DIGEST_BYTES:
        raise SavedSlotRefused(f"{name} is torn: its head is cut off")
    covered, digest = prelude + rest[:-DIGEST_BYTES], rest[-DIGEST_BYTES:]
    if hashlib.sha256(covered).digest() != digest:
        raise SavedSlotRefused(f"{name} is broken: the checksum of its head does not match")
    try:
        known = _KNOWN.decode(rest[:known_bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SavedSlotRefused(f"{name} is broken: {error}") from error
    raw = covered + digest
    if size_bytes != len(raw) + count * known.token_bytes + DIGEST_BYTES:
        raise SavedSlotRefused(f"{name} is torn: it has {size_bytes} bytes, not as many as its head says")
    if file_name(known.saved_id) != name:
        raise SavedSlotRefused(f"{name} holds the conversation that was saved as {known.saved_id}")
    words = array.array("I", rest[known_bytes : known_bytes + ids_bytes])
    if sys.byteorder == "big":
        words.byteswap()
    saved = SavedSlot(
        saved_id=known.saved_id,
        scope=known.scope,
        ids=tuple(words),
        conversation=known.conversation,
        size_bytes=size_bytes,
        saved_wall_s=known.saved_wall_s,
        saved_at_s=known.saved_at_s,
        boot_id=known.boot_id,
        serial=known.serial,
    )
    return Head(saved=saved, raw=raw, token_bytes=known.token_bytes)


def slot_pieces(memory: memoryview, layout: KvLayout, slot: int, tokens: int) -> Iterator[memoryview]:
    """The positions `[0, tokens)` of a slot, head by head, in the order of the file. Views of `memory`, no copies."""
    for layer in range(layout.layers):
        for part in layout.parts:
            start = layout.tensor_offset(layer, part.name, slot)
            for head in range(layout.kv_heads):
                at = start + head * layout.padded_len * part.row_bytes
                yield memory[at : at + tokens * part.row_bytes]
