from __future__ import annotations

import itertools

import pytest
from sights import LADDER, Simulation, at, engine

from magnitude.governor.memory import MemoryGovernor, ModelsMayTake, RefuseLong, ShrinkKv
from magnitude.governor.memory_ladder import STEPS, Ladder, wrong_thresholds

ALL_STEPS = list(STEPS[1:])


def test_nothing_is_done_while_there_is_memory() -> None:
    simulation = Simulation()
    simulation.see(at(69.9), 100)
    assert simulation.kinds() == []
    assert simulation.governor.step == "normal"


def test_steps_come_one_at_a_time_and_in_order_as_memory_stays_short() -> None:
    simulation = Simulation()
    simulation.see(at(97), 60)
    assert simulation.named() == ALL_STEPS
    gaps = [later - earlier for (earlier, _), (later, _) in zip(simulation.steps, simulation.steps[1:], strict=False)]
    assert gaps[:4] == [LADDER.cool_down_s] * 4
    assert gaps[4] >= LADDER.recycle_s


@pytest.mark.parametrize(
    ("percent", "last"), [(71, "trim"), (76, "shrink_kv"), (81, "unload_idle"), (86, "refuse_long")]
)
def test_no_step_is_taken_whose_threshold_was_not_reached(percent: float, last: str) -> None:
    simulation = Simulation()
    simulation.see(at(percent), 200)
    assert simulation.governor.step == last
    assert not {"Recycle", "Restart"} & set(simulation.kinds())


def test_at_the_very_end_all_that_can_be_taken_back_is_done_at_once_and_the_engine_not_before_it_has_shown() -> None:
    simulation = Simulation()
    simulation.see(at(99))
    assert simulation.named() == ALL_STEPS[:4]
    simulation.see(at(99), 3)
    assert simulation.named() == ALL_STEPS[:5]
    assert simulation.steps[-1][0] - simulation.steps[0][0] >= LADDER.cool_down_s


def test_the_service_is_not_restarted_while_replacing_the_engine_may_still_help() -> None:
    simulation = Simulation()
    simulation.see(at(99), 5)
    assert simulation.kinds()[-1] == "Recycle"
    recycled_s = simulation.done[-1][0]
    simulation.see(at(96), 40)
    restarts = [when for when, effect in simulation.done if type(effect).__name__ == "Restart"]
    assert len(restarts) == 1
    assert restarts[0] - recycled_s >= LADDER.recycle_s


def test_after_a_restart_was_asked_for_nothing_more_is() -> None:
    simulation = Simulation()
    simulation.see(at(99), 100)
    assert simulation.governor.step == "restart"
    assert simulation.see(at(99), 50) == []


def test_an_engine_whose_replacement_helped_leads_back_down_and_not_to_a_restart() -> None:
    simulation = Simulation()
    simulation.see(at(93), 20)
    assert simulation.governor.step == "recycle"
    simulation.see(at(50), 60)
    assert simulation.named()[5:] == ["refuse_long", "unload_idle", "shrink_kv", "trim", "normal"]
    assert "Restart" not in simulation.kinds()


def test_what_was_taken_is_given_again_on_the_way_down() -> None:
    simulation = Simulation()
    simulation.see(at(86), 15)
    assert simulation.governor.step == "refuse_long"
    simulation.done.clear()
    simulation.see(at(50), 60)
    given = [effect for _, effect in simulation.done if isinstance(effect, (RefuseLong, ShrinkKv))]
    assert [effect.on for effect in given if isinstance(effect, RefuseLong)] == [False]
    assert [effect.share for effect in given if isinstance(effect, ShrinkKv)][-1] == 1.0


def test_a_figure_just_below_its_threshold_is_no_reason_to_give_back() -> None:
    simulation = Simulation()
    simulation.see(at(71))
    simulation.see(at(70 - LADDER.hysteresis_percent + 0.5), 200)
    assert simulation.governor.step == "trim"


def test_one_short_calm_is_no_reason_to_give_back() -> None:
    simulation = Simulation()
    simulation.see(at(71))
    for _ in range(50):
        simulation.see(at(50), 3)
        simulation.see(at(71), 1)
    assert simulation.named() == ["trim"]


