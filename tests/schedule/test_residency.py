import heapq
import itertools

import pytest

from magnitude.schedule.residency import (
    BACKOFF_MOST_S,
    STAY_LEAST_S,
    STAY_MOST_S,
    TRIES_WAITED,
    Effect,
    EngineDown,
    EngineUp,
    InUse,
    Load,
    Loaded,
    LoadFailed,
    MemoryChanged,
    MemoryWanted,
    ModelNeed,
    Refuse,
    Residency,
    Tick,
    Unload,
    Unloaded,
    Wanted,
)

CHAT = ModelNeed(name="chat", weight_bytes=40, pinned=True)
CHAT_2 = ModelNeed(name="chat-2", weight_bytes=40, pinned=True)


def need(name: str, size: int = 40, **rest: int) -> ModelNeed:
    return ModelNeed(name=name, weight_bytes=size, **rest)


def up(*needs: ModelNeed, budget: int = 100, keep_alive_s: float = 900.0) -> Residency:
    """An engine with its pinned models."""
    residency = Residency(needs, budget_bytes=budget, keep_alive_s=keep_alive_s)
    effects = residency.apply(EngineUp(), 0.0)
    while effects:
        (load,) = effects
        assert isinstance(load, Load)
        effects = residency.apply(Loaded(load.model, 1.0), 0.0)
    return residency


def loaded(residency: Residency, model: str, now_s: float, load_s: float = 1.0) -> None:
    """Have a request for the model, and be done with it."""
    assert residency.apply(Wanted(model), now_s) == [Load(model)]
    residency.apply(Loaded(model, load_s), now_s)
    residency.apply(InUse(model, 1), now_s)
    residency.apply(InUse(model, 0), now_s)


def test_pinned_models_are_loaded_at_start_one_after_the_other_and_others_when_they_are_wanted() -> None:
    residency = Residency([CHAT, need("draft", 10), CHAT_2], budget_bytes=200, keep_alive_s=900.0)
    assert residency.apply(EngineUp(), 0.0) == [Load("chat")]
    assert residency.apply(Loaded("chat", 1.0), 1.0) == [Load("chat-2")]
    assert residency.apply(Loaded("chat-2", 1.0), 2.0) == []
    assert residency.apply(Wanted("draft"), 3.0) == [Load("draft")]


def test_a_request_for_a_model_that_is_being_loaded_waits_for_it() -> None:
    residency = up(CHAT, need("a"))
    assert residency.apply(Wanted("a"), 1.0) == [Load("a")]
    assert residency.apply(Wanted("a"), 1.5) == []
    assert not residency.may_start("a")
    assert residency.apply(Loaded("a", 1.0), 2.0) == []
    assert residency.may_start("a")


def test_the_least_recently_used_makes_room_and_the_pinned_one_never_does() -> None:
    residency = up(CHAT, need("a", 30), need("b", 30), need("c", 30))
    loaded(residency, "a", 10.0)
    loaded(residency, "b", 20.0)
    residency.apply(InUse("a", 1), 30.0)
    residency.apply(InUse("a", 0), 31.0)
    assert residency.apply(Wanted("c"), 40.0) == [Unload("b")]
    assert residency.apply(Unloaded("b"), 41.0) == [Load("c")]
    assert residency.state("chat") == "loaded"


def test_a_model_with_open_requests_starts_no_more_and_leaves_when_they_are_done() -> None:
    residency = up(CHAT, need("a", 50), need("b", 50))
    loaded(residency, "a", 10.0)
    residency.apply(InUse("a", 2), 11.0)
    assert residency.apply(Wanted("b"), 100.0) == []
    assert not residency.may_start("a")
    assert residency.apply(InUse("a", 1, waiting=True), 101.0) == []
    assert residency.apply(InUse("a", 0, waiting=True), 102.0) == [Unload("a")]
    assert residency.apply(Unloaded("a"), 103.0) == [Load("b")]


def test_a_model_that_every_start_loads_leaves_for_room_but_not_for_being_unused() -> None:
    residency = up(CHAT, need("a", 50, stays=True), need("b", 50))
    loaded(residency, "a", 10.0)
    assert residency.apply(Tick(), 1e6) == []
    assert residency.next_wake_s() is None
    assert residency.apply(Wanted("b"), 1e6) == [Unload("a")]


