"""Finds tool calls in the text of an answer while it is being written."""

from __future__ import annotations

import json
import re

import msgspec

from magnitude.text.stops import overlap
from magnitude.text.tool_prompt import CALL_CLOSE, CALL_OPEN

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=[\{\[])')


class TextPiece(msgspec.Struct, frozen=True):
    """Text of the answer outside any call."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call begins: said once, before its arguments."""

    index: int
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """The next piece of a call's arguments; all pieces joined are one JSON value."""

    index: int
    piece: str


class CallEnd(msgspec.Struct, frozen=True):
    """The call with this index is whole. A call cut off by a limit never gets here."""

    index: int


ParserEvent = TextPiece | CallStart | CallArguments | CallEnd


class ToolCallParser:
    """Turns text pieces into events. `push` each piece, `finish` at the end.

    White space between calls is not text of the answer. What looks like a call but is none (possible only where no
    grammar held the model) is given out as text.
    """

    def __init__(self) -> None:
        self._state = "text"  # text, head, arguments, tail
        self._buffer = ""
        self._scan = _JsonEnd()
        self._calls = 0

    def push(self, piece: str) -> list[ParserEvent]:
        """Events that `piece` brings about."""
        events: list[ParserEvent] = []
        self._buffer += piece
        while self._buffer and self._turn(events):
            pass
        return events

    def finish(self, *, cut: bool = False) -> list[ParserEvent]:
        """Events at the end of the answer. An unfinished call gets no `CallEnd`.

        `cut` means that a limit ended the answer: what had begun to be a call's marker is then no text of it.
        """
        events: list[ParserEvent] = []
        if self._state == "text":
            held = overlap(self._buffer, CALL_OPEN) if cut else 0
            text = self._buffer[: len(self._buffer) - held]
            self._text(events, text.rstrip() if held else text)
        elif self._state == "head" and not cut and not self._buffer.lstrip().startswith("{"):
            self._text(events, CALL_OPEN + self._buffer)
        self._buffer = ""
        return events

    def _turn(self, events: list[ParserEvent]) -> bool:
        """One state's work on the buffer; True when another state has work left."""
        return {
            "text": self._read_text,
            "head": self._read_head,
            "arguments": self._read_arguments,
            "tail": self._read_tail,
        }[self._state](events)

    def _read_text(self, events: list[ParserEvent]) -> bool:
        at = self._buffer.find(CALL_OPEN)
        if at >= 0:
            self._text(events, self._buffer[:at].rstrip())
            self._buffer, self._state = self._buffer[at + len(CALL_OPEN) :], "head"
            return True
        # White space is held back as well: before a call it is no text of the answer.
        shown = self._buffer[: len(self._buffer) - overlap(self._buffer, CALL_OPEN)].rstrip()
        self._buffer = self._buffer[len(shown) :]
        self._text(events, shown)
        return False

    def _read_head(self, events: list[ParserEvent]) -> bool:
        if head := _HEAD.match(self._buffer):
            events.append(CallStart(self._calls, json.loads(head[1])))
            self._buffer, self._state, self._scan = self._buffer[head.end() :], "arguments", _JsonEnd()
            return True
        end = self._buffer.find(CALL_CLOSE)
        if end < 0:
            return False
        self._text(events, CALL_OPEN + self._buffer[: end + len(CALL_CLOSE)])
        self._buffer, self._state = self._buffer[end + len(CALL_CLOSE) :], "text"
        return True

    def _read_arguments(self, events: list[ParserEvent]) -> bool:
        end = self._scan.push(self._buffer)
        piece = self._buffer if end is None else self._buffer[:end]
        if piece:
            events.append(CallArguments(self._calls, piece))
        self._buffer = self._buffer[len(piece) :]
        if end is None:
            return False
        self._state = "tail"
        return True

    def _read_tail(self, events: list[ParserEvent]) -> bool:
        end = self._buffer.find(CALL_CLOSE)
        if end < 0:
            return False
        events.append(CallEnd(self._calls))
        self._calls += 1
        self._buffer, self._state = self._buffer[end + len(CALL_CLOSE) :], "text"
        return True

    def _text(self, events: list[ParserEvent], text: str) -> None:
        if text and not (self._calls and not text.strip()):
            events.append(TextPiece(text))


class _JsonEnd:
    """Finds where an object or list ends, over pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def push(self, piece: str) -> int | None:
        """Position just after the value's last character in `piece`; None when it goes on."""
        for at, char in enumerate(piece):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None