def test_cheap_steps_are_taken_again_while_memory_stays_short() -> None:
    simulation = Simulation()
    simulation.see(at(81), 120)
    kinds = simulation.kinds()
    assert kinds.count("Trim") > 5
    assert kinds.count("UnloadIdle") > 3
    assert kinds.count("ShrinkKv") == 1


def test_where_others_hold_the_memory_neither_engine_nor_service_is_replaced() -> None:
    simulation = Simulation()
    simulation.see(at(99, own_bytes=100_000_000), 200)
    assert simulation.governor.step == "refuse_long"
    assert not {"Recycle", "Restart"} & set(simulation.kinds())


def test_an_alarm_of_the_kernel_is_answered_with_the_cheapest_step_whatever_the_figures_say() -> None:
    simulation = Simulation()
    simulation.see(at(10, alarmed=True))
    assert simulation.named() == ["trim"]
    assert MemoryGovernor(LADDER).apply(at(None, alarmed=True), 0.0)[-1].reason.startswith("the kernel reports")  # type: ignore[union-attr]


def test_stalls_with_little_memory_held_lead_to_cheap_steps_only() -> None:
    simulation = Simulation()
    simulation.see(at(40, stall_percent=30.0), 200)
    assert simulation.governor.step == "unload_idle"


def test_missing_figures_change_nothing() -> None:
    simulation = Simulation()
    simulation.see(at(76), 10)
    simulation.see(at(None), 200)
    assert simulation.governor.step == "shrink_kv"
    fresh = Simulation()
    fresh.see(at(None), 200)
    assert fresh.done == []


def test_a_clock_that_goes_back_is_taken_for_one_that_stands_still() -> None:
    simulation = Simulation()
    simulation.see(at(97), 2)
    simulation.now_s -= 500.0
    simulation.see(at(97), 90)
    assert simulation.named()[0] == "trim"
    assert len(simulation.steps) == 1
    simulation.see(at(97), 40)
    assert len(simulation.steps) > 1


def test_small_limits_are_left_earlier_than_large_ones() -> None:
    thresholds = [Ladder().thresholds(gib << 30) for gib in (1, 2, 4, 8, 16)]
    for smaller, larger in itertools.pairwise(thresholds):
        assert all(a <= b for a, b in zip(smaller, larger, strict=True))
    assert all(wrong_thresholds(percent) is None for percent in thresholds)


def test_thresholds_that_do_not_ascend_or_are_not_six_are_refused_with_the_reason() -> None:
    assert "6 steps" in (wrong_thresholds([70, 80]) or "")
    assert "higher" in (wrong_thresholds([70, 75, 75, 85, 90, 95]) or "")
    assert wrong_thresholds([]) is None


# --- growth of the engine ---


def test_an_engine_that_grows_is_trimmed_and_then_replaced_though_there_is_memory() -> None:
    simulation = Simulation()
    simulation.see(at(20, engine=engine(own_mb=449)), 20)
    assert simulation.kinds() == []
    simulation.see(at(20, engine=engine(own_mb=480)), 8)
    assert simulation.kinds() == ["Trim", "Recycle"]
    assert "480 MB" in simulation.done[-1][1].reason  # type: ignore[union-attr]


def test_one_large_run_is_no_growth() -> None:
    simulation = Simulation()
    for _ in range(50):
        simulation.see(at(20, engine=engine(own_mb=900)), 2)
        simulation.see(at(20, engine=engine(own_mb=310)), 1)
    assert simulation.kinds() == []


def test_the_new_engine_is_not_blamed_for_the_old_ones_memory() -> None:
    simulation = Simulation()
    simulation.see(at(20, engine=engine(1, own_mb=900)), 3)
    for number in range(2, 40):
        simulation.see(at(20, engine=engine(number, own_mb=900)), 3)
    assert "Recycle" not in simulation.kinds()