def test_of_two_busy_models_the_one_that_was_asked_to_leave_does() -> None:
    residency = up(CHAT, need("a", 30), need("b", 30), need("c", 30))
    loaded(residency, "a", 10.0)
    loaded(residency, "b", 20.0)
    residency.apply(InUse("a", 2), 30.0)
    residency.apply(InUse("b", 2), 31.0)
    residency.apply(Wanted("c"), 100.0)
    residency.apply(InUse("a", 1), 101.0)  # which makes "b" the one that was used least recently
    assert (residency.may_start("a"), residency.may_start("b")) == (False, True)


def test_nothing_more_is_unloaded_than_the_room_that_is_wanted() -> None:
    residency = up(CHAT, need("a", 30), need("b", 30), need("c", 30))
    loaded(residency, "a", 10.0)
    loaded(residency, "b", 20.0)
    assert residency.apply(Wanted("c"), 100.0) == [Unload("a")]
    assert residency.apply(Tick(), 100.5) == []


def test_a_model_goes_on_when_nobody_wants_its_room_any_more() -> None:
    residency = up(CHAT, need("a", 50), need("b", 50))
    loaded(residency, "a", 10.0)
    residency.apply(InUse("a", 1), 11.0)
    residency.apply(Wanted("b"), 100.0)
    assert not residency.may_start("a")
    residency.apply(InUse("b", 0), 101.0)
    assert residency.may_start("a")


def test_a_freshly_loaded_model_stays_for_a_while_before_another_drives_it_out() -> None:
    residency = up(CHAT, need("a", 50), need("b", 50))
    loaded(residency, "a", 10.0, load_s=5.0)
    assert residency.apply(Wanted("b"), 11.0) == []
    assert residency.may_start("a")
    wake = residency.next_wake_s()
    assert wake is not None
    assert wake == 15.0
    assert residency.apply(Tick(), wake) == [Unload("a")]


def test_an_unused_model_leaves_after_its_time_and_a_pinned_one_stays() -> None:
    residency = up(CHAT, need("a"), keep_alive_s=60.0)
    loaded(residency, "a", 10.0)
    assert residency.next_wake_s() == 70.0
    assert residency.apply(Tick(), 69.9) == []
    assert residency.apply(Tick(), 70.0) == [Unload("a")]
    residency.apply(Unloaded("a"), 71.0)
    assert residency.next_wake_s() is None


def test_a_model_loaded_for_a_request_that_has_not_begun_is_not_unused() -> None:
    residency = up(CHAT, need("a"), keep_alive_s=0.0)
    residency.apply(Wanted("a"), 1.0)
    assert residency.apply(Loaded("a", 1.0), 2.0) == []
    assert residency.apply(InUse("a", 1), 2.0) == []
    assert residency.apply(InUse("a", 0), 3.0) == [Unload("a")]


def test_nobody_overtakes_the_one_who_waits_longest_for_room() -> None:
    residency = up(CHAT, need("a", 50), need("b", 50), need("small", 10))
    loaded(residency, "a", 10.0)
    residency.apply(InUse("a", 1), 20.0)
    assert residency.apply(Wanted("b"), 30.0) == []
    assert residency.apply(Wanted("small"), 31.0) == []
    assert residency.apply(InUse("a", 0), 40.0) == [Unload("a")]
    assert residency.apply(Unloaded("a"), 41.0) == [Load("b")]
    assert residency.apply(Loaded("b", 1.0), 42.0) == [Load("small")]


def test_a_model_whose_turn_is_over_goes_behind_those_that_wait_however_old_its_own_requests_are() -> None:
    residency = up(CHAT, need("a", 50), need("b", 50))
    loaded(residency, "a", 10.0)
    residency.apply(InUse("a", 4, waiting=True), 11.0)  # as many as can run, and more behind them
    residency.apply(Wanted("b"), 12.0)
    residency.apply(Tick(), 100.0)
    assert residency.apply(InUse("a", 0, waiting=True), 101.0) == [Unload("a")]
    assert residency.apply(Unloaded("a"), 102.0) == [Load("b")]


# --- refusals ---


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (need("big", 70), "beside the 40 MB of pinned models"),
        (need("big", 101), "101 MB, which do not fit"),
        (need("big", 1, kv_bytes=55, activation_bytes=6), "more than 60%"),
    ],
)
def test_a_model_that_can_never_fit_is_refused_with_the_sum(wanted: ModelNeed, words: str) -> None:
    mega = 1_000_000

    def in_mb(size: ModelNeed) -> ModelNeed:
        return ModelNeed(
            name=size.name,
            weight_bytes=size.weight_bytes * mega,
            kv_bytes=size.kv_bytes * mega,
            activation_bytes=size.activation_bytes * mega,
            pinned=size.pinned,
        )

    residency = up(in_mb(CHAT), in_mb(wanted), budget=100 * mega)
    (refuse,) = residency.apply(Wanted("big"), 1.0)
    assert isinstance(refuse, Refuse)
    assert refuse.retry_after_s is None
    assert words in refuse.reason


