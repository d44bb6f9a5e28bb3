"""What a KV slot holds, written down beside it: a header in the shared memory that both processes read.

A slot's header says what its positions hold, so that the next engine, or the service, can check before it trusts
them. It is updated after each graph run in two phases: the sequence number is odd while the other fields change, so
that a header torn by a kill is recognised. The header never claims more than the slot holds: it is shortened before
positions are written again and lengthened after the run.

Behind the header stand the ids themselves. Whoever finds the memory without knowing what was computed in it, as a
service does that takes it over from the one before, reads them there. The engine writes them, because it alone is
never behind: when the service is killed, tokens that it has not read yet are in the slot all the same.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterable, Sequence

import msgspec

from magnitude.engine.kv_layout import ID_BYTES, IDS_AT, LAYOUT_VERSION
from magnitude.engine.protocol import SlotContents

MAGIC = b"MAGKVSLT"
# Constant part: magic, layout version, length of the names below, model hash, layout id.
_CONSTANT = struct.Struct("<8sIHH128s64s")
# Changing part: sequence number, valid positions, hash of their token ids.
_SEQUENCE = struct.Struct("<Q")
_STATE = struct.Struct("<QQ")
_ID = struct.Struct("=I")
_SEQUENCE_AT = _CONSTANT.size
_STATE_AT = _SEQUENCE_AT + _SEQUENCE.size
HEADER_BYTES = _STATE_AT + _STATE.size

_MASK64 = (1 << 64) - 1
# Offset basis and prime of FNV-1a, 64 bit (RFC 9923), applied to a whole id at a time with a final fold so that
# high bits reach low ones. It guards against mix-ups, not against an attacker.
HASH_OF_NOTHING = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3


def extend_hash(value: int, ids: Iterable[int]) -> int:
    """The running 64-bit hash after `ids` as well; start from `HASH_OF_NOTHING`."""
    for token in ids:
        value = ((value ^ token) * _FNV_PRIME) & _MASK64
        value ^= value >> 32
    return value


class SlotHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a slot holds: `length` positions of the token ids that hash to `ids_hash`."""

    model_hash: str
    layout_id: str
    sequence: int
    length: int
    ids_hash: int


def pack_header(header: SlotHeader) -> bytes:
    """The header's bytes (`HEADER_BYTES` of them)."""
    model, layout = header.model_hash.encode(), header.layout_id.encode()
    constant = _CONSTANT.pack(MAGIC, LAYOUT_VERSION, len(model), len(layout), model, layout)
    return constant + _SEQUENCE.pack(header.sequence) + _STATE.pack(header.length, header.ids_hash)


def unpack_header(data: bytes | memoryview) -> SlotHeader | None:
    """The header in `data`, or None: never written, torn (odd sequence) or of another layout version."""
    magic, version, model_length, layout_length, model, layout = _CONSTANT.unpack_from(data, 0)
    (sequence,) = _SEQUENCE.unpack_from(data, _SEQUENCE_AT)
    if magic != MAGIC or version != LAYOUT_VERSION or sequence % 2:
        return None
    length, ids_hash = _STATE.unpack_from(data, _STATE_AT)
    return SlotHeader(
        model_hash=model[:model_length].decode("ascii", errors="replace"),
        layout_id=layout[:layout_length].decode("ascii", errors="replace"),
        sequence=sequence,
        length=length,
        ids_hash=ids_hash,
    )


def holds(header: SlotHeader | None, model_hash: str, layout_id: str, tokens: int, ids_hash: int) -> bool:
    """Whether the slot holds exactly those `tokens` positions of that model."""
    return (
        header is not None
        and (header.model_hash, header.layout_id) == (model_hash, layout_id)
        and (header.length, header.ids_hash) == (tokens, ids_hash)
    )


def trusted_length(header: SlotHeader | None, model_hash: str, layout_id: str, ids: list[int]) -> int:
    """How many positions of the slot surely hold the beginning of `ids`; 0 when the header does not say so."""
    if header is None or header.model_hash != model_hash or header.layout_id != layout_id:
        return 0
    if header.length > len(ids) or extend_hash(HASH_OF_NOTHING, ids[: header.length]) != header.ids_hash:
        return 0
    return header.length


