"""Modelled energy: what work adds, by the board's profile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.board.energy_model import modelled_j, phase_w
from magnitude.board.profiles import load_profile, profile_names

PI5 = load_profile("pi5-bare")


@pytest.mark.parametrize("name", profile_names())
def test_more_threads_take_more_power_and_prompts_more_than_answers(name: str) -> None:
    profile = load_profile(name)
    cores = len(profile.clusters[0].cpus)
    for threads in range(1, cores):
        assert phase_w(profile, "prefill", threads) < phase_w(profile, "prefill", threads + 1)
    assert phase_w(profile, "decode", 1) > 0


def test_a_pi_that_reads_prompts_on_all_cores_takes_what_was_measured_of_one() -> None:
    """7.7 W of its rails under load (ml-energy/zeus#273, as the profile says), idle included; within a fifth."""
    assert modelled_j(PI5, took_s=1, prefill_s=1, prefill_threads=4, decode_s=0, decode_threads=1) == pytest.approx(
        7.7, rel=0.2
    )


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100), st.integers(1, 4), st.integers(1, 4))
def test_energy_is_what_idle_takes_and_what_each_phase_adds(
    rest_s: float, prefill_s: float, decode_s: float, prefill_threads: int, decode_threads: int
) -> None:
    def energy(took_s: float, prefill_s: float, decode_s: float) -> float:
        return modelled_j(
            PI5,
            took_s=took_s,
            prefill_s=prefill_s,
            prefill_threads=prefill_threads,
            decode_s=decode_s,
            decode_threads=decode_threads,
        )

    took_s = rest_s + prefill_s + decode_s
    apart = energy(took_s, 0, 0) + prefill_s * phase_w(PI5, "prefill", prefill_threads)
    apart += decode_s * phase_w(PI5, "decode", decode_threads)
    assert energy(took_s, prefill_s, decode_s) == pytest.approx(apart)