def test_a_pinned_model_without_room_is_refused_at_start_and_does_not_keep_others_out() -> None:
    residency = Residency(
        [CHAT, ModelNeed(name="large", weight_bytes=70, pinned=True), need("a")], budget_bytes=100, keep_alive_s=1.0
    )
    assert residency.apply(EngineUp(("chat",)), 0.0)[0].model == "large"
    assert residency.apply(Wanted("a"), 1.0) == [Load("a")]


def test_a_model_that_nobody_knows_is_refused() -> None:
    assert up(CHAT).apply(Wanted("x"), 0.0) == [Refuse("x", "there is no such model")]


def test_a_failing_load_is_tried_again_at_growing_intervals_and_then_refused() -> None:
    residency = up(CHAT, need("a"))
    now_s, waits = 0.0, []
    effects = residency.apply(Wanted("a"), now_s)
    for _ in range(TRIES_WAITED):
        assert effects == [Load("a")]
        effects = residency.apply(LoadFailed("a", permanent=False, reason="no memory"), now_s)
        wake = residency.next_wake_s()
        if wake is not None:
            waits.append(wake - now_s)
            now_s = wake
            effects = residency.apply(Tick(), now_s)
    assert waits == [1.0, 2.0]
    assert effects == [Refuse("a", "no memory", 4.0)]
    assert residency.apply(Wanted("a"), now_s + 1.0) == [Refuse("a", "no memory", 3.0)]
    assert residency.apply(Wanted("a"), now_s + 4.0) == [Load("a")]


def test_waiting_between_tries_of_a_pinned_model_is_bounded() -> None:
    residency = Residency([CHAT], budget_bytes=100, keep_alive_s=1.0)
    now_s = 0.0
    effects = residency.apply(EngineUp(), now_s)
    for _ in range(50):
        assert effects == [Load("chat")]
        assert residency.apply(LoadFailed("chat", permanent=False), now_s) == []
        wake = residency.next_wake_s()
        assert wake is not None
        assert wake - now_s <= BACKOFF_MOST_S
        now_s = wake
        effects = residency.apply(Tick(), now_s)


def test_a_load_that_failed_for_good_is_tried_again_only_with_another_engine() -> None:
    residency = up(CHAT, need("a"))
    residency.apply(Wanted("a"), 0.0)
    assert residency.apply(LoadFailed("a", permanent=True, reason="broken"), 1.0) == [Refuse("a", "broken")]
    assert residency.apply(Wanted("a"), 1e6) == [Refuse("a", "broken")]
    residency.apply(EngineDown(), 1e6)
    residency.apply(EngineUp(("chat",)), 1e6)
    assert residency.apply(Wanted("a"), 1e6) == [Load("a")]


def test_what_failed_at_the_start_of_an_engine_is_not_tried_with_it_again() -> None:
    residency = Residency([CHAT, need("a")], budget_bytes=100, keep_alive_s=900.0)
    assert residency.apply(EngineUp((), {"chat": "torn", "a": "torn, too"}), 0.0) == []
    assert residency.apply(Wanted("a"), 1.0) == [Refuse("a", "torn, too")]
    residency.apply(EngineDown(), 2.0)
    assert residency.apply(EngineUp(("chat",)), 3.0) == []
    assert residency.apply(Wanted("a"), 4.0) == [Load("a")]


# --- engine and memory ---


def test_what_waits_when_the_engine_dies_is_loaded_by_the_next_one() -> None:
    residency = up(CHAT, need("a"))
    residency.apply(Wanted("a"), 1.0)
    assert residency.apply(EngineDown(), 2.0) == []
    assert residency.apply(Loaded("a", 1.0), 2.0) == []
    assert residency.apply(EngineUp(), 10.0) == [Load("chat")]
    assert residency.apply(Loaded("chat", 1.0), 11.0) == [Load("a")]


def test_with_less_memory_idle_models_leave_at_once_and_busy_ones_when_they_are_done() -> None:
    residency = up(CHAT, need("a", 20), need("b", 20))
    loaded(residency, "a", 10.0)
    loaded(residency, "b", 10.0)
    residency.apply(InUse("b", 1), 10.5)
    assert residency.apply(MemoryChanged(50), 10.6) == [Unload("a")]
    assert not residency.may_start("b")
    assert residency.apply(InUse("b", 0), 11.0) == [Unload("b")]
    assert residency.apply(Unloaded("b"), 12.0) == []
    assert residency.may_start("chat")


