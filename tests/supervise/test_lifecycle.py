import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.supervise.lifecycle import (
    BACKOFF_MAX_S,
    HELLO_DEADLINE_S,
    REAP_PATIENCE_S,
    RECENT_S,
    RESTART_BUDGET,
    SILENCE_DEADLINE_S,
    STABLE_AFTER_S,
    STRUGGLING_AFTER,
    TICK_S,
    Abandon,
    Announce,
    Beat,
    Begin,
    Effect,
    EngineLifecycle,
    Event,
    Exited,
    GiveUp,
    Kill,
    LoadFailed,
    LoadModels,
    ModelLoadEnded,
    ModelLoads,
    ModelsReady,
    Phase,
    Recycle,
    SaidHello,
    Spawn,
    Stop,
    Terminate,
    Tick,
)
from magnitude.supervise.loss import EngineLoss


def new() -> EngineLifecycle:
    return EngineLifecycle(load_deadline_s=100.0, step_deadline_s=60.0)


def up(at_s: float = 0.0) -> EngineLifecycle:
    engine = new()
    for event in (Begin(), SaidHello(True), ModelsReady()):
        engine.apply(event, at_s)
    assert engine.phase is Phase.UP
    return engine


def idle(engine: EngineLifecycle, from_s: float, to_s: float) -> list[Effect]:
    """Ticks as they come while nothing else happens."""
    effects: list[Effect] = []
    ticks = int((to_s - from_s) / TICK_S)
    for tick in range(1, ticks + 1):
        effects += engine.apply(Tick(), from_s + tick * TICK_S)
    return effects


def acts(effects: list[Effect]) -> list[type]:
    return [type(effect) for effect in effects if not isinstance(effect, Announce)]


def retry_at(engine: EngineLifecycle, now_s: float) -> float:
    return now_s + engine.next_check_s(now_s)


def test_it_goes_from_start_over_loading_to_up() -> None:
    engine = new()
    assert acts(engine.apply(Begin(), 0.0)) == [Spawn]
    assert acts(engine.apply(SaidHello(True), 1.0)) == [LoadModels]
    assert engine.apply(ModelsReady(), 2.0) == [Announce(Phase.UP, "serving")]


def test_another_protocol_version_is_given_up_at_once() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    assert acts(engine.apply(SaidHello(False, "two versions"), 0.1)) == [Kill]
    assert engine.phase is Phase.FAILED
    assert engine.apply(Exited("killed"), 0.2) == []


def test_an_engine_that_says_nothing_after_its_start_is_killed() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    assert engine.apply(Tick(), HELLO_DEADLINE_S - 1) == []
    assert acts(engine.apply(Tick(), HELLO_DEADLINE_S + 1)) == [Kill]


def loading_for(engine: EngineLifecycle, from_s: float, *, until_s: float, computing: bool = False) -> float:
    """Let a fresh engine load, with its heartbeat, until it is killed; after how long, or `until_s`."""
    engine.apply(SaidHello(True), from_s)
    at_s, steps = from_s, 0
    while at_s < from_s + until_s:
        at_s += TICK_S
        steps += computing
        effects = [*engine.apply(Beat(steps, 0.0), at_s), *engine.apply(Tick(), at_s)]
        if Kill in acts(effects):
            break
    return at_s - from_s


def test_each_start_after_one_that_was_too_slow_gets_more_time_but_not_without_end() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    took_s, at_s = [], 0.0
    for _ in range(5):
        took_s.append(loading_for(engine, at_s, until_s=5000.0))
        at_s += took_s[-1]
        engine.apply(Exited("killed"), at_s)
        at_s = retry_at(engine, at_s)
        engine.apply(Tick(), at_s)
    assert took_s == pytest.approx([100.0, 300.0, 900.0, 900.0, 900.0], abs=2 * TICK_S)


def test_a_board_of_a_ninth_of_the_speed_comes_up_within_three_starts() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    at_s = 0.0
    for _ in range(2):
        at_s += loading_for(engine, at_s, until_s=850.0)
        engine.apply(Exited("killed"), at_s)
        at_s = retry_at(engine, at_s)
        engine.apply(Tick(), at_s)
    assert loading_for(engine, at_s, until_s=850.0) == pytest.approx(850.0)
    engine.apply(ModelsReady(), at_s + 850.0)
    assert engine.phase is Phase.UP


