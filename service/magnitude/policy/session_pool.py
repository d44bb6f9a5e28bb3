"""Which further sessions of a model there are, and which of them may be used."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Verified
from magnitude.policy.terms import CheckSession, DropSession, Effect, PrepareSession

State = Literal["absent", "preparing", "unchecked", "checking", "ready"]

# What could not be made for want of memory is asked for again so much later: other models come and go in minutes.
RETRY_S = 300.0
# What was wanted lately stays: making a session takes a second of a core, so that one a minute costs a sixtieth.
KEEP_S = 60.0


class SessionPool:
    """A session is made, compared with the model's own, and then ready; the own one always is. A session that
    computed something else is never made again."""

    def __init__(self, own: SessionSpec, most: int) -> None:
        self.own = own
        self.verified: dict[SessionSpec, Verified] = {}
        self.bytes: dict[SessionSpec, int] = {}  # of those that are there
        self._most = most
        self._states: dict[SessionSpec, State] = {}
        self._not_before_s: dict[SessionSpec, float] = {}
        self._hopeless: dict[SessionSpec, str] = {}
        self._used_s: dict[SessionSpec, float] = {}

    def state(self, session: SessionSpec) -> State:
        return "ready" if session == self.own else self._states.get(session, "absent")

    def ready(self, session: SessionSpec) -> bool:
        return self.state(session) == "ready"

    def barred(self, session: SessionSpec, now_s: float) -> str:
        """Why it cannot be had now; "" when it can, or is there."""
        if session == self.own or self._states.get(session):
            return ""
        verdict = self.verified.get(session)
        if verdict is not None and not verdict.passed:
            return verdict.reason or "it does not compute what the model's own session does"
        if session in self._hopeless:
            return self._hopeless[session]
        return "there was no room for it" if now_s < self._not_before_s.get(session, -1e300) else ""

    @property
    def present(self) -> list[SessionSpec]:
        """Further sessions that are there or being made."""
        return list(self._states)

    def want(self, session: SessionSpec, keep: Collection[SessionSpec], now_s: float, *, idle: bool) -> list[Effect]:
        """What brings `session` nearer to being ready; nothing while that is under way or cannot be. `keep` may not
        be dropped for it. A check runs between other runs, but waits for an idle moment first."""
        self._used_s[session] = now_s
        match self.state(session):
            case "absent":
                if self.barred(session, now_s) or "preparing" in self._states.values():
                    return []
                effects: list[Effect] = []
                if not self.has_place(session, keep, now_s):
                    return []
                if len(self._states) >= self._most:
                    effects.append(self.drop(self._spare(keep, now_s)[0]))
                self._states[session] = "preparing"
                return [*effects, PrepareSession(session)]
            case "unchecked" if idle and "checking" not in self._states.values():
                self._states[session] = "checking"
                return [CheckSession(session)]
        return []

    def has_place(self, session: SessionSpec, keep: Collection[SessionSpec], now_s: float) -> bool:
        """Whether it is there, or can be made now."""
        if session == self.own or session in self._states or len(self._states) < self._most:
            return True
        return bool(self._spare(keep, now_s))

    def lost(self, session: SessionSpec) -> bool:
        """Whether it will never be had: it computes something else, or cannot be made."""
        verdict = self.verified.get(session)
        return session in self._hopeless or (verdict is not None and not verdict.passed)

    def begin_anew(self) -> None:
        """Nothing counts as proven or as hopeless; what is there stays."""
        self.verified.clear()
        self._hopeless.clear()
        self._not_before_s.clear()

    def _spare(self, keep: Collection[SessionSpec], now_s: float) -> list[SessionSpec]:
        """What may be dropped, the longest unused first. A load that swings between two situations must not make
        and drop their sessions in turn."""
        idle = [
            one
            for one, state in self._states.items()
            if one not in keep and state != "checking" and now_s - self._used_s.get(one, -1e300) >= KEEP_S
        ]
        return sorted(idle, key=lambda one: self._used_s.get(one, -1e300))

    def drop(self, session: SessionSpec) -> Effect:
        self._states.pop(session, None)
        self.bytes.pop(session, None)
        return DropSession(session)

    def made(self, session: SessionSpec, added_bytes: int) -> None:
        if session not in self._states:
            return  # dropped, or its engine lost, in the meantime
        self.bytes[session] = added_bytes
        verdict = self.verified.get(session)
        self._states[session] = "ready" if verdict is not None and verdict.passed else "unchecked"

    def failed(self, session: SessionSpec, reason: str, *, lasting: bool, now_s: float) -> None:
        self._states.pop(session, None)
        self.bytes.pop(session, None)
        if lasting:
            self._hopeless[session] = reason
        else:
            self._not_before_s[session] = now_s + RETRY_S

    def checked(self, verdict: Verified) -> None:
        self.verified[verdict.session] = verdict
        if verdict.passed and verdict.session in self._states:
            self._states[verdict.session] = "ready"

    def engine_gone(self) -> None:
        """Nothing is there any more; what was proven stays so."""
        self._states.clear()
        self.bytes.clear()

    def restore(self, verified: Iterable[Verified]) -> None:
        for verdict in verified:
            self.verified[verdict.session] = verdict
