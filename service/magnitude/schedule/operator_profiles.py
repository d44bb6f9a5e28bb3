"""When operators are profiled: after every so many requests of a model, while nothing else is open.

A profile takes the engine a second or two: a session like the one in force is made beside what runs, does a few runs
while nothing is open, and is gone. So it is asked for seldom, and gives way to everything.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from magnitude.engine.protocol import Failed
from magnitude.engine.session_messages import OperatorsProfiled, PhaseProfile, ProfileOperators
from magnitude.schedule.background import Background
from magnitude.schedule.engine_deaths import EngineDeaths
from magnitude.schedule.model_sessions import PROBED_PAST_TOKENS
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.session_desk import SessionDesk
from magnitude.supervise.loss import EngineLoss

log = logging.getLogger("magnitude.policy")

# Operators change with the version of ONNX Runtime, the graph and the board's clock, not from request to request.
PAUSE_S = 3600.0
# One that had to give way is tried again after so long at the earliest: making its session costs half a second of a
# core, which must not come after each request of a client that pauses for a moment only.
RETRY_S = 60.0
# The engine is idle for so long before a profile begins: a client that answers at once is not met by it.
QUIET_S = 2.0
# Decode steps of one profile, and the tokens of its piece of a prompt: for a moment there is a file of 1.7 MB then
# (SmolLM2-135M, two threads).
STEPS = 4
PIECE_TOKENS = 64


class _Turn(msgspec.Struct):
    """How far a model is from its next profile. `next_s`: not before."""

    requests: int = 0
    next_s: float = 0.0
    under_way: bool = False


class OperatorProfiles:
    """For all models, on the event loop. `tell` gets what was profiled, `loaded` says whether a model is in memory,
    `needed_bytes` what a further session of it takes, `held` whether nothing is to be measured now. `every` requests
    of a model bring a profile; 0: none do."""

    def __init__(
        self,
        plans: Iterable[ModelPlan],
        desk: SessionDesk,
        *,
        tell: Callable[[str, tuple[PhaseProfile, ...]], None],
        every: int,
        loaded: Callable[[str], bool],
        needed_bytes: Callable[[str], int],
        held: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        quiet_s: float = QUIET_S,
    ) -> None:
        # Of plain tensors nobody knows what they mean, so there is nothing to run.
        self._plans = {plan.description.name: plan for plan in plans if plan.description.kind != "tensors"}
        self._desk = desk
        self._tell = tell
        self.every = every
        self._loaded = loaded
        self._needed_bytes = needed_bytes
        self._held = held
        self._clock = clock
        self._quiet_s = quiet_s
        self._turns = {name: _Turn() for name in self._plans}
        self._at_work: tuple[str, int] | None = None  # model and request id
        self._deaths = EngineDeaths[str]()
        self._never: dict[str, str] = {}  # and why
        self._background = Background("a profile of operators failed")

    def task_ended(self, model: str) -> None:
        """A request of the model is over."""
        turn = self._turns.get(model)
        if turn is None or not self.every or model in self._never:
            return
        turn.requests += 1
        if turn.requests >= self.every and not turn.under_way and self._clock() >= turn.next_s and self._desk.up:
            turn.under_way = True
            self._background.start(self._profile(model, turn))

    def bytes_(self) -> int:
        """What the twin of the moment takes."""
        return self._needed_bytes(self._at_work[0]) if self._at_work is not None else 0

    def give_way(self) -> None:
        """Memory is short: let go of the twin."""
        if self._at_work is not None:
            self._desk.cancel(self._at_work[1])

    def engine_down(self, loss: EngineLoss) -> None:
        """To be told after the desk. A model whose profiles engines die with is profiled no more."""
        if self._at_work is not None:
            # A profile begins with making a session.
            given_up = self._deaths.died(loss, self._clock(), making=(self._at_work[0],))
            for model in given_up.keys() - self._never.keys():
                fields = {"model": model, "reason": given_up[model]}
                log.warning("operators are not profiled any more", extra={"fields": fields})
            self._never |= given_up
        self._background.cancel()
        self._at_work = None

    async def close(self) -> None:
        self._background.cancel()
        await self._background.settled()

    # --- in the background ---

    async def _profile(self, model: str, turn: _Turn) -> None:
        turn.next_s = self._clock() + RETRY_S
        try:
            await self._desk.settled()
            await self._wait_for_quiet()
            if await self._profiled(model):
                turn.requests = 0
                turn.next_s = self._clock() + PAUSE_S
            else:
                turn.next_s = self._clock() + RETRY_S
        finally:
            turn.under_way = False

    async def _wait_for_quiet(self) -> None:
        while True:
            await self._desk.quiet()
            await asyncio.sleep(self._quiet_s)
            if self._desk.idle():
                return

    async def _profiled(self, model: str) -> bool:
        """Whether this turn is over; not when something else came first."""
        plan = self._plans[model]
        async with self._desk.one:
            if self._held() or not self._loaded(model) or not self._desk.idle():
                return False
            refusal = self._desk.budget().refusal(self._needed_bytes(model))
            if refusal:
                log.debug("operators of %s are not profiled: %s", model, refusal)
                return True
            message = self._message(plan)
            self._at_work = (model, message.request_id)
            try:
                answer = await self._desk.ask(message, message.request_id)
            finally:
                self._at_work = None
                if plan.kv is not None:
                    plan.kv.release_slot(plan.scratch_slot)
        self._deaths.made(model)
        if isinstance(answer, OperatorsProfiled):
            self._tell(model, answer.phases)
            return bool(answer.phases)
        reason = answer.message if isinstance(answer, Failed) else type(answer).__name__
        log.warning("operators could not be profiled", extra={"fields": {"model": model, "reason": reason}})
        return True

    def _message(self, plan: ModelPlan) -> ProfileOperators:
        encoder = plan.description.encoder
        longest = encoder.max_tokens if encoder is not None else max(1, plan.provision.context_length - 1)
        tokens = min(PIECE_TOKENS, longest)
        return ProfileOperators(
            request_id=self._desk.next_id(),
            model=plan.description.name,
            slot=plan.scratch_slot,
            past_tokens=max(0, min(PROBED_PAST_TOKENS, longest - tokens)),
            steps=STEPS,
            tokens=tokens,
        )
