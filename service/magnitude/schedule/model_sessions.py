"""Further sessions of one model: made, compared, timed, used and given up, as its strategy loop asks for it.

A session that has failed is never used again: not one whose results differ, nor one with which engines die.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import msgspec

from magnitude.engine.message import Message
from magnitude.engine.protocol import Failed, ToService
from magnitude.engine.session_messages import (
    Compared,
    CompareSession,
    PrepareSession,
    Probe,
    Probed,
    ProbedRun,
    ReleaseSession,
    SessionPrepared,
    TrialRuns,
    UseSessions,
)
from magnitude.engine.session_spec import SessionSpec
from magnitude.models.description import KERNEL_GRAPH_FILE
from magnitude.models.golden_texts import COSINE_TOLERANCE, LOGIT_TOLERANCE, golden_texts
from magnitude.policy import terms
from magnitude.policy.learned import Verified
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import Event, ProbeDone, SessionChecked, SessionFailed, SessionReady
from magnitude.schedule.background import Background
from magnitude.schedule.engine_deaths import EngineDeaths
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.session_desk import SessionDesk
from magnitude.supervise.loss import EngineLoss

log = logging.getLogger("magnitude.policy")

# A session that memory had no room for is tried again after so long at the earliest: as long as the governor of
# memory needs to be calm again.
REFUSED_S = 30.0
# A comparison waits so long for the engine to be idle; then its runs are taken between those of requests.
CHECK_PATIENCE_S = 3.0
# A probe waits so long for other models to be done: longer than one answer of a conversation takes. What still
# computes then is under a load that may last, and whoever asked for the probe has a better use of its time.
PROBE_PATIENCE_S = 10.0
# A probe that came to nothing though no request of this model was open, and what ended by an error, is answered after
# so long: whoever asked for it would ask again at once.
PAUSE_S = 5.0
# Positions behind which runs are timed: a short conversation's.
PROBED_PAST_TOKENS = 128

# For decoding, for prompts, and on trial; None: the model's own. So a new engine runs everything.
_Asked = tuple[SessionSpec | None, SessionSpec | None, TrialRuns | None]
_OWN_ONLY: _Asked = (None, None, None)


class HeldSession(msgspec.Struct, frozen=True, kw_only=True):
    """A further session in the engine. `bytes_` is what it takes, while it is being made what it is expected to."""

    session: SessionSpec
    bytes_: int
    state: Literal["making", "there"]


class ModelSessions:
    """For one model, over all engines. `own` is its own session, `tell` is told what came of what was asked for.

    Lives on the event loop; nothing here waits for the engine but its background tasks.
    """

    def __init__(
        self,
        desk: SessionDesk,
        plan: ModelPlan,
        own: SessionSpec,
        tell: Callable[[Event], None],
        *,
        busy: Callable[[], bool],
        timing: Callable[[bool], None] = lambda now: None,
        probe_patience_s: float = PROBE_PATIENCE_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`busy`: whether requests for this model are open. `timing` is told when a probe's runs begin and end."""
        self._desk = desk
        self._plan = plan
        self._own = own
        self._tell = tell
        self._busy = busy
        self._timing = timing
        self._probe_patience_s = probe_patience_s
        self._pause_s = pause_s
        self._model = plan.description.name
        self._held: dict[SessionSpec, HeldSession] = {}
        self._dropped: set[SessionSpec] = set()  # while they are being made
        self._refused_s: dict[SessionSpec, float] = {}
        self._never: dict[SessionSpec, str] = {}
        self._deaths = EngineDeaths[SessionSpec]()
        self._making: SessionSpec | None = None
        self._at_work: tuple[SessionSpec, ...] = ()
        self._asked = _OWN_ONLY
        self._session_bytes = plan.description.weight_bytes  # until one was made: about its packed weights
        self._background = Background("work on a further session failed")

    # --- for those who look on ---

    @property
    def held(self) -> list[HeldSession]:
        return list(self._held.values())

    def bytes_(self) -> int:
        """What all of them take, those that are being made included."""
        return sum(held.bytes_ for held in self._held.values())

    @property
    def needed_bytes(self) -> int:
        """What one more is expected to take."""
        return self._session_bytes

    # --- the engine ---

    def engine_down(self, loss: EngineLoss | None) -> None:
        """The sessions are gone with their engine; `loss` None: the model was unloaded."""
        self._background.cancel()
        now_s, making = self._desk.clock(), () if self._making is None else (self._making,)
        if loss is None:
            self._deaths.use((), now_s)
        else:
            self._never = self._deaths.died(loss, now_s, making=making, at_work=self._at_work) | self._never
        self._held.clear()
        self._dropped.clear()
        self._making = None
        self._at_work = ()
        self._asked = _OWN_ONLY

    async def close(self) -> None:
        self._background.cancel()
        await self._background.settled()

    # --- what the loop asks for ---

    def prepare(self, session: SessionSpec) -> None:
        if session == self._own:
            self._tell(SessionReady(session, 0))
            return
        self._dropped.discard(session)
        held = self._held.get(session)
        if held is None:
            self._start(lambda: self._prepare(session), lambda reason: self._let_go(session, reason, lasting=False))
        elif held.state == "there":
            self._tell(SessionReady(session, held.bytes_))

    def drop(self, session: SessionSpec) -> None:
        held = self._held.get(session)
        if held is None or held.state == "making":
            self._dropped.add(session)
            return
        self._release(session)

    def check(self, session: SessionSpec) -> None:
        self._start(lambda: self._check(session), lambda reason: self._let_go(session, reason, lasting=False))

    def probe(self, probe: terms.Probe) -> None:
        self._start(lambda: self._probe(probe), lambda reason: self._background.start(self._not_timed(probe)))

    def use(self, strategy: Strategy, trial: terms.Trial | None) -> None:
        """From the next run on. A session that is not there, or must not be used, is the model's own."""
        decode, prefill = self._usable(strategy.decode), self._usable(strategy.prefill)
        tried = None
        if trial is not None and (trial.session == self._own or self._usable(trial.session) is not None):
            phase: Literal["decode", "prefill"] = "decode" if trial.part == "decode" else "prefill"
            tried = TrialRuns(phase=phase, session=self._usable(trial.session), every=trial.every)
        asked = (decode, prefill, tried)
        if asked == self._asked:
            return
        self._asked = asked
        used = (decode, prefill, tried.session if tried is not None else None)
        self._deaths.use([session for session in used if session is not None], self._desk.clock())
        self._desk.send(
            UseSessions(
                request_id=self._desk.next_id(), model=self._model, decode=decode, prefill=prefill, trial=tried
            )
        )

    def drop_all(self, reason: str) -> None:
        """Memory is short: give all further sessions back. The loop is told of each, and may ask again later."""
        for session in list(self._held):
            self._refused_s[session] = self._desk.clock()
            if self._held[session].state == "there":
                self._release(session)
                self._tell(SessionFailed(session, reason, lasting=False))
            else:
                self._dropped.add(session)

    # --- in the background ---

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]], failed: Callable[[str], None]) -> None:
        """`failed` is told why, should the work end by an error: whoever asked for it waits for an answer."""
        if self._desk.up:  # else it is asked for anew when there is an engine
            self._background.start(self._to_an_end(work, failed))

    async def _to_an_end(self, work: Callable[[], Coroutine[Any, Any, None]], failed: Callable[[str], None]) -> None:
        try:
            await work()
        except Exception as error:
            log.exception("work on a further session of %s failed", self._model)
            failed(f"{type(error).__name__}: {error}")

    async def _prepare(self, session: SessionSpec) -> None:
        if session in self._never:
            self._tell(SessionFailed(session, self._never[session], lasting=True))
            return
        refused_s = self._refused_s.get(session)
        if refused_s is not None:
            await asyncio.sleep(max(0.0, refused_s + REFUSED_S - self._desk.clock()))
        await self._desk.settled()
        async with self._desk.one:
            if session in self._held:
                return
            if session in self._dropped:
                self._dropped.discard(session)
                return
            refusal = self._desk.budget().refusal(self._session_bytes)
            if refusal:
                self._refused_s[session] = self._desk.clock()
                self._tell(SessionFailed(session, refusal, lasting=False))
                return
            await self._make(session)

    async def _make(self, session: SessionSpec) -> None:
        request_id = self._desk.next_id()
        message = PrepareSession(request_id=request_id, model=self._model, session=session)
        self._held[session] = HeldSession(session=session, bytes_=self._session_bytes, state="making")
        self._making = session
        try:
            answer = await self._desk.ask(message, request_id)
        finally:
            self._making = None
        self._deaths.made(session)
        if not isinstance(answer, SessionPrepared):
            del self._held[session]
            self._refused_s[session] = self._desk.clock()
            reason, lasting = _reason_of(answer)
            self._tell(SessionFailed(session, reason, lasting))
            return
        self._held[session] = HeldSession(session=session, bytes_=answer.added_bytes, state="there")
        self._session_bytes = max(answer.added_bytes, self._plan.description.weight_bytes // 2)
        self._refused_s.pop(session, None)
        if session in self._dropped:
            self._release(session)
            self._tell(SessionFailed(session, "given up while it was made", lasting=False))
            return
        fields = {
            "model": self._model,
            "session": session.session_id,
            "load_s": round(answer.load_s, 2),
            "mb": answer.added_bytes // 1_000_000,
        }
        log.info("session prepared", extra={"fields": fields})
        self._tell(SessionReady(session, answer.added_bytes))

    async def _check(self, session: SessionSpec) -> None:
        texts = await asyncio.to_thread(golden_texts, self._plan.description, self._longest_tokens)
        await self._desk.settled()
        await self._desk.quiet(patience_s=CHECK_PATIENCE_S)
        async with self._desk.one:
            if not self._there(session):
                return  # it was given up meanwhile, which the loop knows
            request_id = self._desk.next_id()
            message = CompareSession(
                request_id=request_id,
                model=self._model,
                session=session,
                slot=self._plan.scratch_slot,
                texts=texts,
            )
            answer = await self._at_work_on((session,), message, request_id)
        if not isinstance(answer, Compared):
            if self._there(session):  # else it was given up meanwhile
                self._let_go(session, *_reason_of(answer))
            return
        verdict = verdict_of(session, answer)
        fields = {"model": self._model, "session": session.session_id, "equal": verdict.equal}
        if verdict.passed:
            log.info("session agrees with the model's own", extra={"fields": fields})
        else:
            log.error(
                "session gives other results than the model's own and is not used",
                extra={"fields": fields | {"reason": verdict.reason}},
            )
            self._never[session] = verdict.reason
        self._tell(SessionChecked(verdict))
        if not verdict.passed and self._there(session):
            self._release(session)

    async def _probe(self, probe: terms.Probe) -> None:
        await self._desk.settled()
        if not await self._desk.quiet(patience_s=self._probe_patience_s, given_up=self._busy):
            self._tell(ProbeDone(probe, (), complete=False))
            return
        async with self._desk.one:
            answer = None
            if self._desk.idle():
                self._timing(True)
                try:
                    answer = await self._timed(probe)
                finally:
                    self._timing(False)
        if isinstance(answer, Probed) and any(answer.seconds):
            self._tell(ProbeDone(probe, answer.seconds, answer.complete))
            return
        if answer is not None and not isinstance(answer, Probed):
            fields = {"model": self._model, "reason": _reason_of(answer)[0]}
            log.warning("sessions could not be timed", extra={"fields": fields})
        await self._not_timed(probe)

    async def _not_timed(self, probe: terms.Probe) -> None:
        if not self._busy():
            await asyncio.sleep(self._pause_s)
        self._tell(ProbeDone(probe, (), complete=False))

    async def _timed(self, probe: terms.Probe) -> ToService:
        """What the engine answers."""
        request_id = self._desk.next_id()
        runs = tuple(self._probed(probe, choice.session, choice.chunk) for choice in probe.choices)
        longest = max(run.tokens for run in runs)
        message = Probe(
            request_id=request_id,
            model=self._model,
            slot=self._plan.scratch_slot,
            runs=runs,
            rounds=probe.rounds,
            past_tokens=max(0, min(PROBED_PAST_TOKENS, self._longest_tokens - longest)),
        )
        sessions = tuple(run.session for run in runs if run.session is not None)
        return await self._at_work_on(sessions, message, request_id)

    async def _at_work_on(self, sessions: tuple[SessionSpec, ...], message: Message, request_id: int) -> ToService:
        """What the engine answers, once it has let go of the scratch slot."""
        self._at_work = sessions
        try:
            answer = await self._desk.ask(message, request_id)
        finally:
            self._at_work = ()
        self._give_back_slot()
        return answer

    # --- inside ---

    def _probed(self, probe: terms.Probe, session: SessionSpec | None, chunk: int) -> ProbedRun:
        further = None if session is None or session == self._own else session
        match probe.part:
            case "decode":
                return ProbedRun(session=further, rows=probe.rows, tokens=1)
            case "prefill":
                return ProbedRun(session=further, rows=1, tokens=min(chunk or probe.tokens, self._longest_tokens))
            case _:
                return ProbedRun(
                    session=further, rows=max(1, probe.rows), tokens=min(probe.tokens, self._longest_tokens)
                )

    @property
    def _longest_tokens(self) -> int:
        encoder = self._plan.description.encoder
        return encoder.max_tokens if encoder is not None else max(1, self._plan.provision.context_length - 1)

    def _there(self, session: SessionSpec) -> bool:
        held = self._held.get(session)
        return held is not None and held.state == "there"

    def _usable(self, session: SessionSpec) -> SessionSpec | None:
        """None: the model's own."""
        if session == self._own or session in self._never or not self._there(session):
            return None
        return session

    def _release(self, session: SessionSpec) -> None:
        self._held.pop(session, None)
        self._dropped.discard(session)
        self._desk.send(ReleaseSession(request_id=self._desk.next_id(), model=self._model, session=session))

    def _let_go(self, session: SessionSpec, reason: str, lasting: bool) -> None:
        """It could not be made or compared, which says nothing of its results."""
        fields = {"model": self._model, "session": session.session_id, "reason": reason}
        log.warning("session cannot be had", extra={"fields": fields})
        if session in self._held:
            self._release(session)
        self._refused_s[session] = self._desk.clock()
        self._tell(SessionFailed(session, reason, lasting))

    def _give_back_slot(self) -> None:
        if self._plan.kv is None:
            return
        try:
            self._plan.kv.release_slot(self._plan.scratch_slot)
        except OSError as error:
            fields = {"model": self._model, "reason": str(error)}
            log.warning("KV memory of the scratch slot could not be given back", extra={"fields": fields})


class _Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Of a further session's results against the model's own: the least share of equal first tokens, the least cosine
    of a row, and the largest difference of a value."""

    top1_agreement: float
    cosine: float
    difference: float


_SAME = _Bounds(top1_agreement=1.0, cosine=COSINE_TOLERANCE, difference=LOGIT_TOLERANCE)
# Two roundings of the same activations, each near float by what was measured at import. SmolLM2-135M over 195
# positions: 0.979, 0.9936 and 1.7 between kernels and serving graph; between that and float activations 0.979, 0.9961
# and 1.2. What computes something else is far away in each of them.
_ROUNDED = _Bounds(top1_agreement=0.93, cosine=0.98, difference=3.5)


def verdict_of(session: SessionSpec, answer: Compared) -> Verified:
    """Whether its results are those of the model's own: equal to the bit, or within the tolerance that a model's
    golden set has; a kernel plan's, which rounds activations in another way, within that of such roundings."""
    bounds = _ROUNDED if session.graph_file == KERNEL_GRAPH_FILE else _SAME
    reason = ""
    if answer.positions <= 0:
        reason = "nothing could be compared"
    elif not answer.equal:
        if not answer.top1_agreement >= bounds.top1_agreement:
            reason = f"another first token at {1 - answer.top1_agreement:.1%} of the positions"
        elif not answer.least_cosine >= bounds.cosine:
            reason = f"a cosine of {answer.least_cosine:.4f}, {bounds.cosine} is required"
        elif not answer.largest_difference <= bounds.difference:
            reason = f"values differ by {answer.largest_difference:.2f}, {bounds.difference} is allowed"
    return Verified(
        session=session,
        passed=not reason,
        equal=answer.equal,
        largest_difference=answer.largest_difference,
        top1_agreement=answer.top1_agreement,
        reason=reason,
    )


def _reason_of(answer: object) -> tuple[str, bool]:
    """Why, and whether trying again is of no use."""
    if isinstance(answer, Failed):
        # A CPU that is offline, or taken from the service, may come back.
        return answer.message, answer.permanent and answer.code != "cpus_not_usable"
    return f"the engine answered with {type(answer).__name__}", False
