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
from magnitude.policy.dump_changes import Change
from magnitude.policy.dump_exchange import Running
from magnitude.policy.dumps import Dumps
from magnitude.policy.learned import Binding, Learned
from magnitude.policy.pinned import Means
from magnitude.policy.rules import ModelFacts, Rules
from magnitude.policy.situation import Situation, TaskKind
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import BoardSeen, Decided, LoadSeen, Tick
from magnitude.schedule.background import Background
from magnitude.schedule.model_strategy import IDLE, ModelStrategy
from magnitude.schedule.open_tasks import OpenTask
from magnitude.schedule.operator_profiles import OperatorProfiles
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.planned_strategy import model_facts
from magnitude.schedule.session_desk import SessionDesk
from magnitude.schedule.strategy_dumps import DumpKeeper
from magnitude.schedule.strategy_loop import Chooser
from magnitude.schedule.strategy_report import StrategyState
from magnitude.schedule.strategy_sight import load_seen, runs_seen, task_seen
from magnitude.supervise.loss import EngineLoss

log = logging.getLogger("magnitude.policy")

# The board is told again after so long while anything runs: figures that age must see that time passes.
TOLD_AGAIN_S = 10.0

MakeChooser = Callable[[ModelFacts, Learned], Chooser]


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
        self._served: dict[str, ModelStrategy] = {}
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
                served.come(self._load.get(name, IDLE))
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
            served.tell_load(load.get(name, IDLE))

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
        return served.loop.strategy_for(served.situation(self._seen, tokens, cached_tokens, rows=1))

    def variant_for(self, model: str, task: TaskKind) -> str:
        """The variant of the model that should compute tasks of that kind; "": the model itself."""
        served = self._served.get(model)
        if served is None:
            return ""
        at = msgspec.structs.replace(served.situation(self._seen, 1, 0, rows=1), task=task)
        strategy = served.loop.strategy_for(at)
        variant = strategy.variant
        if variant:
            self._named_by[variant] = (model, strategy.strategy_id)
        # The model itself stays in memory: a second one is no relief for that.
        return "" if at.memory == "short" and not self._loaded(variant) else variant

    def relieves(self) -> bool:
        """Whether heat, supply or memory ask for less than what conversations with a model take."""
        seen = self._seen
        return seen is not None and (seen.smaller or seen.supply != "full" or seen.memory == "short")

    def situation(self, model: str) -> Situation | None:
        """In which the strategy of the moment is in force; None: nobody chooses."""
        served = self._served.get(model)
        return served.situation(self._seen, 1, 0, rows=0) if served is not None else None

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
        return served.running(on=self.rules.on) if served is not None else None

    def means(self, model: str) -> Means | None:
        """What there is to run a model by; None while it has no loop, or the board was not seen."""
        served = self._served.get(model)
        return served.means(self._seen) if served is not None and self._seen is not None else None

    def hold(self, hold_s: float) -> None:
        """Let every model run as it was loaded, and measure and try nothing, for `hold_s`; 0: go on now."""
        if self._release is not None:
            self._release.cancel()
            self._release = None
        self._held_until_s = self._clock() + hold_s
        if hold_s > 0:
            self._release = asyncio.get_running_loop().call_later(hold_s, self.hold, 0.0)
        for served in self._served.values():
            served.hold(hold_s > 0)
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
        served.pin(await self.keeper.pinned(served.binding), self._seen)
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
        return {name: served.state() for name, served in self._served.items()}

    async def close(self) -> None:
        """Once the engine is gone: save what was learned."""
        if self._release is not None:
            self._release.cancel()
        for served in self._served.values():
            await served.close()
        if self.profiles is not None:
            await self.profiles.close()
        self._background.cancel()
        await self._background.settled()
        await self.keeper.close()

    # --- inside ---

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
        served = self._served[name] = ModelStrategy(
            plan,
            facts,
            binding,
            chooser,
            self._desk,
            known=known,
            busy=lambda: name in self._load,
            slots_chosen=self._slots_chosen,
            note=self._note,
            experimenting=self._share_experiments,
            clock=self._clock,
        )
        self.keeper.keep(binding, chooser)
        self._seen = self._seen or self._board()
        served.pin(pinned, self._seen)
        if self._seen is not None:
            served.loop.tell(self._seen)
        served.hold(self.held_s() > 0)
        self._share_experiments()
        self.models_changed()

    def _gone(self, served: ModelStrategy, loss: EngineLoss | None) -> None:
        served.gone(loss)
        self._share_experiments()

    def _share_experiments(self) -> None:
        """While one model experiments, no other one begins to: they would measure each other."""
        busy = [served for served in self._served.values() if served.loop.experiments]
        for served in list(self._served.values()):
            served.allow(not self.held_s() and (not busy or served is busy[0]))
