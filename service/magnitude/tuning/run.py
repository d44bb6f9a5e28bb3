"""Carries a sweep out, in an engine of its own."""

from __future__ import annotations

from collections.abc import Callable

from magnitude.engine.session_messages import (
    Compared as SessionCompared,
)
from magnitude.engine.session_messages import (
    CompareSession,
    PrepareSession,
    Probe,
    Probed,
    ProbedRun,
    ReleaseSession,
    SessionPrepared,
)
from magnitude.engine.session_spec import SessionSpec
from magnitude.errors import EngineError, MagnitudeError
from magnitude.models.golden_texts import golden_texts
from magnitude.policy.learned import Choice, Verified
from magnitude.schedule.model_sessions import verdict_of
from magnitude.tuning.lone_engine import LoneEngine
from magnitude.tuning.sweep import PAIRS, Compared, Step, Sweep, compare

# Rounds of one probe: an interrupted sweep loses that many at most.
ROUNDS = 6


class Tuning:
    """`keep` is called after each comparison with all of them, `told` before it. A session is held until a step needs
    another one: making it costs more than most comparisons."""

    def __init__(
        self,
        engine: LoneEngine,
        sweep: Sweep,
        *,
        session_bytes: int | None = None,
        verified: tuple[Verified, ...] = (),
        told: Callable[[Step, int, int], None] = lambda step, done, known: None,
        keep: Callable[[Sweep, tuple[Verified, ...]], None] = lambda sweep, verified: None,
    ) -> None:
        """`session_bytes`: a session that takes more is refused."""
        self.verified: dict[SessionSpec, Verified] = {one.session: one for one in verified}
        self._engine = engine
        self._sweep = sweep
        self._session_bytes = session_bytes
        self._told = told
        self._keep = keep
        self._held: dict[SessionSpec, int] = {}

    async def run(self) -> None:
        """To the end. Raises `EngineError` when the engine is lost; what was compared is kept by then."""
        while (step := self._sweep.next()) is not None:
            self._told(step, len(self._sweep.compared), len(self._sweep.steps()))
            self._sweep.add(await self._step(step))
            self._keep(self._sweep, tuple(self.verified.values()))

    async def _step(self, step: Step) -> Compared:
        session = step.challenger.session
        assert session is not None, "steps compare sessions"
        try:
            added_bytes = await self._made(session)
            verdict = await self._proven(session)
        except EngineError:
            raise
        except MagnitudeError as error:
            return Compared(step=step, refused=error.message)
        if not verdict.passed:
            return Compared(step=step, refused=verdict.reason, added_bytes=added_bytes)
        if self._session_bytes is not None and added_bytes > self._session_bytes:
            room = f"it takes {added_bytes / 1e6:.0f} MB, {self._session_bytes / 1e6:.0f} MB are there"
            return Compared(step=step, refused=room, added_bytes=added_bytes)
        return compare(step, await self._timed(step), added_bytes)

    async def _made(self, session: SessionSpec) -> int:
        if self._is_own(session):
            return 0
        if session in self._held:
            return self._held[session]
        name = self._engine.plan.description.name
        for other in list(self._held):
            release = ReleaseSession(request_id=self._engine.next_id(), model=name, session=other)
            await self._engine.ask(release, release.request_id)
            del self._held[other]
        prepare = PrepareSession(request_id=self._engine.next_id(), model=name, session=session)
        answer = await self._engine.ask(prepare, prepare.request_id)
        self._held[session] = answer.added_bytes if isinstance(answer, SessionPrepared) else 0
        return self._held[session]

    async def _proven(self, session: SessionSpec) -> Verified:
        if self._is_own(session):
            return Verified(session=session, passed=True, equal=True)
        if session not in self.verified:
            plan = self._engine.plan
            message = CompareSession(
                request_id=self._engine.next_id(),
                model=plan.description.name,
                session=session,
                slot=plan.scratch_slot if plan.kv is not None else 0,
                texts=golden_texts(plan.description, max(8, plan.provision.context_length or 128)),
            )
            answer = await self._engine.ask(message, message.request_id)
            assert isinstance(answer, SessionCompared), "what else the engine says is raised"
            self.verified[session] = verdict_of(session, answer)
        return self.verified[session]

    async def _timed(self, step: Step) -> list[tuple[float, float]]:
        plan = self._engine.plan
        runs = (self._run(step, step.base), self._run(step, step.challenger))
        positions = max(run.tokens for run in runs)
        pairs: list[tuple[float, float]] = []
        # The first round touches memory for the first time, and caches: it is run and forgotten.
        for rounds in (1, *[ROUNDS] * (PAIRS // ROUNDS)):
            message = Probe(
                request_id=self._engine.next_id(),
                model=plan.description.name,
                slot=plan.scratch_slot if plan.kv is not None else 0,
                runs=runs,
                rounds=rounds,
                past_tokens=max(0, min(128, plan.provision.context_length - positions - 1)),
            )
            answer = await self._engine.ask(message, message.request_id)
            assert isinstance(answer, Probed), "what else the engine says is raised"
            if rounds > 1:
                pairs += list(zip(answer.seconds[0], answer.seconds[1], strict=False))
        return pairs

    def _run(self, step: Step, choice: Choice) -> ProbedRun:
        assert choice.session is not None
        own = self._is_own(choice.session)
        # A piece of a prompt has the choice's size where sizes are compared, else the situation's.
        tokens = choice.chunk if step.stage == "pieces" else step.tokens
        return ProbedRun(session=None if own else choice.session, rows=step.rows, tokens=tokens)

    def _is_own(self, session: SessionSpec) -> bool:
        return session == SessionSpec(threads=self._engine.plan.provision.threads)
