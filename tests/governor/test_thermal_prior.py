from __future__ import annotations

import pytest

from magnitude.board.profiles import load_profile
from magnitude.governor.thermal_prior import limits_of, prior_of
from magnitude.governor.thermal_terms import ClusterSight

BOARDS = ["pi5-bare", "pi5-cooler", "rock5b", "generic-arm", "generic-x86"]


@pytest.mark.parametrize("name", BOARDS)
def test_higher_levels_are_faster_take_more_and_cap_at_clocks_that_the_board_has(name: str) -> None:
    profile = load_profile(name)
    prior = prior_of(profile)
    known = {opp.khz for cluster in profile.clusters for opp in cluster.opps}
    for low, high in zip(prior.levels, prior.levels[1:], strict=False):
        assert low.prefill_rate < high.prefill_rate
        assert low.prefill_w < high.prefill_w
        for slower, faster in zip(low.decode, high.decode, strict=True):
            assert slower.rate <= faster.rate
            assert slower.watts < faster.watts
        assert set(low.caps_khz.values()) <= known
    assert set(prior.levels[-1].caps_khz.values()) == {None}
    assert prior.levels[-1].prefill_rate == 1.0


@pytest.mark.parametrize("name", BOARDS)
def test_the_net_lies_between_target_and_the_boards_own_limit(name: str) -> None:
    limits = limits_of(load_profile(name))
    assert limits.up_c < limits.target_c < limits.down_c < limits.soft_c


def test_only_boards_that_somebody_has_described_are_expected_to_have_a_sensor() -> None:
    assert limits_of(load_profile("pi5-bare")).expects_sensor
    assert not limits_of(load_profile("generic-x86")).expects_sensor


def test_only_the_clusters_that_compute_are_capped() -> None:
    assert set(prior_of(load_profile("rock5b")).levels[0].caps_khz) == {"policy4", "policy6"}


def test_levels_use_the_clocks_that_this_kernel_offers() -> None:
    offered = (600_000, 1_700_000, 2_400_000)
    shown = ClusterSight(name="policy0", cpus=4, opps_khz=offered)
    prior = prior_of(load_profile("pi5-bare"), [shown])
    assert {level.caps_khz["policy0"] for level in prior.levels} <= {*offered, None}


def test_on_a_raspberry_pi_5_answers_are_fastest_on_two_threads_or_three_and_one_is_no_choice() -> None:
    top = prior_of(load_profile("pi5-bare")).levels[-1]
    rates = {answering.threads: answering.rate for answering in top.decode}
    assert 1 not in rates
    assert rates[2] > rates[4]
    assert rates[4] == pytest.approx(1.0)


def test_an_engine_with_one_pool_of_threads_has_no_choice() -> None:
    prior = prior_of(load_profile("pi5-bare"), threads=4)
    assert {answering.threads for level in prior.levels for answering in level.decode} == {4}


def test_on_a_machine_with_a_policy_for_each_cpu_all_of_them_are_capped_at_their_own_clocks() -> None:
    shown = [ClusterSight(name=f"policy{cpu}", cpus=1, opps_khz=(800_000, 1_600_000, 3_200_000)) for cpu in range(4)]
    prior = prior_of(load_profile("generic-x86"), shown)
    assert set(prior.levels[0].caps_khz) == {f"policy{cpu}" for cpu in range(4)}
    assert set(prior.levels[0].caps_khz.values()) <= {800_000, 1_600_000}
