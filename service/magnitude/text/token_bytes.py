"""The bytes behind one vocabulary entry.

Byte-level vocabularies spell each byte as one printable character (GPT-2's table: the printable bytes of Latin-1
stand for themselves, the others are numbered from U+0100 on). SentencePiece ones spell a lone byte `<0xEA>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_BYTE_PIECE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


def _byte_of_char() -> dict[str, int]:
    themselves = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in themselves}
    others = (b for b in range(256) if b not in set(themselves))
    table.update({chr(0x100 + n): b for n, b in enumerate(others)})
    return table


_BYTES = _byte_of_char()


def token_bytes(piece: str, decoded: Callable[[], str]) -> bytes:
    """Bytes of the vocabulary entry `piece`; `decoded` gives its text and is asked only where that is exact."""
    if byte := _BYTE_PIECE.match(piece):
        return bytes([int(byte[1], 16)])
    text = decoded()
    if "\ufffd" in text and all(char in _BYTES for char in piece):
        return bytes(_BYTES[char] for char in piece)
    return text.encode()