def test_an_engine_that_always_grows_is_replaced_less_and_less_often() -> None:
    simulation = Simulation()
    simulation.see(at(20, engine=engine(own_mb=900)), 6 * 3600 // 5)
    recycled = [when for when, effect in simulation.done if type(effect).__name__ == "Recycle"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(recycled)]
    assert 3 <= len(recycled) <= 7
    assert all(later > 1.8 * earlier for earlier, later in itertools.pairwise(gaps))


def test_a_small_engine_has_slack_beyond_the_percentage() -> None:
    simulation = Simulation()
    simulation.see(at(20, engine=engine(own_mb=120, planned_mb=60)), 100)
    assert simulation.kinds() == []


def test_without_a_plan_growth_is_not_judged() -> None:
    simulation = Simulation()
    simulation.see(at(20, engine=engine(own_mb=1900, planned_mb=None)), 100)
    assert simulation.kinds() == []


# --- an engine that crawls ---


class Crawling:
    """memory.high below the peak: pressure at the limit, throttled 5,000 times a second, hardly a run done."""

    def __init__(self) -> None:
        self.simulation = Simulation(Ladder(thresholds_percent=(70, 75, 80, 85, 99, 100)))
        self.high, self.runs, self.engine = 10, 0, 1

    def look(self, *, high: int, runs: int, busy: bool = True, percent: float = 50.0, times: int = 1) -> None:
        for _ in range(times):
            self.high += high
            self.runs += runs
            sight = at(percent, high_events=self.high, busy=busy, engine=engine(self.engine, runs=self.runs))
            self.simulation.see(sight)

    def kinds(self) -> list[str]:
        return [kind for kind in self.simulation.kinds() if kind in ("Shed", "Recycle", "Restart")]


def test_throttling_with_falling_throughput_sheds_at_once() -> None:
    crawling = Crawling()
    crawling.look(high=0, runs=100, times=10)
    crawling.look(high=25000, runs=1)
    assert crawling.kinds() == ["Shed"]
    assert crawling.simulation.governor.step == "refuse_long"
    assert "5000 times a second" in crawling.simulation.governor.reason


def test_one_that_crawls_from_the_start_is_found_though_nothing_usual_is_known() -> None:
    crawling = Crawling()
    crawling.look(high=25000, runs=0, times=2)
    assert crawling.kinds() == ["Shed"]


def test_no_better_after_half_a_minute_the_engine_is_replaced_and_then_the_service() -> None:
    crawling = Crawling()
    crawling.look(high=0, runs=100, times=10)
    began_s = crawling.simulation.now_s
    crawling.look(high=25000, runs=1, times=40)
    assert crawling.kinds() == ["Shed", "Recycle", "Restart"]
    recycled_s = next(t for t, e in crawling.simulation.done if type(e).__name__ == "Recycle")
    assert 30 <= recycled_s - began_s <= 40


def test_throttling_alone_is_no_crawl_while_the_work_goes_on() -> None:
    crawling = Crawling()
    crawling.look(high=0, runs=100, times=10)
    crawling.look(high=25000, runs=90, times=100)
    assert crawling.kinds() == []


def test_little_work_alone_is_no_crawl() -> None:
    crawling = Crawling()
    crawling.look(high=0, runs=100, times=10)
    crawling.look(high=0, runs=0, times=100)
    crawling.look(high=25000, runs=0, busy=False, times=100)
    assert crawling.kinds() == []


def test_one_that_recovers_is_not_replaced_and_the_ladder_goes_down() -> None:
    crawling = Crawling()
    crawling.look(high=0, runs=100, times=10)
    crawling.look(high=25000, runs=1, times=2)
    crawling.look(high=0, runs=100, times=100)
    assert crawling.kinds() == ["Shed"]
    assert crawling.simulation.governor.step == "normal"


def test_a_counter_that_begins_anew_is_no_throttling() -> None:
    crawling = Crawling()
    crawling.look(high=50000, runs=100, times=3)
    crawling.high = 0
    crawling.look(high=10, runs=0)
    assert crawling.kinds() == []


# --- what models may take ---


def test_models_are_told_when_others_take_memory_and_not_of_every_page() -> None:
    simulation = Simulation()
    for room in (900, 905, 890, 910, 500, 505):
        simulation.see(at(30, room_bytes=room * 1_000_000), 4)
    told = [effect.free_bytes for _, effect in simulation.done if isinstance(effect, ModelsMayTake)]
    assert told == [600_000_000 + 900_000_000, 600_000_000 + 500_000_000]