def test_a_start_that_was_quick_again_takes_the_longer_deadline_back() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    at_s = loading_for(engine, 0.0, until_s=5000.0)
    engine.apply(Exited("killed"), at_s)
    engine.apply(Tick(), at_s := retry_at(engine, at_s))
    engine.apply(SaidHello(True), at_s)
    engine.apply(ModelsReady(), at_s + 1)
    engine.apply(Exited("SIGSEGV", "crash"), at_s + 2)
    engine.apply(Tick(), at_s := retry_at(engine, at_s + 2))
    assert loading_for(engine, at_s, until_s=5000.0) == pytest.approx(100.0, abs=2 * TICK_S)


def test_models_that_compute_while_they_are_loaded_are_no_hang() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    assert loading_for(engine, 0.0, until_s=1000.0, computing=True) == 1000.0


def test_an_engine_that_is_slow_to_say_hello_gets_more_time_as_well() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    assert acts(engine.apply(Tick(), HELLO_DEADLINE_S + 1)) == [Kill]
    engine.apply(Exited("killed"), HELLO_DEADLINE_S + 2)
    assert engine.phase is Phase.STARTING
    assert engine.apply(Tick(), 3 * HELLO_DEADLINE_S) == []
    assert engine.patience_s == 3 * HELLO_DEADLINE_S


def test_a_silent_engine_is_killed_once() -> None:
    engine = up()
    engine.apply(Tick(), 10.0)
    engine.apply(Beat(10, 0.0), 10.0)
    assert idle(engine, 10.0, 10.0 + SILENCE_DEADLINE_S) == []
    assert acts(idle(engine, 10.0 + SILENCE_DEADLINE_S, 13.0 + SILENCE_DEADLINE_S)) == [Kill]


def test_a_service_that_was_frozen_itself_does_not_take_its_engine_for_silent() -> None:
    engine = up()
    engine.apply(Beat(10, 0.0), 0.1)
    assert engine.apply(Tick(), 3600.0) == []
    assert engine.apply(Beat(10, 0.0), 3600.2) == []
    assert acts(idle(engine, 3600.2, 3602.0 + SILENCE_DEADLINE_S)) == [Kill]


def test_open_requests_without_a_step_are_a_hang_even_outside_a_graph_run() -> None:
    engine = up()
    for second in range(1, 61):
        assert engine.apply(Beat(5, 0.0, open_requests=1), float(second)) == []
    assert acts(engine.apply(Beat(5, 0.0, open_requests=1), 62.0)) == [Kill]


def test_a_pause_that_the_pace_asks_for_is_no_hang() -> None:
    engine = up()
    for second in range(1, 3600):
        assert engine.apply(Beat(5, 0.0, open_requests=1, paused=True), float(second)) == []
    assert engine.apply(Beat(5, 0.0, open_requests=1), 3659.0) == []
    assert acts(engine.apply(Beat(5, 0.0, open_requests=1), 3661.0)) == [Kill]


def test_steps_are_progress_however_long_a_request_is_open() -> None:
    engine = up()
    for second in range(1, 3600):
        assert engine.apply(Beat(second, 0.0, open_requests=1), float(second)) == []


def test_loading_a_model_beside_open_requests_may_take_longer_than_a_step_but_not_for_ever() -> None:
    engine = up()
    engine.apply(Beat(7, 0.0), 0.5)
    engine.apply(ModelLoads(200.0), 1.0)
    for at_s in range(2, 201):
        assert engine.apply(Beat(7, 0.0, open_requests=1), float(at_s)) == []
    assert acts(engine.apply(Beat(7, 0.0, open_requests=0), 202.0)) == [Kill]


def test_a_model_that_is_loaded_beside_others_may_compute_for_as_long_as_its_proof_takes() -> None:
    """As at the start: on a slow board the golden set takes longer than reading the weights may."""
    engine = up()
    engine.apply(ModelLoads(200.0), 1.0)
    for number in range(1, 10):
        assert engine.apply(Beat(number, 0.0), number * 150.0) == []
    assert engine.apply(Beat(9, 0.0), 9 * 150.0 + 199) == []
    assert acts(engine.apply(Beat(9, 0.0), 9 * 150.0 + 201)) == [Kill]


def test_steps_of_others_do_not_hold_off_the_end_of_a_load_for_ever() -> None:
    engine, second = up(), 1
    engine.apply(ModelLoads(200.0), 1.0)
    while not acts(engine.apply(Beat(second, 0.0, open_requests=1), float(second))):
        second += 1
        assert second < 3000


