"""What records come to, as arrays: models on boards, their situations, and what was tried there by blocks of time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from magnitude.policy.learned import Choice
from magnitude.policy.situation import Part

Floats = npt.NDArray[np.float64]

# Columns of what is summed for a choice and block of time; logarithms are of seconds for a unit of work.
SUMS = ("ok", "failed", "log_sum", "log_square_sum", "unit_sum", "ok_s", "failed_s")
OK, FAILED, LOG, LOG_SQUARE, UNITS, OK_S, FAILED_S = range(len(SUMS))


class Tried(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One choice in one situation. `blocks` has a row for each block of time and a column for each of `SUMS`."""

    choice: Choice
    blocks: Floats
    p95_s: float = 0.0

    def total(self, within: slice = slice(None)) -> Floats:
        """Sums over those blocks."""
        return np.asarray(self.blocks[within].sum(axis=0))


class Cell(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One situation of one part. `default` is the index of what the model was loaded with among `tried`, None where
    that was never tried here. `rows` to `heat_level` are means over its tasks."""

    part: Part
    key: str
    tried: tuple[Tried, ...]
    default: int | None
    rows: float = 1.0
    tokens: float = 1.0
    cores: float = 0.0
    clock_share: float = 1.0
    heat_level: float = 0.0

    @property
    def tasks(self) -> int:
        return int(sum(one.total()[[OK, FAILED]].sum() for one in self.tried))


class ServedModel(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One model on one board with one runtime. `own_threads`, `own_chunk`: how it was loaded, mostly."""

    board: str
    model: str
    model_hash: str
    ort_version: str
    own_threads: int
    own_graph: str
    own_chunk: int
    weight_bytes: int
    tasks: int
    cells: tuple[Cell, ...]


class Fleet(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Everything. `records` counts all rows, `tasks` those that say something about a choice."""

    models: tuple[ServedModel, ...]
    records: int
    tasks: int
    unreadable: tuple[str, ...] = ()  # ids of strategies whose settings are not of this version

    @property
    def boards(self) -> tuple[str, ...]:
        return tuple(sorted({model.board for model in self.models}))


def default_of(part: Part, tried: Sequence[Choice], own_threads: int, own_graph: str, own_chunk: int) -> int | None:
    """Which of them is the model as it was loaded: its own session, its own pieces, its own weights. Records do not
    say on which CPUs and with which arena: none, where that was tried."""
    found: list[tuple[bool, bool, int]] = []
    for index, choice in enumerate(tried):
        session = choice.session
        if session is None:
            if not choice.variant:
                found.append((False, False, index))
        elif (
            session.threads == own_threads
            and session.graph_file in ("", own_graph)
            and (part != "prefill" or choice.chunk == own_chunk)
        ):
            found.append((bool(session.cpus), session.arena, index))
    return min(found)[-1] if found else None
