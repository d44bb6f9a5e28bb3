"""The strategy loops of all models: brought what the service sees, and asked how the next request is to run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import StepGroup
from magnitude.engine.session_spec import SessionSpec
from magnitude.feedback.records import TaskRecord
from magnitude.policy.learned import Binding, Learned
from magnitude.policy.situation import Situation
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import BoardSeen, Decided, EngineChanged, LoadSeen, MayExperiment
from magnitude.schedule.background import Background
from magnitude.schedule.model_sessions import ModelSessions
from magnitude.schedule.open_tasks import OpenTask
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.session_desk import SessionDesk
from magnitude.schedule.strategy_dumps import DumpKeeper
from magnitude.schedule.strategy_loop import Chooser, StrategyLoop
from magnitude.schedule.strategy_report import ExperimentShown, SessionShown, StrategyState
from magnitude.schedule.strategy_sight import load_seen, runs_seen, task_seen
from magnitude.supervise.loss import EngineLoss

log = logging.getLogger("magnitude.policy")

# The board is told again after so long while anything runs: figures that age must see that time passes.
TOLD_AGAIN_S = 10.0
_IDLE = LoadSeen()

MakeChooser = Callable[[ModelPlan, Learned], Chooser]


class _Served:
    """A model with its loop."""

    def __init__(self, plan: ModelPlan, loop: StrategyLoop, sessions: ModelSessions, own: SessionSpec) -> None:
        self.plan = plan
        self.loop = loop
        self.sessions = sessions
        self.own = own
        self.present = False
        self.load = _IDLE
        self.allowed = True
        self.known = ""


class Strategies:
    """For one event loop. A model gets its loop when it is loaded for the first time, and keeps it as long as the
    service runs.

    `choose` makes what decides, `binding` says what a model's figures hold for; `loaded` whether a model is in
    memory, `tasks` gives all open tasks, `board` how the board is (None: not seen yet). `in_force` is told a model's
    strategy whenever another one is, `note` keeps decisions.
    """

    def __init__(
        self,
        plans: Sequence[ModelPlan],
        *,
        choose: MakeChooser,
        binding: Callable[[ModelPlan], Binding],
        desk: SessionDesk,
        dumps: DumpKeeper,
        loaded: Callable[[str], bool],
        tasks: Callable[[], Iterable[OpenTask]],
        board: Callable[[], BoardSeen | None],
        in_force: Callable[[ModelPlan, Strategy], None] = lambda plan, strategy: None,
        note: Callable[[str, Decided], None] = lambda model, decided: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Results of plain tensors cannot be compared: nothing is known of their meaning.
        self._plans = {plan.description.name: plan for plan in plans if plan.description.kind != "tensors"}
        self._choose = choose
        self._binding = binding
        self._desk = desk
        self.dumps = dumps
        self._loaded = loaded
        self._tasks = tasks
        self._board = board
        self._in_force = in_force
        self._note = note
        self._clock = clock
        self._served: dict[str, _Served] = {}
        self._beginning: set[str] = set()
        self._seen: BoardSeen | None = None
        self._told_s = float("-inf")
        self._load: dict[str, LoadSeen] = {}
        self._background = Background("a strategy loop could not begin")

    # --- what the engine says ---

    def engine_up(self, link: EngineLink) -> None:
        self._desk.engine_up(link)
        self.models_changed()

    def engine_down(self, loss: EngineLoss) -> None:
        self._desk.engine_down()
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
        own = {name: (served.own, served.loop.strategy.prefill_chunk) for name, served in self._served.items()}
        for model, seen in runs_seen(groups, own):
            self._served[model].loop.tell(seen)

    # --- what the service sees ---

    def task_ended(self, task: TaskRecord, strategy_id: str = "") -> None:
        """`strategy_id` of the strategy that ran it; "": it was never run."""
        served = self._served.get(task.model)
        if served is None:
            return
        seen = task_seen(task, strategy_id or served.loop.strategy.strategy_id)
        if seen is not None:
            served.loop.tell(seen)

    def board_looked(self) -> None:
        """The board was looked at."""
        self.models_changed()
        seen, now_s = self._board(), self._clock()
        again = bool(self._load) and now_s - self._told_s >= TOLD_AGAIN_S
        if seen is not None and (seen != self._seen or again):
            self._seen, self._told_s = seen, now_s
            for served in self._served.values():
                served.loop.tell(seen)
        self.dumps.look()

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

    # --- for those who run requests ---

    def strategy_for(self, plan: ModelPlan, tokens: int, cached_tokens: int) -> Strategy | None:
        """How a generation with so many tokens to be computed is to run; None: as planned."""
        served = self._served.get(plan.description.name)
        if served is None:
            return None
        board = self._seen or BoardSeen((), 1)
        prefix = cached_tokens / max(1, tokens + cached_tokens)
        return served.loop.strategy_for(
            Situation(
                task="generate",
                tokens=max(1, tokens),
                rows=served.load.decoding + served.load.entering + 1,
                queue=served.load.waiting,
                cores=board.usable,
                heat=board.heat,
                clock_share=board.clock_share,
                memory=board.memory,
                supply=board.supply,
                prefix="none" if not cached_tokens else "most" if prefix > 0.5 else "part",
            )
        )

    def strategy_of(self, model: str) -> Strategy | None:
        """In force for a model; None: as planned."""
        served = self._served.get(model)
        return served.loop.strategy if served is not None else None

    # --- for those who look on ---

    def session_bytes(self) -> int:
        """What all further sessions take."""
        return sum(served.sessions.bytes_() for served in self._served.values())

    def state(self) -> dict[str, StrategyState]:
        return {name: _state(served) for name, served in self._served.items()}

    async def close(self) -> None:
        """Once the engine is gone: save what was learned."""
        for served in self._served.values():
            served.loop.close()
            await served.sessions.close()
        self._background.cancel()
        await self._background.settled()
        await self.dumps.close()

    # --- inside ---

    async def _begin(self, plan: ModelPlan) -> None:
        name = plan.description.name
        try:
            learned, known = await self.dumps.learned(self._binding(plan))
            chooser = self._choose(plan, learned)
        except Exception:
            log.exception("%s runs as configured: its strategy loop could not begin", name)
            return
        own = own_session(plan)
        loop = StrategyLoop(
            name,
            chooser,
            in_force=lambda strategy: self._in_force(plan, strategy),
            note=self._note,
            experimenting=self._share_experiments,
            clock=self._clock,
        )
        sessions = ModelSessions(self._desk, plan, own, loop.tell, busy=lambda: name in self._load)
        loop.hands = sessions
        served = self._served[name] = _Served(plan, loop, sessions, own)
        served.known = known
        self.dumps.keep(name, chooser)
        self._seen = self._seen or self._board()
        if self._seen is not None:
            loop.tell(self._seen)
        self._tell_load(served, self._load.get(name, _IDLE))
        self._share_experiments()
        self.models_changed()

    def _come(self, served: _Served) -> None:
        served.present = True
        served.loop.tell(EngineChanged(up=True))

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
            allowed = not busy or served is busy[0]
            if allowed != served.allowed:
                served.allowed = allowed
                served.loop.tell(MayExperiment(allowed))


def own_session(plan: ModelPlan) -> SessionSpec:
    """The session that comes with the model itself."""
    return SessionSpec(threads=plan.provision.threads)


def _state(served: _Served) -> StrategyState:
    loop = served.loop
    strategy = loop.strategy
    experiments: list[ExperimentShown] = []
    if (probe := loop.probing) is not None:
        what = " against ".join(choice.choice_id for choice in probe.choices)
        experiments.append(ExperimentShown(kind="probe", part=probe.part, what=f"{what}, at {probe.key}"))
    if (trial := loop.trial) is not None:
        what = f"{trial.session.session_id} in one of {trial.every} runs"
        experiments.append(ExperimentShown(kind="trial", part=trial.part, what=what))
    return StrategyState(
        on=not loop.fault,
        strategy=strategy,
        strategy_id=strategy.strategy_id,
        in_words=strategy.in_words,
        since_s=round(loop.since_s, 1),
        known=served.known,
        fault=loop.fault,
        sessions=[
            SessionShown(session=held.session.session_id, size_bytes=held.bytes_, state=held.state)
            for held in served.sessions.held
        ],
        experiments=experiments,
        decisions=loop.last(),
        counts=loop.counts(),
    )
