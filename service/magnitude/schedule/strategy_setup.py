"""Puts the strategy loops together with those who see and act for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from magnitude.board.machine_id import read_machine_id
from magnitude.board.profile import BoardProfile
from magnitude.config import Settings
from magnitude.engine.protocol import Hello
from magnitude.feedback.operators import OperatorSeries
from magnitude.policy.drift import relevant
from magnitude.policy.dumps import Dumps
from magnitude.policy.field_test import FieldTest, part_in
from magnitude.policy.learned import Binding, Learned
from magnitude.policy.optimizer import Optimizer
from magnitude.policy.rules import ModelFacts, Rules
from magnitude.policy.terms import BoardSeen, Decided
from magnitude.policy.tree import BoardFacts, Tree
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.loading import ModelLoader
from magnitude.schedule.memory_relief import MemoryRelief
from magnitude.schedule.model_switch import ModelSwitch
from magnitude.schedule.operator_profiles import OperatorProfiles
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.session_budget import SessionBudget
from magnitude.schedule.session_desk import SessionDesk
from magnitude.schedule.strategies import Strategies
from magnitude.schedule.strategy_dumps import DumpKeeper
from magnitude.supervise.memory_watch import MemoryWatch

log = logging.getLogger("magnitude.policy")

# Time in which nothing is tried after the start, by board: a desktop has its clocks and caches within seconds, a
# board without a cooler needs minutes to get warm. All others: `_COLD_START_S`.
_COLD_START_BY_BOARD_S: Mapping[str, float] = {"generic-x86": 30.0, "pi5-bare": 120.0}
_COLD_START_S = 60.0
# Two sides of the same size tell most of a fleet of a given size.
_HALF = 0.5


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the service that the loops see and act by. `hello` is what the engine said of itself, `ceilings` what
    is known of the board beforehand, `operators` gets what is profiled."""

    dispatcher: Dispatcher
    loader: ModelLoader
    switch: ModelSwitch
    relief: MemoryRelief
    memory: Callable[[], MemoryWatch]
    board: Callable[[], BoardSeen | None]
    hello: Callable[[], Hello | None]
    note: Callable[[str, Decided], None]
    rules: Rules
    board_name: str
    operators: OperatorSeries
    ceilings: BoardFacts | None = None


def rules_of(settings: Settings, board: str) -> Rules:
    """The configured bounds, on a board of that name."""
    policy = settings.policy
    cold_start_s = policy.cold_start_s
    if cold_start_s is None:
        cold_start_s = _COLD_START_BY_BOARD_S.get(board, _COLD_START_S)
    return Rules(
        on=settings.engine.self_optimize,
        window=settings.engine.optimization_window,
        cold_start_s=cold_start_s,
        dwell_s=policy.dwell_s,
        least_gain=policy.least_gain,
        half_life_s=policy.half_life_s,
        explore=policy.explore,
        loss_budget=policy.loss_budget,
        bandwidth_threshold=policy.bandwidth_threshold,
        latency_limit_s=policy.latency_limit_ms / 1000 if policy.latency_limit_ms is not None else None,
        prefer=policy.prefer,
    )


def field_test_of(settings: Settings) -> FieldTest:
    """This device's part in the configured field test."""
    test = settings.policy.field_test
    share = _HALF if test.share is None else test.share
    part = part_in(test.name, share, read_machine_id() if test.name else None)
    if part.reason:
        log.warning("no part in the field test", extra={"fields": {"test": part.name, "reason": part.reason}})
    return part


def board_name_of(profile: BoardProfile, *, simulated: bool) -> str:
    """What figures are bound to. Those of a simulated board are nobody else's."""
    return f"simulated-{profile.name}" if simulated else profile.name


def build_strategies(settings: Settings, state_folder: Path, around: Surroundings) -> Strategies:
    """The loops of all models, connected with all that they need but the board's looks and the engine's ups and
    downs, which the service tells."""
    dispatcher, relief = around.dispatcher, around.relief
    dumps = Dumps(state_folder)
    tree = _trained_tree(dumps)

    def budget() -> SessionBudget:
        memory = around.memory()
        return SessionBudget(
            room_bytes=memory.sight.room_bytes,
            step=memory.step,
            account_bytes=relief.account_bytes,
            models_bytes=relief.models_bytes(),
            sessions_bytes=strategies.session_bytes(),
            limit_bytes=strategies.session_memory_bytes,
        )

    def binding(plan: ModelPlan) -> Binding:
        hello = around.hello()
        return Binding(
            board=around.board_name,
            model=plan.description.name,
            model_hash=plan.description.model_hash,
            ort_version=hello.ort_version if hello is not None else "",
            cpu_features=tuple(sorted(relevant(hello.cpu_features))) if hello is not None else (),
        )

    def choose(facts: ModelFacts, learned: Learned) -> Optimizer:
        return Optimizer(facts, strategies.rules, learned, tree=tree, ceilings=around.ceilings)

    def loaded(model: str) -> bool:
        return around.switch.state(model) == "loaded"

    desk = SessionDesk(
        ask=around.loader.ask,
        next_id=dispatcher.next_id,
        idle=lambda: not dispatcher.running and not dispatcher.waiting,
        budget=budget,
    )
    strategies = Strategies(
        dispatcher.plans(),
        choose=choose,
        binding=binding,
        desk=desk,
        keeper=DumpKeeper(dumps, every_s=settings.policy.save_every_s),
        loaded=loaded,
        tasks=dispatcher.open_tasks,
        board=around.board,
        rules=around.rules,
        session_memory_bytes=settings.policy.session_memory_bytes,
        slots_chosen=partial(_slots_chosen, dispatcher),
        note=around.note,
        variants=dispatcher.models_served.smaller,
    )
    strategies.profiles = OperatorProfiles(
        dispatcher.plans(),
        desk,
        tell=around.operators.add,
        every=settings.policy.profile_every,
        loaded=loaded,
        needed_bytes=strategies.needed_bytes,
        held=lambda: strategies.held_s() > 0,
    )
    dispatcher.variants.choose_by(strategies.variant_for, strategies.relieves)
    dispatcher.strategy_for = strategies.strategy_for
    dispatcher.on_task = strategies.task_ended
    dispatcher.work.on_look = strategies.load_changed
    relief.session_bytes = strategies.session_bytes
    relief.drop_sessions = strategies.memory_short
    return strategies


def _slots_chosen(dispatcher: Dispatcher, model: str) -> None:
    """Not at once: the loop may have been told in the midst of a decision about requests."""
    asyncio.get_running_loop().call_soon(dispatcher.slots_changed, model)


def _trained_tree(dumps: Dumps) -> Tree | None:
    trained = dumps.trained()
    return trained.tree if trained is not None else None
