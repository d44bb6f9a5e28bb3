"""An engine whose sessions a strategy loop chooses, on a simulated board."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from magnitude.board.profiles import load_profile
from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice
from magnitude.policy.strategy import Strategy
from magnitude.policy.terms import (
    BoardSeen,
    CheckSession,
    DropSession,
    Effect,
    EngineChanged,
    Event,
    LoadSeen,
    PrepareSession,
    Probe,
    ProbeDone,
    RunsSeen,
    SessionChecked,
    SessionReady,
    TaskSeen,
    Tick,
    Trial,
    Use,
)
from magnitude.simulate.closed_loop import simulate
from magnitude.simulate.controllers import GovernedController, StockController
from magnitude.simulate.engine import PREPARE_S, SimulatedEngine
from magnitude.simulate.load import read_load
from magnitude.simulate.trace import Trace
from tests.simulate.scripted_loop import Answer, ScriptedLoop

ROCK, PI = load_profile("rock5b"), load_profile("pi5-cooler")
ALL = SessionSpec(threads=8)
BIG = SessionSpec(threads=4, cpus=(4, 5, 6, 7))
LITTLE = SessionSpec(threads=4, cpus=(0, 1, 2, 3))
TWO = SessionSpec(threads=2)


def use(decode: SessionSpec, prefill: SessionSpec, trial: Trial | None = None) -> Use:
    return Use(Strategy(prefill=prefill, decode=decode), trial)


def run(
    answer: Answer, load: str = "steady", own: SessionSpec = ALL, hours: float = 0.05
) -> tuple[ScriptedLoop, Trace]:
    loop = ScriptedLoop(own, answer)
    engine = SimulatedEngine(loop, own)
    profile = ROCK if own == ALL else PI
    return loop, simulate(profile, read_load(load), StockController(), hours=hours, ambient_c=10, engine=engine)


def at_start(*effects: Effect) -> Answer:
    """All at once, when the engine is up."""
    return lambda event, now_s: effects if isinstance(event, EngineChanged) else ()


def when_ready(session: SessionSpec, *effects: Effect) -> Answer:
    """The session is prepared at the start; the effects come when it is there."""

    def answer(event: Event, now_s: float) -> Sequence[Effect]:
        if isinstance(event, EngineChanged):
            return (PrepareSession(session),)
        return effects if event == SessionReady(session, 1_000_000_000) else ()

    return answer


def test_without_a_wish_the_engine_runs_as_its_own_session_does_without_a_loop() -> None:
    _, looped = run(at_start())
    plain = simulate(ROCK, read_load("steady"), StockController(), hours=0.05, ambient_c=10, threads=8)
    assert looped.summary.tokens_s == pytest.approx(plain.summary.tokens_s, rel=1e-3)
    assert looped.summary.board_j_per_token == pytest.approx(plain.summary.board_j_per_token, rel=1e-3)


def test_big_cores_alone_are_faster_than_all_and_little_ones_slower() -> None:
    speed = {}
    for session in (ALL, BIG, LITTLE):
        _, trace = run(when_ready(session, use(session, session)), hours=0.1)
        speed[session] = trace.summary.tokens_s
    assert speed[BIG] > 1.5 * speed[ALL]
    assert speed[LITTLE] < speed[ALL]


def test_a_session_is_there_only_after_it_was_prepared_and_the_own_one_stands_in_before_and_after() -> None:
    def answer(event: Event, now_s: float) -> Sequence[Effect]:
        if isinstance(event, EngineChanged):
            return (use(BIG, BIG), PrepareSession(BIG))
        if isinstance(event, RunsSeen) and now_s > 60:
            return (DropSession(BIG), DropSession(ALL))
        return ()

    loop, _ = run(answer)
    ready = [at_s for at_s, event in loop.seen if isinstance(event, SessionReady)]
    assert ready == [pytest.approx(PREPARE_S, abs=0.01)]
    runs = [(at_s, event.session) for at_s, event in loop.seen if isinstance(event, RunsSeen)]
    assert {session for at_s, session in runs if at_s < PREPARE_S} == {ALL}
    assert {session for at_s, session in runs if PREPARE_S + 1 < at_s < 60} == {BIG}
    assert {session for at_s, session in runs if at_s > 62} == {ALL}


def test_what_the_loop_is_told_of_runs_is_what_the_board_takes_for_them() -> None:
    loop, trace = run(at_start(), load="agent", hours=0.1)
    runs = loop.told(RunsSeen)
    decode, prefill = ([each for each in runs if each.part == part] for part in ("decode", "prefill"))
    said = trace.summary
    tokens_s = sum(each.runs * each.rows for each in decode) / sum(each.total_s for each in decode)
    assert tokens_s == pytest.approx(said.decode_tokens_s, rel=0.03)
    read_s = sum(each.tokens * each.runs for each in prefill) / sum(each.total_s for each in prefill)
    assert read_s == pytest.approx(said.prompt_tokens / (said.phase_shares["prefill"] * 360), rel=0.05)
    assert sum(each.runs * each.rows for each in decode) == pytest.approx(said.tokens, rel=0.02)
    assert sum(each.tokens * each.runs for each in prefill) == pytest.approx(said.prompt_tokens, rel=0.02)
    assert {each.chunk for each in prefill} == {128}
    assert max(each.tokens for each in prefill) == 128


def test_one_run_in_so_many_goes_to_the_trial() -> None:
    loop, _ = run(when_ready(TWO, use(ALL, ALL, Trial("decode", TWO, 4))), hours=0.1)
    late = [each for at_s, each in loop.seen if isinstance(each, RunsSeen) and each.part == "decode" and at_s > 10]
    by_session = {session: sum(each.runs for each in late if each.session == session) for session in (ALL, TWO)}
    assert by_session[ALL] == pytest.approx(3 * by_session[TWO], rel=0.02)
    step_s = {
        session: sum(each.total_s for each in late if each.session == session) / by_session[session]
        for session in (ALL, TWO)
    }
    assert step_s[TWO] < 0.7 * step_s[ALL]


def test_a_trial_of_the_other_phase_does_not_touch_answers() -> None:
    loop, _ = run(when_ready(TWO, use(ALL, ALL, Trial("prefill", TWO, 2))), load="agent")
    assert {each.session for each in loop.told(RunsSeen) if each.part == "decode"} == {ALL}
    assert {each.session for each in loop.told(RunsSeen) if each.part == "prefill"} == {ALL, TWO}


def test_a_probe_runs_in_idle_time_takes_turns_and_serves_nobody() -> None:
    probe = Probe("decode", "key", (Choice(session=SessionSpec(threads=4)), Choice(session=TWO)), 1, 1, 6)
    loop, trace = run(when_ready(TWO, probe), load="light", own=SessionSpec(threads=4), hours=0.2)
    done = loop.told(ProbeDone)
    assert [each.complete for each in done] == [True]
    four, two = done[0].seconds
    assert len(four) == len(two) == 6
    assert sum(two) < sum(four)
    assert trace.summary.errands_s == pytest.approx(sum(two) + sum(four), rel=0.2)
    plain = simulate(PI, read_load("light"), StockController(), hours=0.2, ambient_c=10, threads=4)
    assert trace.summary.tokens == plain.summary.tokens


def test_a_probe_is_given_up_when_work_comes_with_the_rounds_that_are_complete() -> None:
    probe = Probe("prefill", "key", (Choice(session=TWO, chunk=128), Choice(session=TWO, chunk=64)), 1, 128, 10_000)
    loop, _ = run(when_ready(TWO, probe), load="light", own=SessionSpec(threads=4), hours=0.2)
    given_up = next(each for each in loop.told(ProbeDone) if not each.complete)
    long, short = given_up.seconds
    assert len(long) == len(short) < 10_000
    assert sum(short) < sum(long)


def test_under_load_a_probe_is_given_up_at_once_and_a_comparison_waits_but_not_for_ever() -> None:
    def answer(event: Event, now_s: float) -> Sequence[Effect]:
        if event == SessionReady(BIG, 1_000_000_000):
            return (CheckSession(BIG), Probe("decode", "key", (Choice(session=BIG),), 1, 1, 4))
        return (PrepareSession(BIG),) if isinstance(event, EngineChanged) else ()

    loop, trace = run(answer)
    assert loop.told(ProbeDone)[0].seconds == ((),)
    checked = [(at_s, each) for at_s, each in loop.seen if isinstance(each, SessionChecked)]
    assert len(checked) == 1
    assert checked[0][0] > PREPARE_S + 30
    assert checked[0][1].verdict.session == BIG
    assert 0 < trace.summary.errands_s < 30


def test_board_and_load_are_told_when_they_change_and_the_board_every_ten_seconds() -> None:
    loop, _ = run(at_start(), load="agent", hours=0.05)
    loads = loop.told(LoadSeen)
    assert all(one != other for one, other in pairwise(loads))
    boards = [(at_s, each) for at_s, each in loop.seen if isinstance(each, BoardSeen)]
    assert boards[0][1] == BoardSeen(cores=(4, 5, 6, 7, 0, 1, 2, 3), usable=8, big=4)
    assert 15 <= len(boards) <= 25


def test_turns_that_are_over_are_told_with_their_strategy() -> None:
    loop, trace = run(at_start(), load="agent", hours=0.1)
    tasks = loop.told(TaskSeen)
    assert {each.strategy_id for each in tasks} == {loop.strategy.strategy_id}
    total = trace.summary.tokens + trace.summary.prompt_tokens
    assert sum(each.units for each in tasks) == pytest.approx(total, rel=0.1)
    assert not any(each.failed for each in tasks)


def test_the_governor_s_wish_for_threads_and_its_clocks_reach_the_loop_and_not_the_engine() -> None:
    own = SessionSpec(threads=4)
    loop, bare = ScriptedLoop(own), load_profile("pi5-bare")
    engine = SimulatedEngine(loop, own)
    simulate(bare, read_load("agent"), GovernedController(bare), hours=0.2, ambient_c=30, engine=engine)
    boards = loop.told(BoardSeen)
    assert any(each.decode_threads is not None for each in boards)
    assert min(each.clock_share for each in boards) < 0.9
    assert {each.session for each in loop.told(RunsSeen)} == {own}
    assert {each.heat for each in boards} >= {"cool", "warm"}


def test_the_loop_is_woken_when_it_wishes() -> None:
    own = SessionSpec(threads=4)
    loop = ScriptedLoop(own, lambda event, now_s: setattr(loop, "wake_s", None) or () if event == Tick() else ())
    loop.wake_s = 7.25
    simulate(PI, read_load("chat"), StockController(), hours=0.01, engine=SimulatedEngine(loop, own))
    assert [at_s for at_s, event in loop.seen if event == Tick()] == [pytest.approx(7.25, abs=0.01)]


def test_the_same_seed_gives_the_same_course() -> None:
    one, _ = run(at_start(), load="agent")
    other, _ = run(at_start(), load="agent")
    assert one.seen == other.seen
