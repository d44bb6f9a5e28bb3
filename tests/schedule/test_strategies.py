"""The strategy loops of all models, brought what the service sees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import msgspec
from sample_plans import decoder_plan, encoder_plan
from scripted_chooser import BINDING, OWN, OWN_ONLY, TWO, TWO_FOR_PROMPTS, ScriptedChooser
from scripted_engine import ScriptedEngine
from sessions_bench import PLENTY

from magnitude.engine.client import EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import SamplerSettings, StepGroup, ToService
from magnitude.engine.session_messages import Probe as ProbeRuns
from magnitude.engine.session_messages import SessionPrepared
from magnitude.feedback.records import TaskRecord
from magnitude.policy.dumps import Dumps
from magnitude.policy.learned import Binding, Choice, Learned
from magnitude.policy.pinned import Pinned
from magnitude.policy.rules import ModelFacts, Rules
from magnitude.policy.terms import (
    BoardSeen,
    Decided,
    DecisionKind,
    Effect,
    EngineChanged,
    Event,
    LoadSeen,
    MayExperiment,
    PrepareSession,
    Probe,
    RunsSeen,
    SessionFailed,
    TaskSeen,
    Use,
)
from magnitude.schedule.inference import GenerationTask
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.open_tasks import OpenTask
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.session_desk import SessionDesk
from magnitude.schedule.strategies import TOLD_AGAIN_S, Strategies
from magnitude.schedule.strategy_dumps import DumpKeeper
from magnitude.supervise.loss import EngineLoss

UP, DOWN = EngineChanged(up=True), EngineChanged(up=False)
LOSS = EngineLoss("killed", "killed")
BOARD = BoardSeen((0, 1), 2)
PROBE = Probe(part="decode", key="rows=1", choices=(Choice(session=OWN),), rows=1, tokens=1, rounds=1)


class NoDumps:
    off = ""
    folder = Path("/tmp/strategies")
    saved: tuple[Learned, ...] = ()
    pin: Pinned | None = None

    def load(self, binding: Binding) -> NoDumps:
        return self

    learned: Learned | None = None
    prior: Learned | None = None
    why = "nothing is kept here"

    def pinned(self, binding: Binding) -> Pinned | None:
        return self.pin

    def save(self, learned: Learned) -> bool:
        self.saved = (*self.saved, learned)
        return True


class House:
    """Loops over an engine that makes any session at once and runs nothing."""

    def __init__(self, *plans: ModelPlan, script: Callable[[str, Event], list[Effect]] | None = None) -> None:
        self.plans = {plan.description.name: plan for plan in plans}
        self.engine = ScriptedEngine(lambda message: None)
        self.choosers: dict[str, ScriptedChooser] = {}
        self.script = script or (lambda model, event: [])
        self.tasks: list[OpenTask] = []
        self.board: BoardSeen | None = BOARD
        self.loaded = set(self.plans)
        self.now_s = 100.0
        self.probe_lasts = False
        self.store = NoDumps()
        self.slots: list[tuple[str, int]] = []  # as the plan says when it is told
        desk = SessionDesk(
            ask=self.ask,
            next_id=self.engine.next_id,
            idle=lambda: not self.tasks,
            budget=lambda: PLENTY,
            settle_s=0.0,
        )
        self.strategies = Strategies(
            plans,
            choose=self.choose,
            binding=lambda plan: msgspec.structs.replace(BINDING, model=plan.description.name),
            desk=desk,
            keeper=DumpKeeper(cast(Dumps, self.store), every_s=300, clock=lambda: self.now_s),
            rules=Rules(),
            loaded=self.loaded.__contains__,
            tasks=lambda: self.tasks,
            board=lambda: self.board,
            slots_chosen=lambda model: self.slots.append((model, self.plans[model].compute_slots)),
            clock=lambda: self.now_s,
        )

    def choose(self, facts: ModelFacts, learned: Learned) -> ScriptedChooser:
        self.choosers[facts.name] = ScriptedChooser(lambda event: self.script(facts.name, event), learned)
        return self.choosers[facts.name]

    async def ask(self, link: EngineLink, message: Message, request_id: int) -> ToService:
        if self.probe_lasts and isinstance(message, ProbeRuns):
            await asyncio.Event().wait()
        return SessionPrepared(request_id=request_id, model="m", load_s=0.1, added_bytes=125)

    def engine_up(self) -> None:
        self.strategies.engine_up(cast(EngineLink, self.engine))

    async def begun(self, *models: str) -> None:
        self.engine_up()
        await self.until(lambda: all(UP in self.events(model) for model in models or self.plans))

    def events(self, model: str = "m") -> list[Event]:
        return self.choosers[model].events if model in self.choosers else []

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)


def play(house: House, scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario()
        await house.strategies.close()

    asyncio.run(run())


def generation(model: str = "m") -> OpenGeneration:
    task = GenerationTask(request_key="r", model=model, prompt=[1], max_new_tokens=4, sampler=SamplerSettings())
    return OpenGeneration(
        1, task, prefill_chunk=8, max_draft=0, close=lambda task, record: None, withdraw=lambda number: None
    )


def test_a_loop_begins_with_the_first_engine_and_knows_the_board() -> None:
    house = House(decoder_plan())

    async def scenario() -> None:
        assert house.strategies.strategy_of("m") is None
        await house.begun()
        assert house.events() == [BOARD, UP]
        assert house.strategies.strategy_of("m") == OWN_ONLY

    play(house, scenario)


def test_a_loop_outlives_engines_and_hears_of_each() -> None:
    house = House(decoder_plan())

    async def scenario() -> None:
        await house.begun()
        house.strategies.engine_down(LOSS)
        house.engine_up()
        assert house.events() == [BOARD, UP, DOWN, UP]
        assert len(house.choosers) == 1

    play(house, scenario)


def test_a_model_that_leaves_memory_has_no_engine_until_it_is_back() -> None:
    house = House(decoder_plan(), encoder_plan())

    async def scenario() -> None:
        await house.begun()
        house.loaded.discard("e")
        house.strategies.models_changed()
        house.loaded.add("e")
        house.strategies.models_changed()
        assert house.events("e") == [BOARD, UP, DOWN, UP]
        assert house.events("m") == [BOARD, UP]

    play(house, scenario)


def test_a_model_on_demand_begins_when_it_is_first_loaded() -> None:
    house = House(decoder_plan(), encoder_plan())

    async def scenario() -> None:
        house.loaded.discard("e")
        await house.begun("m")
        assert "e" not in house.choosers
        house.loaded.add("e")
        house.strategies.board_looked()
        await house.until(lambda: UP in house.events("e"))

    play(house, scenario)


def test_runs_and_tasks_reach_the_loop_of_their_model() -> None:
    house = House(decoder_plan(), encoder_plan())

    async def scenario() -> None:
        await house.begun()
        groups = [StepGroup(model="e", kind="encode", rows=1, tokens=9, runs=2, total_s=0.2, max_s=0.1)]
        house.strategies.runs(groups)
        task = TaskRecord(kind="embed", model="e", outcome="ok", prompt_tokens=9, prefill_s=0.1)
        house.strategies.task_ended(task)
        house.strategies.task_ended(msgspec.structs.replace(task, strategy="abc"))
        house.strategies.task_ended(TaskRecord(kind="embed", model="unknown", outcome="ok"))
        assert house.events("e")[2:] == [
            RunsSeen("encode", OWN, 1, 9, 2, 0.2),
            TaskSeen(OWN_ONLY.strategy_id, 0.1, 9, failed=False),
            TaskSeen("abc", 0.1, 9, failed=False),
        ]
        assert house.events("m") == [BOARD, UP]

    play(house, scenario)


def test_the_board_is_told_when_it_changed_and_now_and_then_while_something_runs() -> None:
    house = House(decoder_plan())

    async def scenario() -> None:
        await house.begun()
        for _ in range(3):
            house.now_s += TOLD_AGAIN_S
            house.strategies.board_looked()
        assert house.events().count(BOARD) == 1  # nothing runs and nothing has changed
        house.board = one = BoardSeen((0,), 1)
        house.strategies.board_looked()
        house.strategies.board_looked()
        assert house.events()[-1] == one
        house.tasks = [generation()]
        house.strategies.load_changed()
        house.now_s += TOLD_AGAIN_S
        house.strategies.board_looked()
        assert house.events()[-2:] == [LoadSeen(0, 0, 1), one]

    play(house, scenario)


def test_the_load_is_told_only_when_it_changed() -> None:
    house = House(decoder_plan())

    async def scenario() -> None:
        await house.begun()
        house.tasks = [generation()]
        for _ in range(3):
            house.strategies.load_changed()
        house.tasks = []
        for _ in range(3):
            house.strategies.load_changed()
        assert house.events()[2:] == [LoadSeen(0, 0, 1), LoadSeen()]

    play(house, scenario)


def test_what_is_put_in_force_reaches_engine_and_plan() -> None:
    def script(model: str, event: Event) -> list[Effect]:
        if event == UP:
            return [PrepareSession(TWO)]
        return [] if isinstance(event, BoardSeen) else [Use(TWO_FOR_PROMPTS)]

    house = House(decoder_plan(), script=script)

    async def scenario() -> None:
        await house.begun()
        await house.until(lambda: house.strategies.strategy_of("m") == TWO_FOR_PROMPTS)
        assert house.slots == [("m", 1)]  # of two that were planned
        assert house.strategies.session_bytes() == 125
        shown = house.strategies.state()["m"]
        assert shown.strategy_id == TWO_FOR_PROMPTS.strategy_id
        assert [held.session for held in shown.sessions] == ["2 threads"]

    play(house, scenario)


def test_a_request_is_asked_for_with_what_is_known_at_its_moment() -> None:
    house = House(decoder_plan())

    async def scenario() -> None:
        assert house.strategies.strategy_for(house.plans["m"], 5, 0) is None
        await house.begun()
        house.tasks = [generation()]
        house.strategies.load_changed()
        assert house.strategies.strategy_for(house.plans["m"], 30, 10) == OWN_ONLY
        [at] = house.choosers["m"].asked
        assert (at.tokens, at.rows, at.queue, at.cores, at.prefix) == (30, 1, 1, 2, "part")

    play(house, scenario)


def test_one_model_experiments_at_a_time() -> None:
    house = House(
        decoder_plan(), encoder_plan(), script=lambda model, event: [PROBE] if (model, event) == ("m", UP) else []
    )

    async def scenario() -> None:
        house.probe_lasts = True
        await house.begun()
        await house.until(lambda: MayExperiment(False) in house.events("e"))
        assert MayExperiment(False) not in house.events("m")
        house.strategies.engine_down(LOSS)
        # Which of the two loops has begun first, and so is told first, is open.
        assert set(house.events("e")[-2:]) == {MayExperiment(True), DOWN}

    play(house, scenario)


def test_a_probe_that_waits_keeps_no_other_model_from_experiments() -> None:
    house = House(
        decoder_plan(), encoder_plan(), script=lambda model, event: [PROBE] if (model, event) == ("m", UP) else []
    )

    async def scenario() -> None:
        house.tasks = [generation("e")]
        house.strategies.load_changed()
        await house.begun()
        for _ in range(5):
            await asyncio.sleep(0)
        assert MayExperiment(False) not in house.events("e")

    play(house, scenario)


def test_short_memory_takes_further_sessions_from_all_models() -> None:
    house = House(
        decoder_plan(), encoder_plan(), script=lambda model, event: [PrepareSession(TWO)] if event == UP else []
    )

    async def scenario() -> None:
        await house.begun()
        await house.until(lambda: house.strategies.session_bytes() == 250)
        house.board = short = BoardSeen((0, 1), 2, memory="short")
        house.strategies.memory_short()
        assert house.strategies.session_bytes() == 0
        for model in ("m", "e"):
            assert house.events(model)[-2:] == [short, SessionFailed(TWO, "memory is short", lasting=False)]

    play(house, scenario)


def test_plain_tensors_have_no_loop() -> None:
    plan = encoder_plan("t")
    plan.description = msgspec.structs.replace(plan.description, kind="tensors", encoder=None)
    house = House(plan)

    async def scenario() -> None:
        house.engine_up()
        await asyncio.sleep(0.01)
        assert house.choosers == {}

    play(house, scenario)


def test_what_is_open_is_told_again_to_a_loop_that_has_a_new_engine() -> None:
    house = House(decoder_plan())

    async def scenario() -> None:
        await house.begun()
        house.tasks = [generation()]
        house.strategies.load_changed()
        house.strategies.engine_down(LOSS)
        house.engine_up()
        assert house.events()[-3:] == [DOWN, UP, LoadSeen(0, 0, 1)]

    play(house, scenario)


def test_what_a_person_has_fixed_is_pinned_from_the_start_and_when_it_is_changed() -> None:
    house = House(decoder_plan())

    async def scenario() -> None:
        house.store.pin = Pinned(board="bench", model="m", decode=TWO, variant="gone")
        await house.begun()
        assert house.choosers["m"].pinned == {"decode": Choice(session=TWO)}
        assert [one.kind for one in house.strategies.state()["m"].decisions] == ["pinned"]
        house.store.pin = None
        await house.strategies.reread("m", "unpinned")
        assert house.choosers["m"].pinned == {}
        assert house.choosers["m"].reloaded == []  # a pin is nothing that was learned
        await house.strategies.reread("m", "imported")
        assert len(house.choosers["m"].reloaded) == 1
        await house.strategies.reread("m", "reset")
        await house.strategies.reread("unknown", "reset")
        said = [(one.kind, one.from_id, one.to_id) for one in reversed(house.strategies.state()["m"].decisions)]
        assert said == [
            ("pinned", "", "answers by 2 threads"),
            ("unpinned", "answers by 2 threads, weights of gone", ""),
            ("imported", "0 situations", "0 situations"),
            ("reset", "0 situations", "0 situations"),
        ]

    play(house, scenario)


def test_other_bounds_begin_the_loops_anew_with_what_they_know() -> None:
    house = House(decoder_plan())
    wider = Rules(least_gain=0.2)

    async def scenario() -> None:
        await house.begun()
        house.strategies.tune(Rules(), save_every_s=60, session_memory_bytes=5)
        assert house.choosers["m"].reloaded == []
        assert (house.strategies.keeper.every_s, house.strategies.session_memory_bytes) == (60, 5)
        house.strategies.tune(wider, save_every_s=60, session_memory_bytes=None)
        [(rules, learned)] = house.choosers["m"].reloaded
        assert rules == wider
        assert learned.binding == BINDING

    play(house, scenario)


def test_tasks_of_a_variant_count_for_the_model_that_it_stands_in_for() -> None:
    house = House(decoder_plan(), decoder_plan("small"))

    async def scenario() -> None:
        await house.begun()
        task = TaskRecord(kind="generate", model="small", outcome="failed", code="deadline_exceeded", strategy="abc")
        house.strategies.task_ended(task)
        assert house.events("m") == [BOARD, UP]
        chosen = msgspec.structs.replace(OWN_ONLY, variant="small")
        house.choosers["m"].strategy = chosen
        assert house.strategies.variant_for("m", "generate") == "small"
        house.strategies.task_ended(task)
        assert house.events("m")[-1] == TaskSeen(chosen.strategy_id, 0.0, 0, failed=True)
        assert house.events("small")[-1] == TaskSeen("abc", 0.0, 0, failed=True)

    play(house, scenario)


def test_what_runs_is_told_by_model() -> None:
    house = House(decoder_plan())

    async def scenario() -> None:
        assert house.strategies.running("m") is None
        assert house.strategies.situation("m") is None
        await house.begun()
        running = house.strategies.running("m")
        assert running is not None
        assert running.strategy_id == OWN_ONLY.strategy_id
        assert list(house.strategies.learned()) == ["m"]
        at = house.strategies.situation("m")
        assert at is not None
        assert (at.cores, at.rows) == (2, 1)

    play(house, scenario)


def test_how_often_and_how_quickly_the_loop_changed_its_mind_is_counted_for_a_proof() -> None:
    kinds: list[DecisionKind] = ["start", "switch", "kept", "revert"]
    decided = [Decided(kind, "decode", "rows=1", "2 threads", "1 thread", "why", delay_s=3.0) for kind in kinds]
    house = House(decoder_plan(), script=lambda model, event: list(decided) if event == UP else [])

    async def scenario() -> None:
        await house.begun()
        running = house.strategies.running("m")
        assert running is not None
        assert (running.on, running.switches, running.delay_s) == (True, 2, 3.0)
        assert running.cpu_s > 0
        house.strategies.rules = Rules(on=False)
        running = house.strategies.running("m")
        assert running is not None
        assert not running.on

    play(house, scenario)


def test_what_was_learned_is_saved_at_the_end() -> None:
    house = House(decoder_plan())

    async def scenario() -> None:
        await house.begun()
        house.choosers["m"].changed = 5

    play(house, scenario)
    assert len(house.store.saved) == 1