def test_when_memory_is_short_idle_models_leave_at_once_and_pinned_and_busy_ones_stay() -> None:
    residency = up(CHAT, need("a", 10), need("b", 10), need("c", 10), budget=100)
    for name in ("a", "b", "c"):
        loaded(residency, name, 10.0)
    residency.apply(InUse("b", 1), 10.5)
    assert residency.apply(MemoryWanted(), 10.6) == [Unload("a"), Unload("c")]
    assert residency.state("chat") == residency.state("b") == "loaded"
    residency.apply(Unloaded("a"), 11.0)
    residency.apply(Unloaded("c"), 11.0)
    assert residency.apply(Wanted("a"), 12.0) == [Load("a")]


def test_without_an_engine_nothing_leaves_when_memory_is_short() -> None:
    assert Residency([CHAT], budget_bytes=100, keep_alive_s=900.0).apply(MemoryWanted(), 1.0) == []


def test_a_model_that_fits_by_the_plan_is_refused_only_as_long_as_there_is_less() -> None:
    residency = up(CHAT, need("a"), need("huge", 90))
    residency.apply(MemoryChanged(50), 1.0)
    (passing,) = residency.apply(Wanted("a"), 2.0)
    (lasting,) = residency.apply(Wanted("huge"), 2.0)
    assert isinstance(passing, Refuse) and isinstance(lasting, Refuse)
    assert passing.retry_after_s is not None
    assert lasting.retry_after_s is None
    residency.apply(MemoryChanged(100), 3.0)
    assert residency.apply(Wanted("a"), 4.0) == [Load("a")]


def test_what_loses_its_engine_while_memory_is_short_waits_for_the_next_one() -> None:
    residency = up(CHAT)
    residency.apply(InUse("chat", 1), 1.0)
    residency.apply(MemoryChanged(0), 2.0)
    assert residency.apply(EngineDown(), 3.0) == []
    assert residency.apply(InUse("chat", 0, waiting=True), 3.0) == []
    residency.apply(MemoryChanged(90), 4.0)
    assert residency.apply(EngineUp(loaded=("chat",)), 5.0) == []
    assert residency.may_start("chat")


# --- two models that do not fit together ---


def test_two_wanted_models_take_turns_and_neither_starves_nor_thrashes() -> None:
    """Requests for both arrive all the time; each takes a second in the engine, a load takes three."""
    residency = up(CHAT, need("a", 50), need("b", 50))
    waiting = {"a": 0, "b": 0}
    running = {"a": 0, "b": 0}
    served = {"a": 0, "b": 0}
    loads: list[tuple[float, str]] = []
    order = itertools.count()
    agenda: list[tuple[float, int, str, str]] = []

    def at(time: float, what: str, model: str) -> None:
        heapq.heappush(agenda, (time, next(order), what, model))

    def carry_out(effects: list[Effect], now_s: float) -> None:
        for effect in effects:
            match effect:
                case Load(model):
                    loads.append((now_s, model))
                    at(now_s + 3.0, "loaded", model)
                case Unload(model):
                    assert running[model] == 0
                    at(now_s + 0.1, "unloaded", model)
                case Refuse():
                    raise AssertionError("no request may be dropped")
        for model in ("a", "b"):
            if waiting[model] and running[model] < 4 and residency.may_start(model):
                waiting[model] -= 1
                running[model] += 1
                at(now_s + 1.0, "done", model)
                carry_out(residency.apply(InUse(model, running[model], waiting[model] > 0), now_s), now_s)

    for tick in range(2400):
        at(tick / 4, "request", "ab"[tick % 2])
    while agenda:
        now_s, _, what, model = heapq.heappop(agenda)
        match what:
            case "request":
                waiting[model] += 1
                effects = residency.apply(Wanted(model), now_s)
            case "loaded":
                effects = residency.apply(Loaded(model, 3.0), now_s)
            case "unloaded":
                effects = residency.apply(Unloaded(model), now_s)
            case "done":
                running[model] -= 1
                served[model] += 1
                effects = residency.apply(InUse(model, running[model], waiting[model] > 0), now_s)
            case _:
                effects = residency.apply(Tick(), now_s)
        carry_out(effects, now_s)
        wake = residency.next_wake_s()
        if wake is not None and (not agenda or wake < agenda[0][0]):
            at(wake, "tick", "")
    assert served == {"a": 1200, "b": 1200}
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(loads)]
    assert min(gaps) >= 3.0 + STAY_LEAST_S
    assert max(gaps[:-1]) <= 3.0 + STAY_MOST_S + 3.0
