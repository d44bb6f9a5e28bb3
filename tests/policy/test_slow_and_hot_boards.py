"""The strategy loop on boards whose clock moves and whose runs take seconds, in simulated time."""

from __future__ import annotations

import math

from msgspec.structs import replace
from policy_world import World, facts, fresh, two_cores

from magnitude.engine.session_messages import RunPhase, TrialRuns, UseSessions
from magnitude.engine.session_set import RunChoice
from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.contest import EVEN_FOR, LOST_FOR, MOST_PATIENCE, Contest
from magnitude.policy.duel import CLEAR_SAMPLES, Duel
from magnitude.policy.experiment import LEAST_PIECE, PROBE_RUN_S
from magnitude.policy.learned import Choice
from magnitude.policy.rules import Rules
from magnitude.policy.situation import Part
from magnitude.policy.terms import BoardSeen, LoadSeen, Probe, RunsSeen, Use

ONE, TWO = SessionSpec(threads=1), SessionSpec(threads=2)
HALF_CLOCK = BoardSeen(cores=(0, 1), usable=2, clock_share=0.6)


def one_is_faster(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
    return two_cores(part, session, rows, tokens, cores=1)


def slow_pieces(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
    """A token of a prompt takes 70 ms by two threads, half of that by one."""
    return tokens * (0.035 if session.threads == 1 else 0.07) if part == "prefill" else 0.1


def test_a_comparison_goes_on_while_the_clock_moves_and_holds_at_every_clock() -> None:
    world = World(fresh(), one_is_faster, noise=0.05)
    world.start()
    world.decode(20.0)
    for turn in range(20):
        world.board_becomes(HALF_CLOCK if turn % 2 else BoardSeen(cores=(0, 1), usable=2))
        world.decode(5.0)
    switches = [one for one in world.kinds("switch") if one.part == "decode"]
    assert len(switches) == 1
    before = len(world.effects)
    for share in (1.0, 0.6, 0.4, 1.0):
        world.board_becomes(replace(HALF_CLOCK, clock_share=share))
        world.decode(2.0)
        assert world.optimizer.strategy.decode == ONE
    used = [effect.strategy.decode for effect in world.effects[before:] if isinstance(effect, Use)]
    assert set(used) <= {ONE}


def test_what_the_guard_takes_back_is_taken_back_at_every_clock() -> None:
    world = World(fresh(), one_is_faster, noise=0.03)
    world.start()
    world.board_becomes(HALF_CLOCK)
    world.decode(20.0)
    world.board_becomes(BoardSeen(cores=(0, 1), usable=2))
    world.decode(120.0)
    assert world.optimizer.strategy.decode == ONE
    lab = world.optimizer._lab
    contest = next(each for each in world.optimizer._table if each.part == "decode" and each.chosen == _choice(ONE))
    lab.revert(contest, "more tasks fail", world.now_s)
    for board in (HALF_CLOCK, BoardSeen(cores=(0, 1), usable=2)):
        world.board_becomes(board)
        assert world.optimizer.strategy.decode == TWO


def test_pieces_that_take_seconds_are_compared_in_turn_and_not_for_hours() -> None:
    world = World(fresh(Rules(cold_start_s=10.0)), slow_pieces, noise=0.05)
    world.start()
    world.tell(LoadSeen(entering=1))
    for piece in range(60):
        assert world.use is not None
        trial = world.use.trial
        tried = trial is not None and piece % trial.every == 0
        session = trial.session if trial is not None and tried else world.use.strategy.prefill
        run_s = slow_pieces("prefill", session, 1, 128, 2)
        world._pass(run_s)
        world.tell(RunsSeen("prefill", session, 1, 128, 1, run_s * world._noisy(1.0), 128))
    trials = [effect.trial for effect in world.effects if isinstance(effect, Use) and effect.trial is not None]
    assert 2 in {trial.every for trial in trials}
    assert world.optimizer.strategy.prefill == ONE


class OnePromptAtATime:
    """A client that asks again `rest_s` after it has its answer; the engine is told of each change."""

    def __init__(self, rest_s: float) -> None:
        self.world = World(fresh(model=facts(threads=1)), two_cores, noise=0.05)
        self.world.start()
        self.prompts: list[SessionSpec | None] = []  # by which session each was computed
        self._rest_s = rest_s
        self._engine = RunChoice()

    def ask(self, times: int) -> None:
        world = self.world
        for _ in range(times):
            world.tell(LoadSeen(entering=1))
            self._tell_engine()
            session = self._engine.take("prefill")
            assert session is not None
            self.prompts.append(session)
            run_s = two_cores("prefill", session, 1, 33, 2) * world._noisy(1.0)
            world._pass(run_s)
            world.tell(RunsSeen("prefill", session, 1, 33, 1, run_s, 128))
            world.tell(LoadSeen(decoding=1))
            self._tell_engine()  # no prompt: a trial of prompts pauses
            world.decode(1.0)
            world.rest(self._rest_s)

    def _tell_engine(self) -> None:
        assert self.world.use is not None
        strategy, trial = self.world.use.strategy, self.world.use.trial
        tried = None
        if trial is not None:
            phase: RunPhase = "decode" if trial.part == "decode" else "prefill"
            tried = TrialRuns(phase=phase, session=trial.session, every=trial.every)
        self._engine.use(
            UseSessions(request_id=0, model="small", decode=strategy.decode, prefill=strategy.prefill, trial=tried)
        )


def test_prompts_that_come_one_at_a_time_are_compared_under_load() -> None:
    client = OnePromptAtATime(rest_s=1.5)  # too short for probes
    client.ask(200)
    assert not [effect for effect in client.world.effects if isinstance(effect, Probe)]
    assert client.world.optimizer.strategy.prefill == TWO


def test_prompts_too_far_apart_to_be_compared_are_not_computed_by_a_challenger() -> None:
    client = OnePromptAtATime(rest_s=0.0)
    client.world.optimizer.pin({"decode": _choice(ONE)})
    for _ in range(60):
        client.ask(1)
        client.world.decode(30.0)  # another client's answer: no rest, and no probes
    assert [one.to_id for one in client.world.kinds("trial") if one.part == "prefill"]
    assert set(client.prompts) == {ONE}


def test_a_probe_of_slow_pieces_takes_smaller_ones_so_that_a_request_does_not_wait() -> None:
    world = World(fresh(), slow_pieces)
    world.start()
    for _ in range(8):
        world.prefill(15.0)
        world.rest(20.0)
    probes = [effect for effect in world.effects if isinstance(effect, Probe) and effect.part == "prefill"]
    by_sessions = [probe for probe in probes if probe.choices[0].session != probe.choices[1].session]
    assert by_sessions
    for probe in by_sessions:
        assert {choice.chunk for choice in probe.choices} == {LEAST_PIECE} == {probe.tokens}
        assert LEAST_PIECE * 0.07 > PROBE_RUN_S, "or there would be no reason"


def test_a_clear_gain_needs_no_full_window_and_a_small_one_does() -> None:
    def samples_until_won(ratio: float) -> float:
        duel = Duel(_choice(TWO), _choice(ONE), window=50, least_gain=0.03)
        for at in range(100):
            duel.add(1.0, ratio * (1.02 if at % 2 else 0.98))
            if duel.verdict() == "won":
                return duel.samples
        return math.inf

    assert samples_until_won(0.5) == CLEAR_SAMPLES
    assert samples_until_won(0.9) == 50


def test_what_loses_again_and_again_is_tried_ever_more_seldom() -> None:
    rules = Rules()
    contest = Contest("decode", "rows=1 cores=2 clock=0.9", _choice(TWO), rules, 0.0)
    waits = []
    for _ in range(8):
        contest.keep(_choice(ONE), 1.01, lost=False, reason="even", now_s=0.0)
        waits.append(contest.dismissed[_choice(ONE)].until_s / rules.half_life_s)
    assert waits[:3] == [EVEN_FOR, 2 * EVEN_FOR, 4 * EVEN_FOR]
    assert waits[-1] == MOST_PATIENCE * EVEN_FOR < MOST_PATIENCE * LOST_FOR


def test_what_is_hopeless_with_few_tokens_is_not_measured_with_many() -> None:
    def worse(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        return two_cores(part, session, rows, tokens, cores) * (2.0 if session.threads == 1 else 1.0)

    world = World(fresh(model=facts(chunk=64)), worse, noise=0.02)
    world.start()
    for tokens in (64, 64, 64, 20, 20, 20):
        world.prefill(30.0, tokens=tokens)
        world.rest(30.0)
    tried = [one.key for one in world.kinds("trial") if one.part == "prefill" and "1 thread" in one.to_id]
    assert len(tried) == 1


def test_where_half_of_the_threads_are_clearly_too_few_a_quarter_is_not_tried() -> None:
    def computes(part: Part, session: SessionSpec, rows: int, tokens: int, cores: int) -> float:
        return 0.02 * tokens / session.threads if part != "decode" else 0.1

    world = World(fresh(model=facts(threads=4)), computes, noise=0.02, board=BoardSeen(cores=(0, 1, 2, 3), usable=4))
    world.start()
    for _ in range(60):
        world.prefill(30.0)
        world.rest(30.0)
    tried = [one.to_id.split(",")[0] for one in world.kinds("trial") if one.part == "prefill"]
    assert "2 threads" in tried
    assert "1 thread" not in tried


def test_probes_take_no_more_than_what_they_are_about_takes_itself() -> None:
    world = World(fresh(), two_cores, noise=0.3)
    world.start()
    for _ in range(40):
        world.decode(1.0)
        world.rest(60.0)
    probes = [effect for effect in world.effects if isinstance(effect, Probe)]
    probed_s = sum(len(probe.choices) * probe.rounds * 0.015 for probe in probes)
    assert probes
    assert probed_s < 1.5 * 40.0 + 5.0
    before = len(probes)
    for _ in range(200):
        world.rest(60.0)
    assert sum(isinstance(effect, Probe) for effect in world.effects) <= before + 10, "a board at rest is left alone"


def _choice(session: SessionSpec) -> Choice:
    return Choice(session=session)
