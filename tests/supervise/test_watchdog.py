from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.supervise.watchdog import GRACE_S, LATE_S, TICK_S, EngineView, ProgressWatch

STEP_DEADLINE_S = 60.0


def view(
    steps: int = 0, *, work: bool = True, phase: str = "up", pid: int | None = 1, load_until_s: float | None = None
) -> EngineView:
    patience = {"up": STEP_DEADLINE_S, "loading": 120.0, "backing_off": 30.0}.get(phase)
    return EngineView(pid=pid, phase=phase, steps=steps, work=work, patience_s=patience, load_until_s=load_until_s)


class Loop:
    """An event loop that looks once a tick, in simulated time."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.watch = ProgressWatch(self.now_s)

    def run(self, for_s: float, seen: EngineView) -> list[bool]:
        """Whether there could have been a ping at each tick."""
        pings = []
        for _ in range(round(for_s / TICK_S)):
            self.now_s += TICK_S
            self.watch.tick(seen, self.now_s)
            pings.append(self.watch.may_ping(self.now_s).ping)
        return pings


def test_work_that_never_advances_and_that_nobody_ends_gets_no_ping() -> None:
    loop = Loop()
    loop.run(5, view(7))
    assert all(loop.run(STEP_DEADLINE_S, view(7)))
    assert not any(loop.run(600, view(7))[round(GRACE_S) + 1 :])
    verdict = loop.watch.may_ping(loop.now_s)
    assert "without a change for" in verdict.reason


def test_a_hung_engine_that_is_replaced_within_its_deadline_is_no_reason_to_kill_the_service() -> None:
    loop = Loop()
    for generation in range(20):
        assert all(loop.run(STEP_DEADLINE_S + 5, view(7, pid=generation)))
        assert all(loop.run(2, view(0, pid=None, phase="backing_off")))


def test_a_blocked_loop_gets_no_ping_and_one_that_turns_again_does() -> None:
    loop = Loop()
    assert all(loop.run(5, view(work=False)))
    loop.now_s += 60
    assert not loop.watch.may_ping(loop.now_s).ping  # whoever asks without the loop having turned
    loop.watch.tick(view(work=False), loop.now_s)
    verdict = loop.watch.may_ping(loop.now_s)
    assert not verdict.ping
    assert "event loop stood still" in verdict.reason
    assert all(loop.run(5, view(work=False)))


def test_a_loop_that_crawls_gets_no_ping() -> None:
    loop = Loop()
    for step in range(20):
        loop.now_s += LATE_S + 2 * TICK_S
        loop.watch.tick(view(step), loop.now_s)
        assert not loop.watch.may_ping(loop.now_s).ping


def test_an_idle_service_is_well_for_hours() -> None:
    assert all(Loop().run(2 * 3600, view(work=False)))


def test_a_long_generation_at_one_token_a_second_is_well() -> None:
    loop = Loop()
    assert all(ping for step in range(600) for ping in loop.run(1, view(step)))


def test_a_prefill_within_its_declared_deadline_is_well() -> None:
    loop = Loop()
    loop.run(1, view(7))
    assert all(loop.run(40, view(7)))
    assert all(loop.run(40, view(8)))


def test_loading_a_model_beside_work_is_well_until_its_own_deadline() -> None:
    loop = Loop()
    until_s = loop.now_s + 300
    assert all(loop.run(300, view(7, load_until_s=until_s)))
    assert not loop.run(2 * GRACE_S, view(7, load_until_s=until_s))[-1]


def test_a_start_that_nobody_ends_is_not_well_though_no_request_is_open() -> None:
    loop = Loop()
    assert all(loop.run(120, view(work=False, phase="loading")))
    assert not loop.run(2 * GRACE_S, view(work=False, phase="loading"))[-1]


def test_a_supervision_that_waits_for_nothing_is_well() -> None:
    assert all(Loop().run(3600, view(phase="failed", pid=None)))


def test_a_service_that_was_frozen_does_not_take_its_engine_for_hung() -> None:
    loop = Loop()
    loop.run(50, view(7))
    loop.now_s += 3600
    assert not loop.run(1, view(7))[-1]
    assert all(loop.run(STEP_DEADLINE_S, view(7)))


PHASES = st.sampled_from(["up", "loading", "backing_off", "failed"])


@given(st.lists(st.tuples(st.floats(0.5, 1.5), st.booleans(), PHASES, st.booleans()), max_size=200))
def test_whatever_moves_on_time_is_well(ticks: list[tuple[float, bool, str, bool]]) -> None:
    loop = Loop()
    steps = 0
    for after_s, works, phase, moves in ticks:
        steps += moves or not works
        loop.now_s += after_s
        loop.watch.tick(view(steps + len(phase), work=works, phase=phase), loop.now_s)
        if moves:
            assert loop.watch.may_ping(loop.now_s).ping


@given(
    st.lists(st.tuples(st.floats(0.01, 4.0), st.booleans()), max_size=50),
    st.floats(GRACE_S + 0.1, 1e6),
    st.sampled_from(["up", "loading", "backing_off"]),
)
def test_whatever_came_before_work_that_stands_still_past_its_deadline_is_not_well(
    before: list[tuple[float, bool]], over_s: float, phase: str
) -> None:
    loop = Loop()
    for step, (after_s, works) in enumerate(before):
        loop.now_s += after_s
        loop.watch.tick(view(step, work=works), loop.now_s)
    stuck = view(10_000, phase=phase)
    loop.run(2, stuck)
    since_s = loop.now_s - TICK_S
    assert stuck.patience_s is not None
    while loop.now_s - since_s <= stuck.patience_s + GRACE_S:
        loop.run(1, stuck)
    assert not loop.watch.may_ping(loop.now_s + TICK_S).ping
    assert not loop.watch.may_ping(loop.now_s + over_s).ping
