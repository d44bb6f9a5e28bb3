"""The strategy loops of all models: brought what the service sees, and asked how the next request is to run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import StepGroup
from magnitude.feedback.records import TaskRecord
from magnitude.policy.candidates import session_on
from magnitude.policy.dump_changes import Change
from magnitude.policy.dump_exchange import Running
from magnitude.policy.dumps import Dumps
from magnitude.policy.learned import Binding, Choice, Learned
from magnitude.policy.pinned import Means, Pinned, choices_of, possible
from magnitude.policy.rules import ModelFacts, Rules
from magnitude.policy.situation import Part, Situation, TaskKind
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import BoardSeen, Decided, EngineChanged, LoadSeen, MayExperiment, Tick
from magnitude.schedule.background import Background
from magnitude.schedule.model_sessions import ModelSessions
from magnitude.schedule.open_tasks import OpenTask
from magnitude.schedule.operator_profiles import OperatorProfiles
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.planned_strategy import model_facts, planned_strategy
from magnitude.schedule.session_desk import SessionDesk
from magnitude.schedule.strategy_dumps import DumpKeeper
from magnitude.schedule.strategy_loop import Chooser, StrategyLoop
from magnitude.schedule.strategy_report import SessionShown, StrategyState
from magnitude.schedule.strategy_sight import load_seen, runs_seen, task_seen
from magnitude.supervise.loss import EngineLoss

log = logging.getLogger("magnitude.policy")

# The board is told again after so long while anything runs: figures that age must see that time passes.
TOLD_AGAIN_S = 10.0
_IDLE = LoadSeen()

MakeChooser = Callable[[ModelFacts, Learned], Chooser]


class _Served:
    """A model with its loop."""

    def __init__(
        self, plan: ModelPlan, facts: ModelFacts, binding: Binding, loop: StrategyLoop, sessions: ModelSessions
    ) -> None:
        self.plan = plan
        self.facts = facts
        self.binding = binding
        self.loop = loop
        self.sessions = sessions
        self.present = False
        self.load = _IDLE
        self.allowed = True
        self.known = ""
        self.pinned: Pinned | None = None


class Strategies:
    """For one event loop. A model gets its loop when it is loaded for the first time, and keeps it as long as the
    service runs.

    `choose` makes what decides, `binding` says what a model's figures hold for; `loaded` whether a model is in
    memory, `tasks` gives all open tasks, `board` how the board is (None: not seen yet). `slots_chosen` is told of a
    model whose plan has another number of generations at once, `note` keeps decisions. `variants` names what may
    compute in a model's place, the smallest first. `session_memory_bytes` is the most for all further sessions (None:
    what is left).
    """

    def __init__(
        self,
        plans: Sequence[ModelPlan],
        *,
        choose: MakeChooser,
        binding: Callable[[ModelPlan], Binding],
        desk: SessionDesk,
        keeper: DumpKeeper,
        loaded: Callable[[str], bool],
        tasks: Callable[[], Iterable[OpenTask]],
        board: Callable[[], BoardSeen | None],
        slots_chosen: Callable[[str], None] = lambda model: None,
        note: Callable[[str, Decided], None] = lambda model, decided: None,
        variants: Callable[[str], tuple[str, ...]] = lambda model: (),
        rules: Rules,
        session_memory_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Results of plain tensors cannot be compared: nothing is known of their meaning.
        self._plans = {plan.description.name: plan for plan in plans if plan.description.kind != "tensors"}
        self._choose = choose
        self._binding = binding
        self._desk = desk
        self.keeper = keeper
        self._loaded = loaded
        self._tasks = tasks
        self._board = board
        self._slots_chosen = slots_chosen
        self._note = note
        self._variants = variants
        self.rules = rules
        self.session_memory_bytes = session_memory_bytes
        self._clock = clock
        self._served: dict[str, _Served] = {}
        self._beginning: set[str] = set()
        # By variant: the model that it stands in for, and the strategy that has named it.
        self._named_by: dict[str, tuple[str, str]] = {}
        self._seen: BoardSeen | None = None
        self._told_s = float("-inf")
        self._load: dict[str, LoadSeen] = {}
        self._held_until_s = float("-inf")
        self._release: asyncio.TimerHandle | None = None
        self._background = Background("a strategy loop could not begin")
        self.profiles: OperatorProfiles | None = None

    # --- what the engine says ---

    def engine_up(self, link: EngineLink) -> None:
        self._desk.engine_up(link)
        self.models_changed()

    def engine_down(self, loss: EngineLoss) -> None:
        self._desk.engine_down()
        if self.profiles is not None:
            self.profiles.engine_down(loss)
        for served in self._served.values():
            self._gone(served, loss)

    def models_changed(self) -> None:
        """Other models than before may be in memory."""
        for name, plan in self._plans.items():
            there = self._desk.up and self._loaded(name)
            served = self._served.get(name)
            if served is None:
                if there and name not in self._beginning:
                    self._beginning.add(name)
                    self._background.start(self._begin(plan))
            elif there and not served.present:
                self._come(served)
            elif served.present and not there:
                self._gone(served, None)

    def runs(self, groups: Iterable[StepGroup]) -> None:
        own = {name: (served.facts.own, served.loop.strategy.prefill_chunk) for name, served in self._served.items()}
        for model, seen in runs_seen(groups, own):
            self._served[model].loop.tell(seen)

    # --- what the service sees ---

    def task_ended(self, task: TaskRecord) -> None:
        """A variant's counts for the model that it stood in for as well: that one's loop has named it."""
        if self.profiles is not None:
            self.profiles.task_ended(task.model)
        served = self._served.get(task.model)
        if served is not None:
            seen = task_seen(task, task.strategy or served.loop.strategy.strategy_id)
            if seen is not None:
                served.loop.tell(seen)
        if (named := self._named_by.get(task.model)) is not None:
            parent, strategy_id = named
            seen = task_seen(task, strategy_id)
            if seen is not None:
                self._served[parent].loop.tell(seen)

    def board_looked(self) -> None:
        """The board was looked at."""
        self.models_changed()
        seen, now_s = self._board(), self._clock()
        again = bool(self._load) and now_s - self._told_s >= TOLD_AGAIN_S
        if seen is not None and (seen != self._seen or again):
            self._seen, self._told_s = seen, now_s
            for served in self._served.values():
                served.loop.tell(seen)
        self.keeper.look()

    def load_changed(self) -> None:
        """A task may have come, begun, written its first token, or ended."""
        load = load_seen(self._tasks())
        if load == self._load:
            return
        self._load = load
        self._desk.load_changed()
        for name, served in self._served.items():
            self._tell_load(served, load.get(name, _IDLE))

    def memory_short(self) -> None:
        """Give back all further sessions."""
        if (seen := self._board()) is not None and seen != self._seen:
            self.board_looked()
        for served in self._served.values():
            served.sessions.drop_all("memory is short")
        if self.profiles is not None:
            self.profiles.give_way()

    # --- for those who run requests ---

    def strategy_for(self, plan: ModelPlan, tokens: int, cached_tokens: int) -> Strategy | None:
        """How a generation with so many tokens to be computed is to run; None: as planned."""
        served = self._served.get(plan.description.name)
        if served is None:
            return None
        return served.loop.strategy_for(self._situation(served, tokens, cached_tokens, rows=1))

    def variant_for(self, model: str, task: TaskKind) -> str:
        """The variant of the model that should compute tasks of that kind; "": the model itself."""
        served = self._served.get(model)
        if served is None:
            return ""
        at = msgspec.structs.replace(self._situation(served, 1, 0, rows=1), task=task)
        strategy = served.loop.strategy_for(at)
        variant = strategy.variant
        if variant:
            self._named_by[variant] = (model, strategy.strategy_id)
        # The model itself stays in memory: a second one is no relief for that.
        return "" if at.memory == "short" and not self._loaded(variant) else variant

    def relieves(self, model: str) -> bool:
        """Whether heat, supply or memory ask for less than what conversations with the model take."""
        seen = self._seen
        return seen is not None and (seen.smaller or seen.supply != "full" or seen.memory == "short")

    def situation(self, model: str) -> Situation | None:
        """In which the strategy of the moment is in force; None: nobody chooses."""
        served = self._served.get(model)
        return self._situation(served, 1, 0, rows=0) if served is not None else None

    def strategy_of(self, model: str) -> Strategy | None:
        """In force for a model; None: as planned."""
        served = self._served.get(model)
        return served.loop.strategy if served is not None else None

    # --- for people and field tests (`schedule.strategy_control.StrategyControl`) ---

    @property
    def dumps(self) -> Dumps:
        """The files that the loops learn into. Its methods block."""
        return self.keeper.store

    def learned(self) -> dict[str, Learned]:
        """By model what is known now, saved or not."""
        return self.keeper.learned_now()

    def running(self, model: str) -> Running | None:
        """What a model does now; None while it has no loop."""
        served = self._served.get(model)
        if served is None:
            return None
        loop, counts = served.loop, served.loop.counts()
        delays = sum(counts.delays.values())
        return Running(
            strategy=loop.strategy,
            strategy_id=loop.strategy.strategy_id,
            in_words=loop.strategy.in_words,
            since_s=loop.since_s,
            on=self.rules.on and not loop.fault,
            fault=loop.fault,
            switches=sum(sum(counts.decisions.get(kind, {}).values()) for kind in ("switch", "revert", "situation")),
            delay_s=sum(counts.delay_s.values()) / delays if delays else None,
            cpu_s=counts.cpu_s,
        )

    def means(self, model: str) -> Means | None:
        """What there is to run a model by; None while it has no loop, or the board was not seen."""
        served = self._served.get(model)
        if served is None or self._seen is None:
            return None
        facts, board = served.facts, self._seen
        decodes = facts.kind == "decoder"
        return Means(
            cpus=board.cores, usable=board.usable, graphs=facts.graphs, variants=facts.variants, decodes=decodes
        )

    def hold(self, hold_s: float) -> None:
        """Let every model run as it was loaded, and measure and try nothing, for `hold_s`; 0: go on now."""
        if self._release is not None:
            self._release.cancel()
            self._release = None
        self._held_until_s = self._clock() + hold_s
        if hold_s > 0:
            self._release = asyncio.get_running_loop().call_later(hold_s, self.hold, 0.0)
        for served in self._served.values():
            self._hold(served)
        self._share_experiments()

    def held_s(self) -> float:
        """For how much longer; 0 while nobody holds."""
        return max(0.0, self._held_until_s - self._clock()) if self._release is not None else 0.0

    async def reread(self, model: str, change: Change) -> None:
        """The model's dump or pin was changed so: go by it from the next run on."""
        served = self._served.get(model)
        if served is None:
            return
        if change in ("imported", "reset"):
            before = len(self.keeper.learned_now()[model].entries)
            learned, served.known = await self.keeper.learned(served.binding)
            served.loop.chooser.reload(self.rules, learned)
            counts = f"{before} situations", f"{len(learned.entries)} situations"
            served.loop.say(Decided(change, "", "", *counts, f"{change} by a person"))
        pinned = await self.keeper.pinned(served.binding)
        self._pin(served, pinned)
        served.loop.tell(Tick())

    def tune(
        self, rules: Rules, *, save_every_s: float, session_memory_bytes: int | None, profile_every: int = 0
    ) -> None:
        """Other bounds, from the next decision on; what was learned stays."""
        if self.profiles is not None:
            self.profiles.every = profile_every
        self.keeper.every_s = save_every_s
        self.session_memory_bytes = session_memory_bytes
        if rules == self.rules:
            return
        self.rules = rules
        known = self.keeper.learned_now()
        for name, served in self._served.items():
            served.loop.chooser.reload(rules, known[name])
            served.loop.tell(Tick())

    # --- for those who look on ---

    def session_bytes(self) -> int:
        """What all further sessions take."""
        twin_bytes = self.profiles.bytes_() if self.profiles is not None else 0
        return twin_bytes + sum(served.sessions.bytes_() for served in self._served.values())

    def needed_bytes(self, model: str) -> int:
        """What one more session of the model is expected to take."""
        served = self._served.get(model)
        return served.sessions.needed_bytes if served is not None else self._plans[model].description.weight_bytes

    def state(self) -> dict[str, StrategyState]:
        return {name: _state(served) for name, served in self._served.items()}

    async def close(self) -> None:
        """Once the engine is gone: save what was learned."""
        if self._release is not None:
            self._release.cancel()
        for served in self._served.values():
            served.loop.close()
            await served.sessions.close()
        if self.profiles is not None:
            await self.profiles.close()
        self._background.cancel()
        await self._background.settled()
        await self.keeper.close()

    # --- inside ---

    def _situation(self, served: _Served, tokens: int, cached_tokens: int, *, rows: int) -> Situation:
        """With so many `rows` more than there are."""
        board, load, decoder = self._seen or BoardSeen((), 1), served.load, served.plan.kv is not None
        prefix = cached_tokens / max(1, tokens + cached_tokens)
        return Situation(
            task="generate" if decoder else "embed",
            tokens=max(1, tokens),
            rows=max(1, load.decoding + load.entering + rows),
            queue=load.waiting,
            cores=board.usable,
            heat=board.heat,
            clock_share=board.clock_share,
            memory=board.memory,
            supply=board.supply,
            prefix="none" if not cached_tokens else "most" if prefix > 0.5 else "part",
        )

    async def _begin(self, plan: ModelPlan) -> None:
        name = plan.description.name
        try:
            binding, facts = self._binding(plan), model_facts(plan, self._variants(name))
            learned, known = await self.keeper.learned(binding)
            pinned = await self.keeper.pinned(binding)
            chooser = self._choose(facts, learned)
        except Exception:
            log.exception("%s runs as configured: its strategy loop could not begin", name)
            return
        loop = StrategyLoop(
            name,
            chooser,
            in_force=lambda strategy: self._put_in_force(name, strategy),
            note=self._note,
            experimenting=self._share_experiments,
            clock=self._clock,
        )
        sessions = ModelSessions(
            self._desk, plan, facts.own, loop.tell, busy=lambda: name in self._load, timing=loop.timing
        )
        loop.hands = sessions
        served = self._served[name] = _Served(plan, facts, binding, loop, sessions)
        served.known = known
        self.keeper.keep(binding, chooser)
        self._seen = self._seen or self._board()
        self._pin(served, pinned)
        if self._seen is not None:
            loop.tell(self._seen)
        self._hold(served)
        self._share_experiments()
        self.models_changed()

    def _put_in_force(self, model: str, strategy: Strategy) -> None:
        """The number of generations at once is the plan's own, which loading may measure anew, until it is chosen."""
        served = self._served[model]
        plan = served.plan
        if plan.kv is None:
            return
        # A loop that has not chosen goes on with what was planned when it began.
        as_planned = strategy.max_batch in (served.facts.max_batch, plan.measured_slots)
        chosen = None if as_planned else strategy.max_batch
        if chosen != plan.chosen_slots:
            plan.chosen_slots = chosen
            self._slots_chosen(model)

    def _pin(self, served: _Served, pinned: Pinned | None) -> None:
        before, served.pinned = served.pinned, pinned
        if pinned is None:
            served.loop.chooser.pin({})
            if before is not None:
                served.loop.say(Decided("unpinned", "", "", before.in_words, "", "left to the loop by a person"))
            return
        facts, board = served.facts, self._seen or BoardSeen((), 1)
        means = self.means(facts.name)
        kept, lost = possible(pinned, means) if means is not None else (pinned, ())
        for reason in lost:
            fields = {"model": facts.name, "reason": reason}
            log.warning("what was pinned cannot be kept", extra={"fields": fields})
        choices: dict[Part, Choice] = choices_of(
            kept, own=facts.own, chunk=facts.chunk, on=lambda threads: session_on(board, threads, facts.own)
        )
        served.loop.chooser.pin(choices)
        if choices and pinned != before:
            served.loop.say(Decided("pinned", "", "", "", kept.in_words, "fixed by a person"))

    def _hold(self, served: _Served) -> None:
        served.loop.hold(planned_strategy(served.plan) if self.held_s() else None)

    def _come(self, served: _Served) -> None:
        served.present = True
        served.loop.tell(EngineChanged(up=True))
        served.load = _IDLE  # as the loop takes it
        self._tell_load(served, self._load.get(served.facts.name, _IDLE))

    def _gone(self, served: _Served, loss: EngineLoss | None) -> None:
        served.sessions.engine_down(loss)
        served.loop.engine_gone()
        if served.present:
            served.present = False
            served.loop.tell(EngineChanged(up=False))
        self._share_experiments()

    def _tell_load(self, served: _Served, load: LoadSeen) -> None:
        if load != served.load:
            served.load = load
            served.loop.tell(load)

    def _share_experiments(self) -> None:
        """While one model experiments, no other one begins to: they would measure each other."""
        busy = [served for served in self._served.values() if served.loop.experiments]
        for served in list(self._served.values()):
            allowed = not self.held_s() and (not busy or served is busy[0])
            if allowed != served.allowed:
                served.allowed = allowed
                served.loop.tell(MayExperiment(allowed))


def _state(served: _Served) -> StrategyState:
    loop = served.loop
    strategy, view = loop.strategy, loop.view
    return StrategyState(
        on=not loop.fault,
        strategy=strategy,
        strategy_id=strategy.strategy_id,
        in_words=strategy.in_words,
        since_s=round(loop.since_s, 1),
        known=served.known,
        fault=loop.fault,
        sessions=[
            SessionShown(
                session=held.session.session_id,
                size_bytes=held.bytes_,
                state=view.sessions.get(held.session.session_id, held.state),
            )
            for held in served.sessions.held
        ],
        experiment=view.experiment,
        situations=view.situations,
        tried_s=round(view.lost_s, 3),
        computed_s=round(view.busy_s, 1),
        decisions=loop.last(),
        counts=loop.counts(),
    )
