"""One model with its strategy loop and its further sessions: what is told to it, pinned of it, and shown of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from magnitude.policy.candidates import session_on
from magnitude.policy.dump_exchange import Running
from magnitude.policy.learned import Binding, Choice
from magnitude.policy.pinned import Means, Pinned, choices_of, possible
from magnitude.policy.rules import ModelFacts
from magnitude.policy.situation import Part, Situation
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import BoardSeen, Decided, EngineChanged, LoadSeen, MayExperiment
from magnitude.schedule.model_sessions import ModelSessions
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.planned_strategy import planned_strategy
from magnitude.schedule.session_desk import SessionDesk
from magnitude.schedule.strategy_loop import Chooser, StrategyLoop
from magnitude.schedule.strategy_report import SessionShown, StrategyState
from magnitude.supervise.loss import EngineLoss

log = logging.getLogger("magnitude.policy")

IDLE = LoadSeen()
_UNSEEN = BoardSeen((), 1)


class ModelStrategy:
    """`facts` are told to the loop, `binding` says what its figures hold for, `known` with what it began, in words.
    `busy`: whether requests for the model are open. `slots_chosen` is told when the plan has another number of
    generations at once, `experimenting` when an experiment has begun or ended; `note` keeps decisions."""

    def __init__(
        self,
        plan: ModelPlan,
        facts: ModelFacts,
        binding: Binding,
        chooser: Chooser,
        desk: SessionDesk,
        *,
        known: str,
        busy: Callable[[], bool],
        slots_chosen: Callable[[str], None],
        note: Callable[[str, Decided], None],
        experimenting: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.plan = plan
        self.facts = facts
        self.binding = binding
        self.known = known
        self.present = False
        self._pinned: Pinned | None = None
        self._load = IDLE
        self._allowed = True
        self._slots_chosen = slots_chosen
        self.loop = StrategyLoop(
            facts.name, chooser, in_force=self._put_in_force, note=note, experimenting=experimenting, clock=clock
        )
        self.sessions = ModelSessions(desk, plan, facts.own, self.loop.tell, busy=busy, timing=self.loop.timing)
        self.loop.hands = self.sessions

    # --- what is told to it ---

    def come(self, load: LoadSeen) -> None:
        """The model is in memory, with so much open for it."""
        self.present = True
        self.loop.tell(EngineChanged(up=True))
        self._load = IDLE  # as the loop takes it
        self.tell_load(load)

    def gone(self, loss: EngineLoss | None) -> None:
        """It is not in memory any more, with its engine or (None) alone."""
        self.sessions.engine_down(loss)
        self.loop.engine_gone()
        if self.present:
            self.present = False
            self.loop.tell(EngineChanged(up=False))

    def tell_load(self, load: LoadSeen) -> None:
        if load != self._load:
            self._load = load
            self.loop.tell(load)

    def allow(self, experiments: bool) -> None:
        """Whether it may experiment now."""
        if experiments != self._allowed:
            self._allowed = experiments
            self.loop.tell(MayExperiment(experiments))

    def hold(self, held: bool) -> None:
        """Run as it was loaded while it is `held`."""
        self.loop.hold(planned_strategy(self.plan) if held else None)

    def pin(self, pinned: Pinned | None, board: BoardSeen | None) -> None:
        """What a person has fixed, as far as this board has it."""
        before, self._pinned = self._pinned, pinned
        if pinned is None:
            self.loop.chooser.pin({})
            if before is not None:
                self.loop.say(Decided("unpinned", "", "", before.in_words, "", "left to the loop by a person"))
            return
        facts, seen = self.facts, board or _UNSEEN
        kept, lost = possible(pinned, self.means(board)) if board is not None else (pinned, ())
        for reason in lost:
            fields = {"model": facts.name, "reason": reason}
            log.warning("what was pinned cannot be kept", extra={"fields": fields})
        choices: dict[Part, Choice] = choices_of(
            kept, own=facts.own, chunk=facts.chunk, on=lambda threads: session_on(seen, threads, facts.own)
        )
        self.loop.chooser.pin(choices)
        if choices and pinned != before:
            self.loop.say(Decided("pinned", "", "", "", kept.in_words, "fixed by a person"))

    async def close(self) -> None:
        self.loop.close()
        await self.sessions.close()

    # --- what is asked of it ---

    def situation(self, board: BoardSeen | None, tokens: int, cached_tokens: int, *, rows: int) -> Situation:
        """With so many `rows` more than there are."""
        seen, load, decoder = board or _UNSEEN, self._load, self.plan.kv is not None
        prefix = cached_tokens / max(1, tokens + cached_tokens)
        return Situation(
            task="generate" if decoder else "embed",
            tokens=max(1, tokens),
            rows=max(1, load.decoding + load.entering + rows),
            queue=load.waiting,
            cores=seen.usable,
            heat=seen.heat,
            clock_share=seen.clock_share,
            memory=seen.memory,
            supply=seen.supply,
            prefix="none" if not cached_tokens else "most" if prefix > 0.5 else "part",
        )

    def means(self, board: BoardSeen) -> Means:
        """What there is to run it by."""
        facts = self.facts
        decodes = facts.kind == "decoder"
        return Means(
            cpus=board.cores, usable=board.usable, graphs=facts.graphs, variants=facts.variants, decodes=decodes
        )

    def running(self, *, on: bool) -> Running:
        """What it does now; `on`: whether loops choose."""
        loop, counts = self.loop, self.loop.counts()
        delays = sum(counts.delays.values())
        return Running(
            strategy=loop.strategy,
            strategy_id=loop.strategy.strategy_id,
            in_words=loop.strategy.in_words,
            since_s=loop.since_s,
            on=on and not loop.fault,
            fault=loop.fault,
            switches=sum(sum(counts.decisions.get(kind, {}).values()) for kind in ("switch", "revert", "situation")),
            delay_s=sum(counts.delay_s.values()) / delays if delays else None,
            cpu_s=counts.cpu_s,
        )

    def state(self) -> StrategyState:
        loop = self.loop
        strategy, view = loop.strategy, loop.view
        return StrategyState(
            on=not loop.fault,
            strategy=strategy,
            strategy_id=strategy.strategy_id,
            in_words=strategy.in_words,
            since_s=round(loop.since_s, 1),
            known=self.known,
            fault=loop.fault,
            sessions=[
                SessionShown(
                    session=held.session.session_id,
                    size_bytes=held.bytes_,
                    state=view.sessions.get(held.session.session_id, held.state),
                )
                for held in self.sessions.held
            ],
            experiment=view.experiment,
            situations=view.situations,
            tried_s=round(view.lost_s, 3),
            computed_s=round(view.busy_s, 1),
            decisions=loop.last(),
            counts=loop.counts(),
        )

    # --- inside ---

    def _put_in_force(self, strategy: Strategy) -> None:
        """The number of generations at once is the plan's own, which loading may measure anew, until it is chosen."""
        plan = self.plan
        if plan.kv is None:
            return
        # A loop that has not chosen goes on with what was planned when it began.
        as_planned = strategy.max_batch in (self.facts.max_batch, plan.measured_slots)
        chosen = None if as_planned else strategy.max_batch
        if chosen != plan.chosen_slots:
            plan.chosen_slots = chosen
            self._slots_chosen(self.facts.name)
