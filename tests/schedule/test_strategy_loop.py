"""The rim of a strategy loop: what is decided is carried out in order, and a broken loop harms nobody."""

from __future__ import annotations

import asyncio

import pytest
from scripted_chooser import OWN_ONLY, TWO, TWO_FOR_PROMPTS, ScriptedChooser

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice
from magnitude.policy.situation import Situation
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import (
    CheckSession,
    Decided,
    DecisionKind,
    DropSession,
    Effect,
    EngineChanged,
    Event,
    LoadSeen,
    PrepareSession,
    Probe,
    ProbeDone,
    RunsSeen,
    SessionFailed,
    SessionReady,
    Tick,
    Trial,
    Use,
)
from magnitude.schedule.strategy_loop import StrategyLoop

UP = EngineChanged(up=True)
PROBE = Probe(part="decode", key="rows=1", choices=(Choice(session=TWO),), rows=1, tokens=1, rounds=2)
TRIAL = Trial("decode", TWO, 8)


class Hands:
    """Writes down what it is asked for; sessions are there at once when `loop` is set."""

    def __init__(self) -> None:
        self.done: list[tuple[str, object]] = []
        self.loop: StrategyLoop | None = None

    def prepare(self, session: SessionSpec) -> None:
        self.done.append(("prepare", session))
        if self.loop is not None:
            self.loop.tell(SessionReady(session, 5))

    def drop(self, session: SessionSpec) -> None:
        self.done.append(("drop", session))

    def check(self, session: SessionSpec) -> None:
        self.done.append(("check", session))

    def probe(self, probe: Probe) -> None:
        self.done.append(("probe", probe))

    def use(self, strategy: Strategy, trial: Trial | None) -> None:
        self.done.append(("use", (strategy, trial)))


def loop_of(chooser: ScriptedChooser, **options: object) -> tuple[StrategyLoop, Hands]:
    loop, hands = StrategyLoop("m", chooser, **options), Hands()  # type: ignore[arg-type]
    loop.hands = hands
    return loop, hands


def test_effects_are_carried_out_in_their_order() -> None:
    effects: list[Effect] = [
        PrepareSession(TWO),
        CheckSession(TWO),
        DropSession(TWO),
        PROBE,
        Use(TWO_FOR_PROMPTS, TRIAL),
    ]
    chooser = ScriptedChooser(lambda event: effects)
    loop, hands = loop_of(chooser)
    loop.tell(UP)
    assert hands.done == [
        ("prepare", TWO),
        ("check", TWO),
        ("drop", TWO),
        ("probe", PROBE),
        ("use", (TWO_FOR_PROMPTS, TRIAL)),
    ]


def test_what_hands_tell_at_once_comes_after_the_event_under_way() -> None:
    chooser = ScriptedChooser(lambda event: [PrepareSession(TWO), CheckSession(TWO)] if event == UP else [])
    loop, hands = loop_of(chooser)
    hands.loop = loop
    loop.tell(UP)
    assert [name for name, _ in hands.done] == ["prepare", "check"]
    assert chooser.events == [UP, SessionReady(TWO, 5)]


def test_a_strategy_is_in_force_from_its_use_on_and_told_once() -> None:
    now, told = [10.0], []
    chooser = ScriptedChooser(lambda event: [Use(TWO_FOR_PROMPTS)])
    loop, _ = loop_of(chooser, in_force=told.append, clock=lambda: now[0])
    assert loop.strategy == OWN_ONLY
    loop.tell(UP)
    now[0] = 15.0
    loop.tell(UP)
    assert loop.strategy == TWO_FOR_PROMPTS
    assert told == [TWO_FOR_PROMPTS]
    assert loop.since_s == 5.0


def test_experiments_are_those_that_are_open() -> None:
    changes: list[bool] = []
    script: dict[Event, list[Effect]] = {
        UP: [PROBE],
        LoadSeen(1): [Use(OWN_ONLY, TRIAL)],
        LoadSeen(): [Use(OWN_ONLY)],
    }
    chooser = ScriptedChooser(lambda event: script.get(event, []))
    loop, _ = loop_of(chooser, experimenting=lambda: changes.append(loop.experiments))
    loop.tell(UP)
    assert not loop.experiments  # it may wait for others
    loop.timing(True)
    assert loop.experiments
    loop.timing(False)
    loop.tell(ProbeDone(PROBE, (), complete=False))
    assert not loop.experiments
    loop.tell(LoadSeen(1))
    assert loop.trial == TRIAL
    loop.tell(LoadSeen())
    assert changes == [True, False, True, False]
    assert loop.counts().probes == {"decode": 1}
    assert loop.counts().trials == {"decode": 1}


def test_an_engine_that_is_gone_ends_its_experiments() -> None:
    loop, _ = loop_of(ScriptedChooser(lambda event: [PROBE, Use(OWN_ONLY, TRIAL)]))
    loop.tell(UP)
    loop.timing(True)
    loop.engine_gone()
    assert not loop.experiments


def test_decisions_are_kept_shown_and_counted() -> None:
    noted: list[tuple[str, Decided]] = []
    switch = Decided("switch", "decode", "rows=1", "2 threads", "1 thread", "saves a fifth", delay_s=1.5, gain=0.2)
    started = Decided("start", "", "", "", "1 thread", "as configured")
    now = [100.0]
    chooser = ScriptedChooser(lambda event: [started] if event == UP else [switch])
    loop, _ = loop_of(chooser, note=lambda model, decided: noted.append((model, decided)), clock=lambda: now[0])
    loop.tell(UP)
    now[0] = 103.0
    loop.tell(LoadSeen(1))
    now[0] = 104.0
    assert noted == [("m", started), ("m", switch)]
    assert [(one.kind, one.ago_s) for one in loop.last()] == [("switch", 1.0), ("start", 4.0)]
    counts = loop.counts()
    assert counts.decisions == {"start": {"": 1}, "switch": {"decode": 1}}
    assert (counts.delays, counts.delay_s) == ({"decode": 1}, {"decode": 1.5})


