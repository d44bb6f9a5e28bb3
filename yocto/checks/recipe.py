"""Reading recipes as far as the checks need it: what is assigned, not what it expands to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

# `NAME = "…"`, `NAME:override += '…'`, `NAME[flag] = "…"`, on one line once continued lines are joined.
_ASSIGNMENT = re.compile(
    r"""(?P<name>[A-Za-z0-9_][\w@${}./+-]*(?::[\w${}./+-]+)*)(?:\[(?P<flag>[\w.@-]+)\])?
        \s*(?P<operator>\?\?=|\?=|:=|\+=|=\+|\.=|=\.|=)\s*(?P<quote>["'])(?P<value>.*)(?P=quote)\s*""",
    re.VERBOSE,
)
_INHERIT = re.compile(r"(?:inherit|inherit_defer)\s+(.+)")
_REQUIRE = re.compile(r"(?:require|include)\s+(.+)")
# What a shell or Python function is opened with; its body is no assignment.
_FUNCTION = re.compile(r"(?:fakeroot\s+)?(?:python\s*)?[\w:${}-]*\s*\(\s*\)\s*\{|python\s+[\w:-]+\s*\(?\s*\)?\s*\{")
# Both outcomes of the one conditional that dependencies are written with.
_CONTAINS = re.compile(r"bb\.utils\.contains\(\s*'[^']*'\s*,\s*'[^']*'\s*,\s*'([^']*)'\s*,\s*'([^']*)'")
_EXPRESSION = re.compile(r"\$\{@.*?\}(?=[\s\"']|$)")


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A `.bb` file. `values` has what is assigned by the name with its overrides (`RDEPENDS:${PN}`), `flags` by
    name and flag (`SRC_URI`, `sha256sum`). Appended values are joined by blanks."""

    path: Path
    name: str
    version: str
    values: Mapping[str, str]
    flags: Mapping[tuple[str, str], str]
    inherits: tuple[str, ...]
    requires: tuple[str, ...]

    def words(self, variable: str) -> list[str]:
        """The words of `variable` under all overrides; of a conditional, those of both outcomes."""
        found: list[str] = []
        for name, value in self.values.items():
            if name == variable or name.startswith(f"{variable}:"):
                found += literal_words(value)
        return found

    def expand(self, text: str) -> str:
        """`text` with the recipe's own name and version filled in."""
        for name, value in {
            "PN": self.name,
            "BPN": self.name,
            "PV": self.version,
            "BP": f"{self.name}-{self.version}",
        }.items():
            text = text.replace(f"${{{name}}}", value)
        return text


def read_recipe(path: Path) -> Recipe:
    """The recipe in the file `path`, whose name says its name and version. Raises `OSError`."""
    name, _, version = path.stem.partition("_")
    values: dict[str, str] = {}
    flags: dict[tuple[str, str], str] = {}
    inherits: list[str] = []
    requires: list[str] = []
    for line in _statements(path.read_text("utf-8")):
        if found := _INHERIT.fullmatch(line):
            inherits += found[1].split()
        elif found := _REQUIRE.fullmatch(line):
            requires += found[1].split()
        elif found := _ASSIGNMENT.fullmatch(line):
            variable, value = found["name"], found["value"].strip()
            if found["flag"]:
                flags[variable, found["flag"]] = value
            elif found["operator"] in {"+=", "=+", ".=", "=."} and variable in values:
                values[variable] = f"{values[variable]} {value}"
            else:
                values[variable] = value
    return Recipe(
        path=path,
        name=name,
        version=values.get("PV", version),
        values=values,
        flags=flags,
        inherits=tuple(inherits),
        requires=tuple(requires),
    )


def literal_words(value: str) -> list[str]:
    """The words of a value; of `${@bb.utils.contains(…)}` both outcomes, of other expressions none."""
    outcomes = [text for pair in _CONTAINS.findall(value) for text in pair]
    return " ".join([_EXPRESSION.sub(" ", value), *outcomes]).split()


def _statements(text: str) -> Iterator[str]:
    """Lines with continued ones joined, without comments and bodies of functions."""
    inside = False
    for line in re.sub(r"\\\n", " ", text).split("\n"):
        if inside:
            inside = line != "}"
        elif _FUNCTION.match(line):
            inside = True
        elif line.strip() and not line.startswith(("#", "def ", " ", "\t")):
            yield line.strip()
