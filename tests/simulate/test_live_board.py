"""A simulated board beside a service: what work does to it, and what its clocks do to the engine's pace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnitude.board.profiles import load_profile
from magnitude.board.roots import HostRoots
from magnitude.board.workload import ModelCost
from magnitude.models.catalogue import open_folder
from magnitude.schedule.pacing import FULL, Shares
from magnitude.schedule.phase_meter import PhaseTimes
from magnitude.schedule.present_work import IDLE, PresentWork
from magnitude.simulate.live import LEAST_SHARE, LiveBoard, SimulateOptions, cost_of, shares_at
from processor_heat import processor_temp_c

GOLDEN = Path(__file__).parents[1] / "golden"
COST = ModelCost(weight_bytes=500e6, macs_per_token=900e6)
PREFILL = PresentWork(phase="prefill", entering=1, model="m")
DECODE = PresentWork(phase="decode", decoding=1, model="m")
LIMIT = "devices/system/cpu/cpufreq/policy0/scaling_max_freq"


class Meter:
    """An engine that writes answers all the time."""

    def __init__(self) -> None:
        self.looks = 0

    def present(self) -> PresentWork:
        return DECODE

    def times(self) -> PhaseTimes:
        self.looks += 1
        return PhaseTimes(decode_s=0.1 * self.looks)


def board(folder: Path, name: str = "pi5-bare", **options: float) -> LiveBoard:
    return LiveBoard(load_profile(name), SimulateOptions(board=name, **options), folder)  # type: ignore[arg-type]


@pytest.fixture
def pi(tmp_path: Path) -> Iterator[LiveBoard]:
    live = board(tmp_path)
    yield live
    live.close()


def temp_c(live: LiveBoard) -> float:
    found = processor_temp_c(live.roots, live.profile)
    assert found is not None
    return found


def after(live: LiveBoard, seconds: float, work: PresentWork, duty: Shares = FULL) -> Shares:
    shares = FULL
    for _ in range(round(seconds)):
        shares = live.advance(1.0, work, COST, duty)
    return shares


def test_work_warms_it_and_rest_cools_it_in_the_files_that_sensors_are_read_from(pi: LiveBoard):
    idle_c = temp_c(pi)
    after(pi, 60, PREFILL)
    warm_c = temp_c(pi)
    after(pi, 60, IDLE)
    assert idle_c < temp_c(pi) < warm_c


def test_a_cool_board_does_not_slow_the_engine_down(pi: LiveBoard):
    assert after(pi, 5, DECODE) == FULL
    assert after(pi, 1, IDLE) == FULL


@pytest.mark.parametrize("work", [PREFILL, DECODE, IDLE])
def test_a_limit_in_the_tree_slows_it_down_as_the_rates_predict(pi: LiveBoard, work: PresentWork):
    (pi.roots.sys / LIMIT).write_text("1600000\n")
    expected = shares_at(pi.profile, {"policy0": 1_600_000}, COST)
    assert after(pi, 3, work) == expected
    assert expected.prefill == pytest.approx(2 / 3)
    assert 2 / 3 < expected.decode < 1
    (pi.roots.sys / LIMIT).write_text("2400000\n")
    assert after(pi, 3, work) == FULL


def test_the_firmware_of_a_hot_board_slows_the_engine_down_though_the_clock_is_not_capped(tmp_path: Path):
    hot = board(tmp_path, start_c=84.0)
    shares = after(hot, 2, PREFILL)
    assert shares.prefill < 1
    assert (hot.roots.sys / LIMIT).read_text().strip() == "2400000"
    hot.close()


def test_an_engine_that_is_paced_by_others_warms_it_less(tmp_path: Path):
    always, seldom = board(tmp_path / "one"), board(tmp_path / "two")
    after(always, 60, PREFILL)
    after(seldom, 60, PREFILL, Shares(prefill=0.2, decode=1.0))
    assert temp_c(seldom) < temp_c(always)
    always.close()
    seldom.close()


def test_work_that_came_and_went_between_two_looks_warms_it_too(tmp_path: Path):
    never, between = board(tmp_path / "one"), board(tmp_path / "two")
    for _ in range(60):
        never.advance(1.0, IDLE, COST)
        between.advance(1.0, IDLE, COST, FULL, [(0.2, IDLE), (0.2, PREFILL)])
    assert temp_c(between) > temp_c(never)
    assert between.state().passed_s == never.state().passed_s
    never.close()
    between.close()


def test_its_time_can_pass_faster_than_ours(tmp_path: Path):
    plain, fast = board(tmp_path / "one"), board(tmp_path / "two", speed=20.0)
    after(plain, 20, PREFILL)
    after(fast, 20, PREFILL)
    assert fast.state().passed_s == 20 * plain.state().passed_s == 400
    assert temp_c(fast) > temp_c(plain)
    plain.close()
    fast.close()


def test_a_limit_of_an_earlier_service_is_gone_with_its_files(tmp_path: Path):
    first = board(tmp_path)
    (first.roots.sys / LIMIT).write_text("1500000\n")
    noted = first.run_folder / "caps.json"
    noted.write_text("{}")
    first.close()
    second = board(tmp_path)
    assert after(second, 1, DECODE) == FULL
    assert not noted.exists()
    second.close()


def test_only_sensors_and_clocks_are_simulated(pi: LiveBoard):
    real = HostRoots()
    assert (pi.roots.proc, pi.roots.cgroup) == (real.proc, real.cgroup)
    assert pi.roots.sys != real.sys


def test_a_closed_board_stands_still(tmp_path: Path):
    live = board(tmp_path)
    live.close()
    before = live.state()
    live.advance(5.0, PREFILL, COST)
    assert live.state() == before


def test_no_clock_leaves_nothing(tmp_path: Path):
    assert shares_at(load_profile("pi5-bare"), {"policy0": 1.0}, COST).prefill == LEAST_SHARE
    assert shares_at(load_profile("pi5-bare"), {"policy0": 1.0}, None) == FULL


def test_what_a_model_costs_goes_by_its_weights():
    model = open_folder(GOLDEN / "genai_tiny_llama")
    cost = cost_of(model, past_tokens=12)
    assert cost.weight_bytes == model.weight_bytes
    assert cost.macs_per_token == pytest.approx(model.weight_bytes * 8 / 4.5)
    assert model.decoder is not None
    assert (cost.kv_bytes_per_token, cost.past_tokens) == (model.decoder.kv_bytes_per_token(), 12)


def test_it_lives_beside_the_service_and_says_its_shares(pi: LiveBoard):
    (pi.roots.sys / LIMIT).write_text("1500000\n")
    told: list[Shares] = []
    meter = Meter()

    async def main() -> None:
        said = asyncio.Event()

        def pace(shares: Shares) -> None:
            told.append(shares)
            if len(told) == 2:
                said.set()

        running = asyncio.create_task(pi.run(meter, lambda work: COST, lambda: FULL, pace))
        await said.wait()
        running.cancel()

    asyncio.run(main())
    assert told[-1] == shares_at(pi.profile, {"policy0": 1_500_000}, COST)
    assert pi.state().passed_s > 0
