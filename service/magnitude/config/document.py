"""Strict YAML: a document as a tree of nodes that know their file, line and wording.

Plain words mean what YAML 1.2's core schema says, less what surprises people: only `true` and `false` are booleans
(not `on`, `off`, `yes`, `no`), a number with a leading zero stays text, `1:30` is text, keys are always text. A key
given twice, an alias, a tag and a second document are errors: settings need none of them, and each hides mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec
import yaml

from magnitude.errors import ConfigError

MAX_DOCUMENT_CHARS = 1 << 20  # a settings file of a megabyte is a wrong file
MAX_DEPTH = 20  # ours is four levels deep; bounds the recursion on hostile nesting

ScalarKind = Literal["null", "bool", "int", "float", "text"]

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*|(?=[eE])))([eE][-+]?[0-9]+)?")


class Place(msgspec.Struct, frozen=True):
    """Where something was read, for messages. Lines count from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class Scalar(msgspec.Struct, frozen=True, kw_only=True):
    """`written` is the text as it stands in the file, without quotes."""

    place: Place
    kind: ScalarKind
    value: bool | int | float | str | None
    written: str


class ListNode(msgspec.Struct, frozen=True, kw_only=True):
    place: Place
    items: tuple[Node, ...]


class MapNode(msgspec.Struct, frozen=True, kw_only=True):
    """`key_places` tells where each key stands; `items` has the same keys."""

    place: Place
    items: dict[str, Node]
    key_places: dict[str, Place]


Node = Scalar | ListNode | MapNode


def resolve_scalar(text: str, *, quoted: bool) -> tuple[ScalarKind, bool | int | float | str | None]:
    """Kind and value of a scalar as written."""
    if quoted:
        return "text", text
    if text in ("", "~", "null", "Null", "NULL"):
        return "null", None
    if text in ("true", "True", "TRUE"):
        return "bool", True
    if text in ("false", "False", "FALSE"):
        return "bool", False
    if _INT.fullmatch(text) and len(text) <= 20:  # a 64-bit number has 20 characters at most
        return "int", int(text)
    if _FLOAT.fullmatch(text) and len(text) <= 40 and abs(float(text)) != float("inf"):
        return "float", float(text)
    return "text", text


def parse(text: str, file: str) -> MapNode:
    """The document's tree; an empty document is an empty map. Raises `ConfigError` with file and line."""
    if len(text) > MAX_DOCUMENT_CHARS:
        raise ConfigError(f"{file} is longer than {MAX_DOCUMENT_CHARS} characters: not a settings file", param=file)
    try:
        node = _Reader(yaml.parse(text, Loader=yaml.SafeLoader), file).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        said = " ".join(part for part in (error.context, error.problem) if part)
        raise _error(Place(file, line), f"not valid YAML: {said}", "Check indentation, colons and quotes") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not valid YAML: {error}", param=file) from error
    if node is None or (isinstance(node, Scalar) and node.kind == "null"):
        return MapNode(place=Place(file, 1), items={}, key_places={})
    if not isinstance(node, MapNode):
        raise _error(node.place, "the file holds no sections", "Start with a section, for example `engine:`")
    return node


def merge(base: MapNode, over: MapNode) -> MapNode:
    """`base` with the keys of `over` laid on top: maps are merged key by key, everything else is replaced."""
    items, places = dict(base.items), dict(base.key_places)
    for key, node in over.items.items():
        below = items.get(key)
        items[key] = merge(below, node) if isinstance(below, MapNode) and isinstance(node, MapNode) else node
        places[key] = over.key_places[key]
    return MapNode(place=over.place, items=items, key_places=places)


class _Reader:
    """Builds our tree from the parser's events; the composer of the library would accept what we refuse."""

    def __init__(self, events: Iterable[yaml.Event], file: str) -> None:
        self._events = list(events)
        self._next = 0
        self._file = file

    def document(self) -> Node | None:
        self._take()  # stream start
        if isinstance(self._peek(), yaml.StreamEndEvent):
            return None
        self._take()  # document start
        node = self._node(0)
        self._take()  # document end
        if not isinstance(self._peek(), yaml.StreamEndEvent):
            raise _error(self._place(self._peek()), "a second document starts here", "Remove the `---` line")
        return node

    def _peek(self) -> yaml.Event:
        return self._events[self._next]

    def _take(self) -> yaml.Event:
        self._next += 1
        return self._events[self._next - 1]

    def _node(self, depth: int) -> Node:
        event = self._take()
        place = self._place(event)
        if depth > MAX_DEPTH:
            raise _error(place, f"nested deeper than {MAX_DEPTH} levels", "Check the indentation")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _error(place, "anchors (&) and aliases (*) are not supported", "Write the value out, or quote it")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _error(place, f"the tag {tag} is not supported", "Remove it, or quote the text")
        if isinstance(event, yaml.ScalarEvent):
            kind, value = resolve_scalar(event.value, quoted=event.style is not None)
            return Scalar(place=place, kind=kind, value=value, written=event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(self._peek(), yaml.SequenceEndEvent):
                items.append(self._node(depth + 1))
            self._take()
            return ListNode(place=place, items=tuple(items))
        return self._map(place, depth)

    def _map(self, place: Place, depth: int) -> MapNode:
        items: dict[str, Node] = {}
        places: dict[str, Place] = {}
        while not isinstance(self._peek(), yaml.MappingEndEvent):
            key = self._node(depth + 1)
            if not isinstance(key, Scalar):
                raise _error(key.place, "a list or a map cannot be a key", "Quote it if it is meant as text")
            if key.written in items:
                raise _error(
                    key.place,
                    f"the key {key.written!r} is given twice (first in line {places[key.written].line})",
                    "Keep one of the two",
                )
            places[key.written] = key.place
            items[key.written] = self._node(depth + 1)
        self._take()
        return MapNode(place=place, items=items, key_places=places)

    def _place(self, event: yaml.Event) -> Place:
        return Place(self._file, event.start_mark.line + 1 if event.start_mark else 1)


def _error(place: Place, what: str, hint: str) -> ConfigError:
    return ConfigError(f"{place}: {what}", hint=hint, param=str(place))
