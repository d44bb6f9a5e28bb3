"""From the document's tree to the typed settings, with errors that name file, line, what was read and what to do."""

from __future__ import annotations

import difflib
import re
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from magnitude.config.document import ListNode, MapNode, Node, Place, Scalar
from magnitude.config.units import parse_duration, parse_size, with_unit
from magnitude.errors import ConfigError

T = TypeVar("T")

Path = tuple[str | int, ...]


def build(root: MapNode, type_: type[T]) -> T:
    """An instance of the struct `type_` from `root`. Raises `ConfigError` for the first thing that does not fit."""
    plain = _value(root, inspect.type_info(type_), ())
    try:
        return msgspec.convert(plain, type_)
    except msgspec.ValidationError as error:  # types fit by now: a bound, a length or a pattern is left
        what, _, where = str(error).partition(" - at ")
        path = _parse_path(where.strip("`"))
        place = _place_of(root, path)
        raise ConfigError(
            f"{place}: {_dotted(path)} is {_written(root, path)}, which is out of bounds: {_bound(what, path)}",
            hint=f"Change {_dotted(path)}",
            param=_dotted(path),
        ) from error


def nearest(name: str, known: list[str]) -> str | None:
    """The known name that `name` was most likely meant to be."""
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return match[0] if match else None


def _value(node: Node, type_: inspect.Type, path: Path) -> Any:
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        if isinstance(node, Scalar) and node.kind == "null":
            return None
        (type_,) = [member for member in type_.types if not isinstance(member, inspect.NoneType)]
        return _value(node, type_, path)
    if isinstance(type_, inspect.StructType):
        return _struct(node, type_, path)
    if isinstance(type_, inspect.DictType):
        if _is_null(node):
            return {}
        items = _map(node, path).items
        return {key: _value(below, type_.value_type, (*path, key)) for key, below in items.items()}
    if isinstance(type_, inspect.ListType):
        if _is_null(node):
            return []
        if not isinstance(node, ListNode):
            raise _wrong_type(node, path, "a list", "Write it as [a, b], or one `- item` a line")
        return [_value(below, type_.item_type, (*path, index)) for index, below in enumerate(node.items)]
    return _scalar(node, type_, path)


def _struct(node: Node, type_: inspect.StructType, path: Path) -> dict[str, Any]:
    fields = {field.encode_name: field for field in type_.fields}
    if _is_null(node):  # a section with all its keys commented out
        return {}
    section = _map(node, path)
    values: dict[str, Any] = {}
    for key, below in section.items.items():
        if key not in fields:
            meant = nearest(key, list(fields))
            raise ConfigError(
                f"{section.key_places[key]}: unknown key {key!r} in {_dotted(path) or 'the configuration'}",
                hint=f"Did you mean {meant!r}?" if meant else f"Known keys: {', '.join(fields)}",
                param=_dotted((*path, key)),
            )
        values[key] = _value(below, fields[key].type, (*path, key))
    for name, field in fields.items():
        if field.required and name not in values:
            raise ConfigError(
                f"{section.place}: {_dotted((*path, name))} is missing",
                hint=f"Add `{name}: ...`",
                param=_dotted((*path, name)),
            )
    return values


def _map(node: Node, path: Path) -> MapNode:
    if isinstance(node, MapNode):
        return node
    raise _wrong_type(node, path, "a section of `key: value` lines", "Check the indentation of the lines below it")


def _scalar(node: Node, type_: inspect.Type, path: Path) -> Any:
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    key = f"{name}: " if path and path[-1] == name else ""
    if isinstance(type_, inspect.LiteralType):
        allowed = [str(value) for value in type_.values]
        if not isinstance(node, Scalar) or node.written not in allowed:
            raise _wrong_type(node, path, f"one of {', '.join(allowed)}", _nearest_hint(node, allowed))
        return node.written
    if isinstance(type_, inspect.BoolType):
        if isinstance(node, Scalar) and node.kind == "bool":
            return node.value
        raise _wrong_type(node, path, "true or false", "Only the words true and false are booleans here")
    if isinstance(type_, inspect.StrType):
        if isinstance(node, Scalar) and node.kind == "text":
            return node.value
        written = node.written if isinstance(node, Scalar) and node.written else "..."
        raise _wrong_type(node, path, "text", f'Put it in quotes: {key}"{written}"')
    whole = isinstance(type_, inspect.IntType)
    if isinstance(node, Scalar) and (node.kind == "int" or (node.kind == "float" and not whole)):
        return node.value
    expected = "a whole number" if whole else "a number"
    if isinstance(node, Scalar) and node.kind == "text":
        for suffix, parse in (("_s", parse_duration), ("_bytes", parse_size)):
            if name.endswith(suffix):
                try:
                    return parse(str(node.value))
                except ValueError as error:
                    raise ConfigError(f"{node.place}: {_dotted(path)}: {error}", param=_dotted(path)) from error
        if re.fullmatch(r"[-+]?0[0-9]+", node.written):
            raise _wrong_type(node, path, expected, "Write it without the leading zero")
    raise _wrong_type(node, path, expected, f"Write {key}{'4' if whole else '0.5'}, for example, without quotes")


def _nearest_hint(node: Node, allowed: list[str]) -> str:
    meant = nearest(node.written, allowed) if isinstance(node, Scalar) else None
    return f"Did you mean {meant!r}?" if meant else f"Write one of {', '.join(allowed)}"


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.kind == "null"


def _wrong_type(node: Node, path: Path, expected: str, hint: str) -> ConfigError:
    return ConfigError(
        f"{node.place}: {_dotted(path) or 'the configuration'} must be {expected}, but {_describe(node)} was read",
        hint=hint,
        param=_dotted(path),
    )


def _describe(node: Node) -> str:
    if isinstance(node, MapNode):
        return "a section"
    if isinstance(node, ListNode):
        return "a list"
    kinds = {"bool": "the boolean", "int": "the number", "float": "the number", "text": "the text"}
    return "nothing" if node.kind == "null" else f"{kinds[node.kind]} {node.written!r}"


def _bound(what: str, path: Path) -> str:
    """The library's words for a bound, without its names for types, in the unit of the key."""
    words = re.sub(r"^Expected `\w+`\s*", "expected ", what).replace("expected matching", "it must match")
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    return re.sub(r"(?<=[<>=] )[0-9.]+$", lambda number: with_unit(float(number[0]), key), words)


def _parse_path(text: str) -> Path:
    parts: list[str | int] = []
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", text):
        parts.append(name or int(index))
    return tuple(parts)


def _node_at(root: Node, path: Path) -> Node:
    """The deepest node on `path` that the files really contain (a default has no node)."""
    node = root
    for part in path:
        below: Node | None = None
        if isinstance(node, MapNode) and isinstance(part, str):
            below = node.items.get(part)
        elif isinstance(node, ListNode) and isinstance(part, int):
            below = node.items[part]
        if below is None:
            break
        node = below
    return node


def _place_of(root: MapNode, path: Path) -> Place:
    return _node_at(root, path).place


def _written(root: MapNode, path: Path) -> str:
    node = _node_at(root, path)
    return node.written or '""' if isinstance(node, Scalar) else _describe(node)


def _dotted(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
