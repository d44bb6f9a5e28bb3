"""What was trained off the device from records: tables by board and model, a tree for all others, and its proof.

One file, sealed like every state file; its checksum is its id. `magnitude strategy train` writes it, `magnitude
strategy import` installs it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from magnitude.errors import MagnitudeError
from magnitude.persist import sealed, write_atomic
from magnitude.policy.learned import Binding, Entry, Learned, Rejected
from magnitude.policy.situation import Part
from magnitude.policy.tree import Tree

SCHEMA = 1

Method = Literal["table", "tree"]


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What work that was not trained on says of one part of one model on one board, or of one situation (`key`).

    `gain` is the share of the time that is saved against the default (0.1: a tenth; negative: lost), failed tasks
    priced in, with its 95 % interval `low` to `high`. `tasks` lay in situations where both were really tried,
    `all_tasks` is all that there were.
    """

    board: str
    model: str
    part: Part
    method: Method
    key: str = ""
    gain: float
    low: float
    high: float
    tasks: int
    all_tasks: int


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Where it would lose against the default by more than the tolerance, and `why` in words."""

    board: str
    model: str
    part: Part
    method: Method
    key: str
    why: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What it rests on. `tolerance` is the share of the time that it may lose anywhere."""

    tasks: int
    files: int
    boards: tuple[str, ...]
    tolerance: float
    gains: tuple[Gain, ...] = ()
    losses: tuple[Loss, ...] = ()
    notes: tuple[str, ...] = ()


class ModelTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table of one model on one board. What records do not tell is empty: `ort_version`, `cpu_features`."""

    board: str
    model: str
    model_hash: str
    ort_version: str = ""
    cpu_features: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    samples: int = 0

    def fits(self, binding: Binding) -> bool:
        """Whether it holds for that very board, model and runtime, as far as it says for which it does."""
        return (
            self.board == binding.board
            and self.model_hash == binding.model_hash
            and self.ort_version in ("", binding.ort_version)
            and self.cpu_features in ((), binding.cpu_features)
        )


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `tree` None: the shipped one stays."""

    tables: tuple[ModelTable, ...] = ()
    tree: Tree | None = None
    proof: Proof
    made_at_s: float = 0.0  # wall clock, for people only

    @property
    def trained_id(self) -> str:
        """SHA-256 of the content as it stands in the file."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to use and nothing to refuse: nothing was learned."""
        return not self.tables and self.tree is None and not self.proof.losses

    def learned_for(self, binding: Binding) -> Learned | None:
        """What a dump of that binding begins with; None: there is no table that fits it."""
        for table in self.tables:
            if table.fits(binding):
                return Learned(binding=binding, entries=table.entries, rejected=table.rejected, samples=table.samples)
        return None


def write_trained(path: Path, trained: Trained) -> None:
    """Write the file whole or not at all. Raises `MagnitudeError` where that cannot be done."""
    try:
        write_atomic(path, sealed(trained, schema=SCHEMA))
    except OSError as error:
        raise MagnitudeError(
            f"{path} cannot be written: {error.strerror or error}", hint="Name a file in a folder that you may write"
        ) from error