@pytest.mark.parametrize("kind", ["start", "situation", "revert", "trial", "rejected", "dropped", "retired"])
def test_only_comparisons_count_into_the_delay_of_decisions(kind: DecisionKind) -> None:
    other = Decided(kind, "decode", "rows=1", "2 threads", "1 thread", "not by samples")
    kept = Decided("kept", "decode", "rows=1", "2 threads", "1 thread", "no faster", delay_s=4.0)
    loop, _ = loop_of(ScriptedChooser(lambda event: [other, kept]))
    loop.tell(UP)
    counts = loop.counts()
    assert (counts.delays, counts.delay_s) == ({"decode": 1}, {"decode": 4.0})


def test_a_decision_is_kept_with_what_is_in_force_after_it() -> None:
    kept: list[Strategy] = []
    switch = Decided("switch", "prefill", "tokens=33", "1 thread", "2 threads", "saves a third")
    chooser = ScriptedChooser(lambda event: [switch, Use(TWO_FOR_PROMPTS)])
    loop, _ = loop_of(chooser, note=lambda model, decided: kept.append(loop.strategy))
    loop.tell(UP)
    assert kept == [TWO_FOR_PROMPTS]


def test_a_record_that_fails_costs_the_record_only() -> None:
    def note(model: str, decided: Decided) -> None:
        raise OSError("the disk is full")

    chooser = ScriptedChooser(lambda event: [Decided("start", "", "", "", "x", "y"), Use(TWO_FOR_PROMPTS)])
    loop, _ = loop_of(chooser, note=note)
    loop.tell(UP)
    assert (loop.fault, loop.strategy) == ("", TWO_FOR_PROMPTS)


def test_an_optimiser_that_fails_is_given_up_and_its_last_strategy_stays() -> None:
    def answer(event: Event) -> list[Effect]:
        if isinstance(event, Tick):
            raise ZeroDivisionError("no samples")
        return [Use(TWO_FOR_PROMPTS, TRIAL)]

    chooser = ScriptedChooser(answer)
    loop, hands = loop_of(chooser)
    loop.tell(UP)
    loop.tell(Tick())
    loop.tell(UP)
    assert loop.fault == "ZeroDivisionError: no samples"
    assert hands.done[-1] == ("use", (TWO_FOR_PROMPTS, None))
    assert len(chooser.events) == 2
    assert loop.strategy_for(Situation()) == TWO_FOR_PROMPTS


def test_a_question_that_fails_is_answered_with_what_is_in_force() -> None:
    class Broken(ScriptedChooser):
        def strategy_for(self, at: Situation) -> Strategy:
            raise KeyError(at)

    changes: list[bool] = []
    loop, _ = loop_of(
        Broken(lambda event: [Use(OWN_ONLY, TRIAL)]), experimenting=lambda: changes.append(loop.experiments)
    )
    loop.tell(UP)
    assert loop.strategy_for(Situation()) == OWN_ONLY
    assert loop.fault
    assert changes == [True, False]  # nobody waits for its trial any more


def test_while_it_is_held_everything_runs_as_loaded_and_nothing_is_learned() -> None:
    runs = RunsSeen("decode", TWO, 1, 1, 5, 0.1)
    script: dict[Event, list[Effect]] = {
        UP: [Use(TWO_FOR_PROMPTS, TRIAL)],
        LoadSeen(1): [Use(OWN_ONLY), PROBE],
        LoadSeen(2): [Use(TWO_FOR_PROMPTS)],
    }
    chooser = ScriptedChooser(lambda event: script.get(event, []))
    told: list[Strategy] = []
    loop, hands = loop_of(chooser, in_force=told.append)
    loop.tell(UP)
    loop.hold(OWN_ONLY)
    loop.tell(runs)
    loop.tell(LoadSeen(1))
    loop.tell(LoadSeen(2))
    assert loop.strategy == loop.strategy_for(Situation()) == OWN_ONLY
    assert runs not in chooser.events
    assert hands.done == [("use", (TWO_FOR_PROMPTS, TRIAL)), ("use", (OWN_ONLY, None))]
    loop.hold(None)
    assert hands.done[2:] == [("use", (TWO_FOR_PROMPTS, None)), ("probe", PROBE)]
    assert told == [TWO_FOR_PROMPTS, OWN_ONLY, TWO_FOR_PROMPTS]
    loop.tell(runs)
    assert runs in chooser.events


def test_it_wakes_when_it_asked_to_and_not_before() -> None:
    async def play() -> None:
        chooser = ScriptedChooser()
        loop, _ = loop_of(chooser)
        loop.tell(UP)
        await asyncio.sleep(0)
        assert chooser.events == [UP]
        chooser.wake_s = 0.0  # long past
        loop.tell(LoadSeen(1))
        chooser.wake_s = None
        async with asyncio.timeout(10):
            while Tick() not in chooser.events:
                await asyncio.sleep(0.01)
        loop.close()

    asyncio.run(play())


def test_its_cost_is_the_time_of_its_thread() -> None:
    spent = iter([1.0, 1.25, 2.0, 2.5])
    loop, _ = loop_of(ScriptedChooser(), cpu_clock=lambda: next(spent))
    loop.tell(UP)
    loop.tell(SessionFailed(TWO, "no", lasting=True))
    assert loop.counts().cpu_s == 0.75
    assert loop.counts().events == 2
