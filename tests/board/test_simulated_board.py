"""The simulated board as its users see it: caps, clocks, flags, fan, speed and energy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.board.profiles import load_profile, profile_names
from magnitude.board.sim.board import SimulatedBoard, rates
from magnitude.board.workload import ModelCost, Work

MODEL = ModelCost(weight_bytes=398e6, macs_per_token=0.494e9, kv_bytes_per_token=12288)
PREFILL = Work(phase="prefill", threads=4, model=MODEL)
DECODE = Work(phase="decode", threads=4, model=MODEL)
IDLE = Work(phase="idle", threads=1)


def bare(ambient_c: float = 25.0) -> SimulatedBoard:
    return SimulatedBoard(load_profile("pi5-bare"), ambient_c=ambient_c)


def test_clocks_go_up_with_load_and_down_at_rest() -> None:
    board = bare()
    assert board.snapshot().clocks[0].cur_khz == 1_500_000
    board.advance(0.05, PREFILL)
    assert board.snapshot().clocks[0].cur_khz == 1_500_000, "a governor needs a moment to see the load"
    board.advance(0.15, PREFILL)
    assert board.snapshot().clocks[0].cur_khz == 2_400_000
    board.advance(0.2, IDLE)
    assert board.snapshot().clocks[0].cur_khz == 1_500_000


@pytest.mark.parametrize(
    ("cap", "in_force"),
    [(2_000_000, 2_000_000), (2_050_000, 2_000_000), (100_000, 1_500_000), (9_000_000, 2_400_000), (None, 2_400_000)],
)
def test_a_cap_holds_at_the_operating_point_that_it_allows(cap: int | None, in_force: int) -> None:
    board = bare()
    board.set_cap("policy0", cap)
    board.advance(1.0, PREFILL)
    policy = board.snapshot().clocks[0]
    assert policy.cap_khz == policy.cur_khz == in_force


def test_a_policy_that_the_board_does_not_have_cannot_be_capped() -> None:
    with pytest.raises(KeyError):
        bare().set_cap("policy4", 1_500_000)


def test_a_lower_cap_makes_prefill_slower_in_proportion_and_saves_more_than_that() -> None:
    fast, slow = bare(), bare()
    slow.set_cap("policy0", 1_500_000)
    for board in (fast, slow):
        board.advance(1.0, PREFILL)
    quick, saved = fast.advance(1.0, PREFILL), slow.advance(1.0, PREFILL)
    assert saved.prefill_tokens / quick.prefill_tokens == pytest.approx(1.5 / 2.4)
    assert saved.chip_energy_j / saved.prefill_tokens < quick.chip_energy_j / quick.prefill_tokens


def test_decode_hardly_depends_on_the_clock_once_memory_is_saturated() -> None:
    profile = load_profile("pi5-bare")
    at = {
        khz: rates(profile, {"policy0": khz}, 4, MODEL).decode_tokens_s for khz in (1_500_000, 2_000_000, 2_400_000)
    }
    assert at[1_500_000] < at[2_000_000] < at[2_400_000]
    assert at[1_500_000] > 0.95 * at[2_400_000]


def test_sequences_that_decode_together_share_the_reading_of_the_weights() -> None:
    profile = load_profile("pi5-bare")
    one, four = (rates(profile, {}, 4, MODEL, rows).decode_tokens_s for rows in (1, 4))
    assert 3 * one < four < 4 * one


def test_a_longer_past_makes_a_step_slower() -> None:
    profile = load_profile("pi5-bare")
    long = ModelCost(weight_bytes=398e6, macs_per_token=0.494e9, kv_bytes_per_token=12288, past_tokens=8000)
    assert rates(profile, {}, 4, long).decode_tokens_s < rates(profile, {}, 4, MODEL).decode_tokens_s


def test_pauses_between_steps_lower_speed_and_heat_alike() -> None:
    whole, half = bare(), bare()
    done = whole.advance(300.0, DECODE)
    paced = half.advance(300.0, Work(phase="decode", threads=4, model=MODEL, duty=0.5))
    assert paced.decode_tokens == pytest.approx(done.decode_tokens / 2, rel=0.02)
    assert half.temp_c < whole.temp_c
    assert paced.inter_token_s == pytest.approx(2 * (done.inter_token_s or 0.0), rel=0.02)


def test_prompts_that_enter_while_answers_run_slow_both() -> None:
    board = bare()
    board.advance(1.0, DECODE)
    both = board.advance(1.0, Work(phase="mixed", threads=4, rows=1, model=MODEL))
    alone = rates(board.profile, {}, 4, MODEL)
    assert 0 < both.prefill_tokens < alone.prefill_tokens_s
    assert 0 < both.decode_tokens < alone.decode_tokens_s


def test_firmware_throttling_shows_in_the_flags_and_not_in_the_kernels_clock() -> None:
    board = bare(ambient_c=35)
    board.advance(600.0, PREFILL)
    snapshot = board.snapshot()
    assert snapshot.firmware.now is not None
    assert snapshot.firmware.now.soft_limit
    assert snapshot.clocks[0].cur_khz == 2_400_000
    assert board.effective_khz["policy0"] < 2_400_000
    board.advance(1800.0, IDLE)
    cooled = board.snapshot().firmware
    assert cooled.now is not None
    assert not cooled.now.soft_limit
    assert cooled.since_boot is not None
    assert cooled.since_boot.soft_limit, "the firmware remembers until the next boot"


def test_throttling_never_raises_a_capped_clock() -> None:
    board = bare(ambient_c=40)
    board.set_cap("policy0", 1_600_000)
    for _ in range(1200):
        board.advance(1.0, PREFILL)
        assert board.effective_khz["policy0"] <= 1_600_000
    assert board.temp_c > 80, "else this shows nothing"


def test_kernel_throttling_shows_as_a_lower_limit_of_the_policy() -> None:
    board = SimulatedBoard(load_profile("rock5b"), ambient_c=35)
    hottest = 0.0
    for _ in range(1800):
        board.advance(1.0, PREFILL)
        hottest = max(hottest, board.temp_c)
    big = board.snapshot().clocks[1]
    assert big.max_khz is not None
    assert big.cap_khz is not None
    assert big.cap_khz < big.max_khz
    assert board.snapshot().firmware.now is None
    assert 83 < hottest < 88


def test_the_fan_goes_down_only_five_degrees_below_its_step() -> None:
    board = SimulatedBoard(load_profile("pi5-cooler"), ambient_c=23)
    heated = [(board.snapshot().hottest_c or 0.0, board.snapshot().fans[0].state)]
    for work in (PREFILL, IDLE):
        for _ in range(1200):
            board.advance(1.0, work)
            heated.append((board.snapshot().hottest_c or 0.0, board.snapshot().fans[0].state))
    going_up = next(temp_c for temp_c, state in heated if state == 1)
    going_down = next(temp_c for temp_c, state in reversed(heated) if state == 1)
    assert going_up >= 50
    assert 45 <= going_down < 46.5


def test_the_same_work_in_other_steps_of_time_gives_the_same_heat() -> None:
    coarse, fine = bare(), bare()
    coarse.advance(60.0, DECODE)
    for _ in range(600):
        fine.advance(0.1, DECODE)
    assert coarse.temp_c == pytest.approx(fine.temp_c, abs=0.05)


@settings(max_examples=60, deadline=None)
@given(
    board=st.sampled_from(profile_names()),
    ambient_c=st.floats(-10, 50),
    works=st.lists(
        st.builds(
            Work,
            phase=st.sampled_from(["idle", "prefill", "decode", "mixed"]),
            threads=st.integers(1, 8),
            rows=st.integers(1, 8),
            duty=st.floats(0, 1),
            model=st.just(MODEL),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_a_board_never_cools_below_the_air_nor_makes_energy(board: str, ambient_c: float, works: list[Work]) -> None:
    simulated = SimulatedBoard(load_profile(board), ambient_c=ambient_c)
    for work in works:
        done = simulated.advance(20.0, work)
        assert simulated.temp_c >= ambient_c
        assert 0 < done.chip_energy_j <= done.energy_j
        assert done.decode_tokens >= 0
        assert done.prefill_tokens >= 0
        for policy in simulated.snapshot().clocks:
            assert policy.cur_khz in policy.opps_khz
            assert policy.cap_khz in policy.opps_khz
