"""What README, CONTRIBUTING and docs/ name is there, and what must be documented is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from magnitude.cli.main import app, find_verbs
from magnitude.config import Settings
from magnitude.config.load import load_text
from magnitude.feedback.metrics import Metrics
from magnitude.intake.app import ROUTES

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
SOURCES = sorted((ROOT / "service/magnitude").rglob("*.py"))
TOP_FOLDERS = ("docs", "scripts", "tests", "bench", "service", "kernels")
# Pages name sources from the root, from the package, or (in a list about one folder) by their own name.
ORIGINS = (
    ROOT / "tests/system/boot",
    ROOT,
    ROOT / "service/magnitude",
    ROOT / "service/magnitude/models",
    ROOT / "service/magnitude/models/families",
)
# Files that live on the user's machine.
OF_USERS = {"magnitude.yaml", "wifi.yaml"}


def fenced(text: str) -> list[str]:
    """Contents of all blocks between fences."""
    return re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def spans(text: str) -> list[str]:
    """Contents of all code spans, however they are broken over lines."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def commands(text: str) -> list[str]:
    """Code spans, and lines of blocks (continued ones joined, prompts and comments left out)."""
    lines = [line for block in fenced(text) for line in block.replace("\\\n", " ").split("\n")]
    return spans(text) + [re.sub(r"\s#.*", "", line.removeprefix("$ ")) for line in lines]


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", prose(page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def each(pattern: str, *, texts: bool = False) -> Iterator[tuple[str, str]]:
    """Page and match for every match of `pattern` in the pages' commands (or in their whole text)."""
    for page in PAGES:
        for text in [page.read_text()] if texts else commands(page.read_text()):
            for found in re.findall(pattern, text):
                yield page.name, found


def verbs() -> dict[str, Any]:
    """The command line's verbs by name."""
    find_verbs()
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    # A picture that a command on the page writes is there once somebody has run it.
    written = set(re.findall(r"--(?:plot|json) (\S+)", page.read_text()))
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if str(target.relative_to(ROOT)) in written:
            continue
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_source_file_and_folder_that_is_named_exists(page: Path) -> None:
    written = set(re.findall(r"--(?:plot|json) (\S+)", page.read_text()))
    named = {span for span in spans(page.read_text()) if re.fullmatch(r"[\w./-]+\.(py|md|bash|svg|yaml)", span)}
    for command in commands(page.read_text()):
        named |= set(re.findall(rf"(?<![\w/.-])(?:{'|'.join(TOP_FOLDERS)})/[\w./-]*[\w/]", command))
    missing = {
        name
        for name in named - OF_USERS - written
        if not name.startswith("/") and not any((origin / name).exists() for origin in ORIGINS)
    }
    assert not missing


def test_every_verb_and_option_that_is_named_exists() -> None:
    commands_by_verb = verbs()
    seen = 0
    for page, words in each(r"(?:^|[\s(])magnitude ([a-z][^`|()]*)"):
        verb, *rest = words.split()
        assert verb in commands_by_verb, f"{page}: magnitude {words}"
        command = commands_by_verb[verb]
        if hasattr(command, "commands"):
            if not rest:
                continue
            assert rest[0] in command.commands, f"{page}: magnitude {words}"
            command = command.commands[rest[0]]
        known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", words):
            assert option in known, f"{page}: magnitude {words}"
        seen += 1
    assert seen > 20


def test_every_verb_is_documented() -> None:
    named = {words.split()[0] for _, words in each(r"(?:^|[\s(])magnitude ([a-z][^`|()]*)")}
    assert set(verbs()) <= named


def test_metrics_and_their_documentation_agree() -> None:
    families = {family.name for family in Metrics().registry.collect()}
    named = re.findall(r"`(magnitude_\w+)`", (ROOT / "docs/operations.md").read_text())
    assert {name.removesuffix("_total") for name in named} == families


def test_every_setting_that_is_named_exists() -> None:
    seen = 0
    # Transcripts are left out: they may show what a wrong name leads to.
    for page in PAGES:
        text = "\n".join(spans(page.read_text()))
        for section, key in re.findall(r"(?<![\w./-])(engine|server|models|records|log)\.([a-z_]+)\b", text):
            if key in ("md", "py", "db"):  # files
                continue
            names = {field.name for field in msgspec.structs.fields(type(getattr(Settings(), section)))}
            assert key in names, f"{page.name}: {section}.{key}"
            seen += 1
    assert seen > 20


def test_every_example_configuration_loads() -> None:
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    ]
    assert blocks
    for block in blocks:
        load_text(block)


def test_routes_and_their_documentation_agree() -> None:
    served = {re.sub(r"\{model(:path)?\}", "{name}", route.path) for route in ROUTES}
    rows = re.findall(r"^\| (`.*?) \| \[", (ROOT / "docs/api.md").read_text(), flags=re.MULTILINE)
    named = {path for row in rows for path in re.findall(r"(/[\w./{}]+)", row)}
    assert named == served


def test_every_error_code_that_is_named_exists() -> None:
    rows = re.findall(r"^\| (?:4|5)\d\d \| (.*?) \|", (ROOT / "docs/api.md").read_text(), flags=re.MULTILINE)
    codes = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    assert len(codes) > 20
    text = "\n".join(path.read_text() for path in SOURCES)
    assert not {code for code in codes if f'"{code}"' not in text}


def test_every_check_of_the_doctor_is_documented() -> None:
    checks = {path.stem for path in (ROOT / "service/magnitude/doctor/checks").glob("*.py")} - {"__init__"}
    rows = re.findall(r"^\| (\w+) \| ", (ROOT / "docs/operations.md").read_text(), flags=re.MULTILINE)
    assert checks <= set(rows)


def test_the_pages_name_no_folder_of_the_machine_they_were_written_on() -> None:
    private = [found for _, found in each(r"(?:/tmp|/work|/root)/\S*", texts=True)]
    assert private == []