def test_a_load_beside_others_that_was_too_slow_gets_more_time_at_the_next_try() -> None:
    engine, now_s, limits = up(), 0.0, []
    engine.apply(Beat(7, 0.0), now_s)
    for _ in range(4):
        engine.apply(ModelLoads(100.0), now_s)
        assert engine.load_until_s is not None
        limits.append(engine.load_until_s - now_s)
        now_s += limits[-1] + 1
        assert acts(engine.apply(Beat(7, 0.0), now_s)) == [Kill]
        assert engine.apply(Beat(7, 0.0), now_s) == []  # it may be looked at many times until it is gone
        engine.apply(Exited("the engine was ended by SIGKILL"), now_s)
        engine.apply(SaidHello(True), now_s)
        engine.apply(ModelsReady(), now_s)
    assert limits == [100.0, 300.0, 900.0, 900.0]
    engine.apply(ModelLoads(100.0), now_s)
    engine.apply(ModelLoadEnded(), now_s)
    engine.apply(ModelLoads(100.0), now_s)
    assert engine.load_until_s == now_s + 100.0


def test_after_a_model_was_loaded_open_requests_are_to_make_progress_again() -> None:
    engine = up()
    engine.apply(Beat(7, 0.0, open_requests=1), 0.5)
    engine.apply(ModelLoads(200.0), 1.0)
    engine.apply(ModelLoadEnded(), 150.0)
    assert engine.apply(Beat(7, 0.0, open_requests=1), 209.0) == []
    assert acts(engine.apply(Beat(7, 0.0, open_requests=1), 211.0)) == [Kill]


def test_it_struggles_after_failures_in_a_row_until_it_is_up() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    for crash in range(STRUGGLING_AFTER):
        assert not engine.struggling
        engine.apply(Exited("crash"), crash * 100.0)
        assert engine.phase is (Phase.BACKING_OFF if crash else Phase.STARTING)
        engine.apply(Tick(), crash * 100.0 + 50)
    assert engine.struggling
    engine.apply(SaidHello(True), 400.0)
    engine.apply(ModelsReady(), 401.0)
    assert not engine.struggling


def test_an_engine_that_breathes_but_hangs_in_a_graph_run_is_killed() -> None:
    engine = up()
    assert engine.apply(Beat(5, 59.0), 100.0) == []
    assert acts(engine.apply(Beat(5, 61.0), 102.0)) == [Kill]


def test_a_long_idle_engine_lives_on() -> None:
    engine = up()
    for second in range(1, 7200):
        assert engine.apply(Beat(5, 0.0), float(second)) == []
        assert engine.apply(Tick(), float(second)) == []


def test_the_reason_of_a_kill_survives_the_exit_status() -> None:
    engine = up()
    engine.apply(Beat(5, 61.0), 102.0)
    effects = engine.apply(Exited("the engine was ended by SIGKILL"), 102.1)
    assert "one graph run takes 61 s" in effects[0].reason  # type: ignore[union-attr]


def test_crashes_in_a_row_wait_longer_and_longer_up_to_a_bound() -> None:
    engine, now_s, delays = new(), 0.0, []
    engine.apply(Begin(), now_s)
    assert acts(engine.apply(Exited("the engine left with status 1"), now_s)) == [Spawn]  # the first retry
    for _ in range(RESTART_BUDGET - 1):
        engine.apply(Exited("the engine left with status 1"), now_s)
        delays.append(engine.next_check_s(now_s))
        now_s = retry_at(engine, now_s)
        assert acts(engine.apply(Tick(), now_s)) == [Spawn]
    assert delays == sorted(delays)
    assert delays[-1] == BACKOFF_MAX_S
    assert engine.restarts == RESTART_BUDGET


def test_when_the_restart_budget_is_spent_the_service_is_to_leave() -> None:
    engine, now_s = new(), 0.0
    engine.apply(Begin(), now_s)
    for _ in range(RESTART_BUDGET):
        assert GiveUp not in acts(engine.apply(Exited("no memory", "start"), now_s))
        now_s = retry_at(engine, now_s)
        engine.apply(Tick(), now_s)
    assert acts(engine.apply(Exited("no memory", "start"), now_s)) == [GiveUp]
    assert engine.phase is Phase.FAILED
    assert "no memory" in engine.reason
    assert acts(engine.apply(Tick(), now_s + 3600.0)) == []


def test_an_engine_that_did_something_is_replaced_at_once_however_often() -> None:
    engine, now_s = up(), 1.0
    for _ in range(10 * RESTART_BUDGET):
        assert acts(engine.apply(Exited("SIGSEGV", "crash", productive=True), now_s)) == [Spawn]
        engine.apply(SaidHello(True), now_s)
        engine.apply(ModelsReady(), now_s)
        now_s += 1.0
    assert engine.recent_losses(now_s) == 10 * RESTART_BUDGET
    assert engine.recent_losses(now_s + RECENT_S + 1) == 0


