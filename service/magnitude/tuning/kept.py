"""An interrupted sweep, so that it can go on."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from magnitude.persist import StateFile
from magnitude.policy.learned import Binding, Verified
from magnitude.policy.terms import BoardSeen
from magnitude.tuning.sweep import Compared, Sweep

SCHEMA = 1


class KeptSweep(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared so far, and under which conditions."""

    binding: Binding | None = None
    board: BoardSeen | None = None
    compared: tuple[Compared, ...] = ()
    verified: tuple[Verified, ...] = ()


class SweepFile:
    """Below `folder`, one for each model's weights."""

    def __init__(self, folder: Path, binding: Binding, board: BoardSeen) -> None:
        self._file = StateFile(folder / f"tune-{binding.model_hash[:16]}.json", KeptSweep, schema=SCHEMA)
        self._binding = binding
        self._board = board

    def load(self) -> KeptSweep:
        """Empty where there is nothing, or where it was compared under other conditions."""
        kept = self._file.load(KeptSweep)
        same = (kept.binding, kept.board) == (self._binding, self._board)
        return kept if same else KeptSweep()

    def save(self, sweep: Sweep, verified: tuple[Verified, ...]) -> None:
        """Blocks. Storage that refuses costs only that the sweep cannot be gone on with."""
        kept = KeptSweep(
            binding=self._binding, board=self._board, compared=tuple(sweep.compared.values()), verified=verified
        )
        with contextlib.suppress(OSError):  # the save says it
            self._file.path.parent.mkdir(parents=True, exist_ok=True)
        self._file.save(kept)

    def remove(self) -> None:
        self._file.remove()
