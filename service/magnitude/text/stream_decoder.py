"""Token ids to text, a few at a time.

A character may be spread over several tokens, and how a token reads may depend on the one before it (spaces of
SentencePiece). So each step decodes a short window that starts at the previous piece of finished text, and what
the window says beyond that piece is new. Text that ends in a replacement character waits for its missing bytes.

Streamed and whole answers both come from here, so they are equal by construction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

_REPLACEMENT = "\ufffd"

# The longest UTF-8 character has four bytes. When so many tokens add nothing but broken bytes, no further token
# can mend them, and waiting would hold the text back for ever.
_MAX_WAITING_TOKENS = 4


class Decodes(Protocol):
    """What the decoder needs of a tokenizer."""

    special_ids: frozenset[int]

    def decode(self, ids: list[int], *, skip: Iterable[int] | None = None) -> str: ...


class StreamDecoder:
    """Decodes one answer. Feed ids with `push`, and call `finish` once at the end.

    Ids in `hidden` (special tokens where not given) have no text. An incomplete character at the very end is
    dropped: half a character is no text.
    """

    def __init__(self, tokenizer: Decodes, *, hidden: frozenset[int] | None = None) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if hidden is None else hidden
        self._window: list[int] = []
        self._known = 0  # tokens of the window whose text was given out

    def push(self, token: int) -> str:
        """Text that became certain with `token`; often "" in the middle of a character."""
        if token in self._hidden:
            return ""
        self._window.append(token)
        before, now = self._read(self._window[: self._known]), self._read(self._window)
        if not now.endswith(_REPLACEMENT):
            return self._give(before, now)
        if len(self._window) - self._known > _MAX_WAITING_TOKENS:
            return self._give_up_on_first_waiting()
        return ""

    def finish(self) -> str:
        """Text that was still waiting, without an incomplete character at its end."""
        before, now = self._read(self._window[: self._known]), self._read(self._window)
        self._window, self._known = [], 0
        return now[len(before) :].rstrip(_REPLACEMENT) if now.startswith(before) else ""

    def _give(self, before: str, now: str) -> str:
        self._window = self._window[self._known :]
        self._known = len(self._window)
        return now[len(before) :]

    def _give_up_on_first_waiting(self) -> str:
        """Broken bytes in the middle: the oldest waiting token has no reading, the rest waits on without it."""
        waiting = self._window[self._known + 1 :]
        self._window, self._known = [], 0
        return _REPLACEMENT + "".join(self.push(token) for token in waiting)

    def _read(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip=()) if ids else ""