def test_a_planned_replacement_is_at_once_and_no_failure() -> None:
    engine = up()
    assert engine.apply(Recycle("grown too large"), 5.0) == [Kill("grown too large", planned=True)]
    assert acts(engine.apply(Exited("SIGKILL", "killed"), 5.1)) == [Spawn]
    assert engine.loss == EngineLoss("grown too large", "recycled")
    assert engine.recent_losses(6.0) == 0


def test_one_that_is_not_up_is_fresh_enough() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    assert engine.apply(Recycle("on request"), 1.0) == []


def test_a_killed_engine_that_does_not_go_away_is_abandoned_and_replaced() -> None:
    engine = up()
    engine.apply(Tick(), 100.0)
    engine.apply(Beat(5, 61.0), 100.1)
    effects = idle(engine, 100.0, 100.0 + REAP_PATIENCE_S + 1)
    assert acts(effects)[:2] == [Abandon, Spawn]
    assert engine.loss is not None and engine.loss.cause == "hang"


def test_how_an_engine_was_lost_is_told_by_what_was_done_about_it() -> None:
    engine = up()
    engine.apply(Beat(5, 61.0), 102.0)
    engine.apply(Exited("SIGKILL", "killed"), 102.1)
    assert engine.loss is not None and engine.loss.cause == "hang" and engine.loss.blames_request
    loading = new()
    loading.apply(Begin(), 0.0)
    loading.apply(Exited("SIGSEGV", "crash"), 0.1)
    assert loading.loss is not None and loading.loss.cause == "start" and not loading.loss.blames_request


def test_a_stable_run_forgives_earlier_crashes() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    for crash in range(6):
        engine.apply(Exited("crash"), crash * 100.0)
        engine.apply(Tick(), crash * 100.0 + 50)
    long_delay_s = 0.0
    engine.apply(SaidHello(True), 600.0)
    engine.apply(ModelsReady(), 600.0)
    engine.apply(Exited("crash"), 600.0 + STABLE_AFTER_S + 1)
    long_delay_s = engine.next_check_s(600.0 + STABLE_AFTER_S + 1)
    assert long_delay_s < 1.0


def test_a_permanent_load_failure_does_not_loop() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    engine.apply(SaidHello(True), 0.0)
    assert acts(engine.apply(LoadFailed("model.onnx is torn", permanent=True), 1.0)) == [Terminate]
    assert engine.phase is Phase.FAILED
    assert engine.apply(Exited("the engine left with status 0"), 1.1) == []
    assert engine.apply(Tick(), 1000.0) == []


def test_a_passing_load_failure_is_tried_again() -> None:
    engine = new()
    engine.apply(Begin(), 0.0)
    engine.apply(SaidHello(True), 0.0)
    assert acts(engine.apply(LoadFailed("no memory just now", permanent=False), 1.0)) == [Kill]
    assert acts(engine.apply(Exited("SIGKILL"), 1.1)) == [Spawn]


def test_stopping_ends_it_for_good() -> None:
    engine = up()
    assert acts(engine.apply(Stop(), 1.0)) == [Terminate]
    assert engine.apply(Exited("the engine left with status 0"), 1.1) == []
    assert engine.apply(Tick(), 1000.0) == []


EVENTS = st.one_of(
    st.just(SaidHello(True)),
    st.just(ModelsReady()),
    st.builds(LoadFailed, st.just("x"), st.just(False)),
    st.builds(Beat, st.integers(0, 100), st.floats(0, 100)),
    st.builds(Exited, st.just("x"), st.sampled_from(["crash", "killed"]), st.booleans()),
    st.just(Recycle("x")),
    st.just(Tick()),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 40)), max_size=60))
def test_there_is_never_more_than_one_process(events: list[tuple[Event, float]]) -> None:
    engine, now_s = new(), 0.0
    alive = acts(engine.apply(Begin(), now_s)).count(Spawn)
    for event, step_s in events:
        now_s += step_s
        if isinstance(event, Exited):
            alive = 0
        for effect in engine.apply(event, now_s):
            if isinstance(effect, Abandon):
                alive = 0
            if isinstance(effect, Spawn):
                assert alive == 0
                alive = 1
        assert engine.next_check_s(now_s) >= 0