def stored_ids(header: SlotHeader | None, data: bytes | memoryview) -> array[int] | None:
    """The ids behind `header` in `data` (which begins with them), or None when they are not those that it means: it
    was never written, or a part of the conversation was dropped from the slot (`slide.py`)."""
    if header is None or header.length * ID_BYTES > len(data):
        return None
    ids = array("I", bytes(data[: header.length * ID_BYTES]))
    return ids if extend_hash(HASH_OF_NOTHING, ids) == header.ids_hash else None


def holds_more(
    header: SlotHeader | None, stored: Sequence[int] | None, model_hash: str, layout_id: str, contents: SlotContents
) -> bool:
    """Whether the slot holds the `contents` of that model and possibly further positions, by the ids that are
    `stored` behind the header: its engine was lost, or its service, before it could tell all that was computed."""
    if header is None or stored is None or (header.model_hash, header.layout_id) != (model_hash, layout_id):
        return False
    beginning = stored[: contents.tokens]
    return len(beginning) == contents.tokens and extend_hash(HASH_OF_NOTHING, beginning) == contents.ids_hash


def _id_bytes(ids: Sequence[int]) -> bytes:
    """A first id that stands for a slid slot is cut to 32 bits, so that it does not hash as the header says."""
    try:
        return array("I", ids).tobytes()
    except OverflowError:
        return array("I", [token & 0xFFFFFFFF for token in ids]).tobytes()


class SlotState:
    """Writes one slot's header and ids while a generation runs in it. Costs two microseconds a step."""

    def __init__(self, memory: mmap.mmap, offset: int, model_hash: str, layout_id: str) -> None:
        self._memory = memory
        self._offset = offset
        old = unpack_header(memory[offset : offset + HEADER_BYTES])
        self._sequence = old.sequence if old else 0
        self.length = 0
        self.dropped = 0  # ids before the last position that the slot does not hold any more (`slide.py`)
        self.ids_hash = HASH_OF_NOTHING
        self._model_hash = model_hash
        self._layout_id = layout_id

    def begin(self, ids: list[int], dropped: int = 0) -> None:
        """From now on the slot holds `ids` and is written behind them. Where tokens were `dropped` from between them,
        `ids` are as `slide.header_ids` gives them."""
        self.dropped = dropped
        _SEQUENCE.pack_into(self._memory, self._offset + _SEQUENCE_AT, self._sequence + 1)
        self.length = len(ids)
        self.ids_hash = extend_hash(HASH_OF_NOTHING, ids)
        header = SlotHeader(
            model_hash=self._model_hash,
            layout_id=self._layout_id,
            sequence=self._sequence + 1,
            length=self.length,
            ids_hash=self.ids_hash,
        )
        self._memory[self._offset : self._offset + HEADER_BYTES] = pack_header(header)
        self._write_ids(0, ids)
        self._sequence += 2
        _SEQUENCE.pack_into(self._memory, self._offset + _SEQUENCE_AT, self._sequence)

    def claim_nothing(self) -> None:
        """The header says that the slot is empty, until the next `begin`; `length` and `dropped` stay as they are."""
        length, dropped = self.length, self.dropped
        self.begin([])
        self.length, self.dropped = length, dropped

    def extend(self, ids: Sequence[int], count: int) -> None:
        """The positions of `ids` (`count` of them) have been written."""
        self._write_ids(self.length, ids)  # beyond what the header claims so far
        self.length += count
        self.ids_hash = extend_hash(self.ids_hash, ids)
        memory, sequence_at = self._memory, self._offset + _SEQUENCE_AT
        _SEQUENCE.pack_into(memory, sequence_at, self._sequence + 1)
        _STATE.pack_into(memory, self._offset + _STATE_AT, self.length, self.ids_hash)
        self._sequence += 2
        _SEQUENCE.pack_into(memory, sequence_at, self._sequence)

    def _write_ids(self, first: int, ids: Sequence[int]) -> None:
        start = self._offset + IDS_AT + first * ID_BYTES
        if len(ids) == 1:  # as in each decode step
            _ID.pack_into(self._memory, start, ids[0] & 0xFFFFFFFF)
            return
        data = _id_bytes(ids)
        self._memory[start : start + len(data)] = data
