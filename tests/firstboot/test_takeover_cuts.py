"""A takeover that is cut off before any of its operations on files, again and again, ends as if it had not been."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from parcels import KEYS, PSK, WIFI, Card

CONFIG = "log:\n  level: debug\n"
CUT = 77
# What Python reports before it changes anything in a file system (sys.addaudithook).
OPERATIONS = frozenset(
    {"open", "os.rename", "os.remove", "os.truncate", "os.chmod", "os.chown", "os.mkdir", "os.link", "os.utime"}
)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder whose files need no card: hundreds of boots sync each of theirs."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


def boot_cut_at(card: Card, number: int) -> bool:
    """A boot in a process of its own that ends without further notice before its operation `number`. False when it
    came to its end before that."""
    child = os.fork()
    if child == 0:
        left = number

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in OPERATIONS:
                left -= 1
                if left < 0:
                    os._exit(CUT)

        try:
            sys.addaudithook(watch)
            card.boot()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == CUT


def files_of(card: Card) -> dict[str, tuple[bytes, int]]:
    """Everything that a takeover leaves, by name; temporary files are the next writer's to remove."""
    root = card.partition.parent.parent
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in root.rglob("*")
        if path.is_file() and not path.name.endswith(".tmp") and "taken.json" not in path.name
    }


def loaded(root: Path) -> Card:
    card = Card(root)
    card.put("magnitude.yaml", CONFIG)
    card.put("wifi.yaml", WIFI)
    card.put("authorized_keys", KEYS)
    card.put("Bad.nmconnection", "nonsense\n")
    return card


@pytest.mark.slow
def test_a_cut_before_any_operation_is_made_good_by_the_next_boot(in_memory: Path) -> None:
    whole = loaded(in_memory / "whole")
    whole.boot()
    expected = files_of(whole)
    number = 0
    while boot_cut_at(card := loaded(in_memory / str(number)), number):
        card.boot()
        assert files_of(card) == expected, f"cut before operation {number}"
        number += 1
    assert number > 20


@pytest.mark.parametrize("step", [1, 3, 7])
def test_cuts_at_every_boot_come_to_an_end(in_memory: Path, step: int) -> None:
    card = loaded(in_memory / "card")
    boots = 0
    while boot_cut_at(card, 20 + step * boots):
        boots += 1
    assert card.device.config.read_text() == CONFIG
    assert card.device.login_keys.read_text() == KEYS
    assert PSK not in "".join(path.read_text(errors="replace") for path in card.folder.iterdir())
