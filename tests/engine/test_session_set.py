"""Which session runs what, as pure arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.session_messages import RunPhase, TrialRuns, UseSessions
from magnitude.engine.session_set import SessionSet
from magnitude.engine.session_spec import SessionSpec

ONE, TWO, FOUR = (SessionSpec(threads=threads) for threads in (1, 2, 4))


def set_of(*further: SessionSpec) -> SessionSet:
    """A set whose own session has two threads."""
    sessions = SessionSet("own", TWO, "model.onnx")
    for spec in further:
        sessions.add(spec, f"session of {spec.threads}", 100)
    return sessions


def use(**fields: object) -> UseSessions:
    return UseSessions(request_id=1, model="m", **fields)  # type: ignore[arg-type]


def test_all_runs_are_the_own_sessions_until_something_else_is_said():
    sessions = set_of(ONE)
    assert (sessions.take("decode"), sessions.take("prefill")) == (None, None)
    assert sessions.get(None) == "own"


def test_each_phase_goes_by_what_is_said_of_it():
    sessions = set_of(ONE, FOUR)
    sessions.use(use(decode=ONE, prefill=FOUR))
    assert (sessions.take("decode"), sessions.take("prefill")) == (ONE, FOUR)
    sessions.use(use(prefill=FOUR))
    assert (sessions.take("decode"), sessions.take("prefill")) == (None, FOUR)


def test_the_own_session_stands_in_for_one_that_is_not_there_until_it_is():
    sessions = set_of()
    sessions.use(use(decode=ONE))
    assert sessions.take("decode") is None
    sessions.add(ONE, "one", 0)
    assert sessions.take("decode") == ONE
    sessions.remove(ONE)
    assert sessions.take("decode") is None


def test_the_own_session_is_known_by_its_settings_too():
    sessions = set_of()
    assert TWO in sessions
    assert SessionSpec(threads=2, graph_file="model.onnx") in sessions
    assert SessionSpec(threads=2, cpus=(0,)) not in sessions
    sessions.use(use(decode=TWO))
    assert sessions.take("decode") is None
    assert sessions.in_force("decode") is None


@given(
    every=st.integers(1, 12),
    runs=st.integers(0, 60),
    phase=st.sampled_from(["prefill", "decode"]),
    told_again=st.sets(st.integers(0, 60)),
)
def test_one_of_every_so_many_runs_of_the_phase_is_the_trials(
    every: int, runs: int, phase: RunPhase, told_again: set[int]
):
    sessions = set_of(ONE, FOUR)
    message = use(decode=ONE, prefill=ONE, trial=TrialRuns(phase=phase, session=FOUR, every=every))
    sessions.use(message)
    taken = []
    for run in range(runs):
        if run in told_again:
            sessions.use(message)
        taken.append(sessions.take(phase))
        other: RunPhase = "decode" if phase == "prefill" else "prefill"
        assert sessions.take(other) == ONE
        assert sessions.in_force(phase) == ONE
    assert taken.count(FOUR) == runs // every
    assert all((by == FOUR) == (at % every == 0) for at, by in enumerate(taken, 1))


def test_a_trial_may_be_the_own_sessions():
    sessions = set_of(ONE)
    sessions.use(use(decode=ONE, trial=TrialRuns(phase="decode", session=None, every=3)))
    assert [sessions.take("decode") for _ in range(6)] == [ONE, ONE, None, ONE, ONE, None]


def test_another_trial_starts_the_count_anew():
    sessions = set_of(ONE, FOUR)
    sessions.use(use(trial=TrialRuns(phase="decode", session=ONE, every=3)))
    assert [sessions.take("decode") for _ in range(2)] == [None, None]
    sessions.use(use(trial=TrialRuns(phase="decode", session=FOUR, every=3)))
    assert [sessions.take("decode") for _ in range(3)] == [None, None, FOUR]


def test_a_trial_that_pauses_after_each_run_counts_on():
    sessions = set_of(FOUR)
    taken = []
    for _ in range(6):
        sessions.use(use(trial=TrialRuns(phase="prefill", session=FOUR, every=3)))
        taken.append(sessions.take("prefill"))
        sessions.use(use())
        assert sessions.take("prefill") is None
    assert taken == [None, None, FOUR, None, None, FOUR]


def test_bytes_are_those_of_all_further_sessions():
    assert set_of(ONE, FOUR).added_bytes == 200
    assert set_of().added_bytes == 0
