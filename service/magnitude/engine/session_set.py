"""The sessions of one model: its own, further ones over the same mapped weights, and which of them runs what.

The own session is named None, and stands in for every one that is not there.
"""

from __future__ import annotations

from typing import Any

import msgspec

from magnitude.engine.session_messages import RunPhase, TrialRuns, UseSessions
from magnitude.engine.session_spec import SessionSpec


class RunShape(msgspec.Struct, frozen=True, kw_only=True):
    """A run as reports tell it: `rows` sequences of `tokens` new positions each, and the session that did it."""

    rows: int = 1
    tokens: int = 1
    session: SessionSpec | None = None


class RunChoice:
    """Which session the next run of a phase is for; pure.

    Of a trial's phase every `every`-th run is the trial's. Being told of the same session's trial again does not
    start the count anew, also after a pause: the service says what is in force more often than it changes, and a
    trial of prompts pauses after each of them.
    """

    def __init__(self) -> None:
        self._in_force: dict[RunPhase, SessionSpec | None] = {"prefill": None, "decode": None}
        self._trial: TrialRuns | None = None
        self._counted: tuple[RunPhase, SessionSpec | None] | None = None
        self._since_trial = 0

    def use(self, message: UseSessions) -> None:
        self._in_force = {"prefill": message.prefill, "decode": message.decode}
        self._trial = message.trial
        if self._trial is not None and self._counted != (counted := (self._trial.phase, self._trial.session)):
            self._counted, self._since_trial = counted, 0

    def in_force(self, phase: RunPhase) -> SessionSpec | None:
        """For the runs of the phase that are nobody's trial."""
        return self._in_force[phase]

    def take(self, phase: RunPhase) -> SessionSpec | None:
        """For the run that is done now, which is counted."""
        if self._trial is None or self._trial.phase != phase:
            return self._in_force[phase]
        self._since_trial += 1
        if self._since_trial < self._trial.every:
            return self._in_force[phase]
        self._since_trial = 0
        return self._trial.session


class FurtherSession:
    """A session beside the own one, and by how much the process has grown for it."""

    __slots__ = ("added_bytes", "session")

    def __init__(self, session: Any, added_bytes: int) -> None:
        self.session = session
        self.added_bytes = added_bytes


class SessionSet:
    """Sessions of a model by their specification. `own_spec` is how the own one was made."""

    def __init__(self, own: Any, own_spec: SessionSpec | None = None, own_graph: str = "") -> None:
        self._own = own
        self._own_spec = own_spec
        self._own_graph = own_graph
        self._further: dict[SessionSpec, FurtherSession] = {}
        self._choice = RunChoice()

    def __len__(self) -> int:
        """How many there are beside the own one."""
        return len(self._further)

    def __contains__(self, spec: SessionSpec | None) -> bool:
        """Whether it is there."""
        spec = self.known_as(spec)
        return spec is None or spec in self._further

    @property
    def added_bytes(self) -> int:
        """Of all further ones."""
        return sum(further.added_bytes for further in self._further.values())

    def known_as(self, spec: SessionSpec | None) -> SessionSpec | None:
        """The name in this set: None for a specification that is the own session's."""
        if spec is None or self._own_spec is None:
            return spec
        graph = spec.graph_file or self._own_graph
        same = (graph, spec.threads, spec.cpus, spec.arena)
        own = (self._own_graph, self._own_spec.threads, self._own_spec.cpus, self._own_spec.arena)
        return None if same == own else spec

    def in_force_as(self, phase: RunPhase) -> SessionSpec:
        """How the session in force is made. Raises `KeyError` where that of the own one is not known."""
        spec = self.in_force(phase) or self._own_spec
        if spec is None:
            raise KeyError("the own session")
        return spec

    def get(self, spec: SessionSpec | None) -> Any:
        """The session of that name. Raises `KeyError` where it is not there."""
        return self._own if spec is None else self._further[spec].session

    def added_bytes_of(self, spec: SessionSpec | None) -> int:
        spec = self.known_as(spec)
        return 0 if spec is None else self._further[spec].added_bytes

    def add(self, spec: SessionSpec, session: Any, added_bytes: int) -> None:
        self._further[spec] = FurtherSession(session, added_bytes)

    def remove(self, spec: SessionSpec) -> None:
        """Nothing may be bound to it any more."""
        self._further.pop(spec, None)

    def use(self, message: UseSessions) -> None:
        """From the next run on. What is not there yet runs as soon as it is."""
        self._choice.use(message)

    def in_force(self, phase: RunPhase) -> SessionSpec | None:
        """The session of runs that are nobody's trial."""
        return self._present(self._choice.in_force(phase))

    def take(self, phase: RunPhase) -> SessionSpec | None:
        """The session of the run that is done now, which is counted."""
        return self._present(self._choice.take(phase))

    def _present(self, spec: SessionSpec | None) -> SessionSpec | None:
        spec = self.known_as(spec)
        return spec if spec in self._further else None

    def close(self) -> None:
        """Let go of all of them."""
        self._further.clear()
        self._own = None
