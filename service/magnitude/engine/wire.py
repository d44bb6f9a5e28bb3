"""Frames on the socketpair: a 4-byte little-endian length and one msgpack message.

`FrameReader` is fed whatever bytes arrived and gives back whole messages; it does no I/O, so both the engine's
blocking reader and the service's event loop use it.
"""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

import msgspec

from magnitude.engine.message import Message
from magnitude.engine.protocol import MAX_FRAME_BYTES
from magnitude.errors import EngineError

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()

M = TypeVar("M")


def encode_frame(message: Message) -> bytes:
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise EngineError(
            f"a message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}",
            code="message_too_large",
            hint="Send fewer or smaller tensors in one request",
        )
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[M]):
    """Cuts a byte stream into messages of the union type `union`."""

    def __init__(self, union: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """Messages completed by `data`. Raises `EngineError` when the stream is not ours or is broken."""
        self._buffer += data
        messages: list[M] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise EngineError(f"a frame claims {length} bytes: the stream is broken", code="protocol_broken")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            try:
                messages.append(self._decoder.decode(memoryview(self._buffer)[start + _LENGTH.size : end]))
            except msgspec.MsgspecError as error:
                raise EngineError(f"a message does not decode: {error}", code="protocol_broken") from error
            start = end
        if start:
            del self._buffer[:start]
        return messages
