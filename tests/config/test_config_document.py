from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.config.document import ListNode, MapNode, Node, Scalar, merge, parse, resolve_scalar
from magnitude.errors import ConfigError


def plain(node: Node) -> object:
    if isinstance(node, MapNode):
        return {key: plain(below) for key, below in node.items.items()}
    if isinstance(node, ListNode):
        return [plain(below) for below in node.items]
    return node.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("true", True),
        ("False", False),
        ("010", "010"),
        ("0800", "0800"),
        ("1:30", "1:30"),
        ("1e3", 1000.0),
        ("1.10", 1.1),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        ("2026-01-01", "2026-01-01"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("-7", -7),
        ("0", 0),
        ("~", None),
        ("9" * 30, "9" * 30),
        ("1e999", "1e999"),
        ("=", "="),
    ],
)
def test_plain_words_mean_what_they_look_like(text: str, value: object) -> None:
    read = resolve_scalar(text, quoted=False)[1]
    assert read == value
    assert type(read) is type(value)
    assert resolve_scalar(text, quoted=True) == ("text", text)


def test_keys_are_text_whatever_they_look_like() -> None:
    assert plain(parse("on: 1\n010: 2\n1.5: 3\ntrue: 4\n", "f")) == {"on": 1, "010": 2, "1.5": 3, "true": 4}


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "null", "---\n# comment\n...\n"])
def test_a_document_without_content_is_an_empty_map(text: str) -> None:
    assert plain(parse(text, "f")) == {}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "given twice (first in line 1)"),
        ("s:\n  x: 1\n  x: 2\n", 3, "given twice"),
        ("a: &anchor 1\n", 1, "anchors"),
        ("a: 1\nb: *a\n", 2, "aliases"),
        ("a: 1\nb: !!python/object:os.system x\n", 2, "tag"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("- a\n", 1, "no sections"),
        ("just text", 1, "no sections"),
        ("? [a, b]\n: 1\n", 1, "cannot be a key"),
        ("a: 1\n b: 2\n", 2, "not valid YAML"),
        ("a: [1, 2\n", 2, "not valid YAML"),
        ("a:\n\t- 1\n", 2, "not valid YAML"),
    ],
)
def test_what_hides_mistakes_is_an_error_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, "magnitude.yaml")
    assert error.value.message.startswith(f"magnitude.yaml, line {line}: ")
    assert words in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("text", ["a: " + "[" * 200 + "]" * 200, "x" * (1 << 21), "a: \0", "a: \x07"])
def test_hostile_text_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text, "f")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse(text, "f")


def test_later_maps_are_merged_key_by_key_and_lists_are_replaced() -> None:
    base = parse("a: {x: 1, y: [1, 2]}\nb: 1\n", "base")
    over = parse("a: {y: [3], z: 4}\nc: 5\n", "over")
    merged = merge(base, over)
    assert plain(merged) == {"a": {"x": 1, "y": [3], "z": 4}, "b": 1, "c": 5}
    section = merged.items["a"]
    assert isinstance(section, MapNode)
    assert (section.items["x"].place.file, section.items["y"].place.file) == ("base", "over")
    scalar = section.items["z"]
    assert isinstance(scalar, Scalar)
