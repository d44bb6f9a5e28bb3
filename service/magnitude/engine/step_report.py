"""What graph runs took, added up by shape until the service is told."""

from __future__ import annotations

from magnitude.engine.protocol import StepGroup, StepKind, Steps
from magnitude.engine.session_spec import SessionSpec

# The service needs it for rates, not for single runs; twice a second is a message of some hundred bytes.
PERIOD_S = 0.5
# Lengths of prompt pieces are what the planner makes of them; anything else is rounded up so that the report stays
# short.
_EXACT_TOKENS = 8

# Model, session, kind, rows, tokens of each.
_Key = tuple[str, SessionSpec | None, StepKind, int, int]


class StepReport:
    """Collects runs; `due` gives the report when it is time."""

    def __init__(self) -> None:
        self._groups: dict[_Key, tuple[int, int, float, float]] = {}
        self._since_s = 0.0
        self._paused_s = 0.0

    def add(
        self,
        model: str,
        kind: StepKind,
        rows: int,
        tokens: int,
        *,
        run_s: float,
        now_s: float,
        session: SessionSpec | None = None,
    ) -> None:
        if not self._groups:
            self._since_s = now_s
        rounded = tokens if tokens <= _EXACT_TOKENS else 1 << (tokens - 1).bit_length()
        key = (model, session, kind, rows, rounded)
        runs, positions, total_s, max_s = self._groups.get(key, (0, 0, 0.0, 0.0))
        self._groups[key] = (runs + 1, positions + rows * tokens, total_s + run_s, max(max_s, run_s))

    def paused(self, paused_s: float) -> None:
        """No run was made for so long because the pace did not allow one."""
        self._paused_s += paused_s

    def due(self, now_s: float, *, idle: bool) -> Steps | None:
        """The report since the last one, when it is old enough or nothing more will come."""
        if not self._groups or not (idle or now_s - self._since_s >= PERIOD_S):
            return None
        groups = [
            StepGroup(
                model=model,
                session=session,
                kind=kind,
                rows=rows,
                tokens=tokens,
                runs=runs,
                total_s=total_s,
                max_s=max_s,
                positions=positions,
            )
            for (model, session, kind, rows, tokens), (runs, positions, total_s, max_s) in self._groups.items()
        ]
        paused_s, self._paused_s = self._paused_s, 0.0
        self._groups.clear()
        return Steps(groups=groups, paused_s=paused_s)
