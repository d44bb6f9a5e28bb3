"""Attention on aarch64 under an emulator, and under sanitizers."""

from __future__ import annotations

from dataclasses import replace

import kernel_builds
import numpy as np
import pytest
from attention_cases import AttentionDriver
from kernel_builds import Build
from test_kernel_attention import KINDS, fuzzed_cases, results, varied_calls, wrong_cases


@pytest.mark.parametrize(
    ("processor", "paths"),
    [
        ("max", ["reference", "neon", "dotprod"]),
        ("cortex-a76", ["reference", "neon", "dotprod"]),
        ("cortex-a72", ["reference", "neon"]),
    ],
)
def test_arm_gives_the_bits_of_this_machine(
    host_build: Build, arm_build: Build, processor: str, paths: list[str]
) -> None:
    here = AttentionDriver(host_build)
    arm = AttentionDriver(kernel_builds.on_processor(arm_build, processor))
    assert arm.paths() == paths
    for kind in KINDS:
        calls = varied_calls(np.random.default_rng(20), kind)
        exact = results(here, here.paths()[-1], calls)
        # The reference is the same code on every processor: where it is fast (here), it has its own test.
        for path in paths[1:]:
            for one, other in zip(exact, results(arm, path, calls), strict=True):
                assert one.tobytes() == other.tobytes(), path


def test_no_call_reads_or_writes_beyond_its_buffers_or_does_what_is_undefined(host_build: Build) -> None:
    """Right calls on every path, wrong ones, and several hundred that may be either."""
    driver = AttentionDriver(kernel_builds.build_sanitized("address,undefined"))
    rng = np.random.default_rng(21)
    right = [call for kind in KINDS for call in varied_calls(rng, kind)]
    *others, fastest = driver.paths()
    results(driver, fastest, right)
    for path in others:
        results(driver, path, right[::9])
    fuzzed = fuzzed_cases(rng, 600)
    answers = driver.run(fastest, [*wrong_cases(rng), *fuzzed])
    succeeded = [not answer.error for answer in answers[-len(fuzzed) :]]
    assert any(succeeded)
    assert not all(succeeded)
    assert all(answer.untouched for answer in answers if answer.error)


@pytest.mark.slow
def test_threads_share_partial_sums_in_order(host_build: Build) -> None:
    driver = AttentionDriver(kernel_builds.build_sanitized("thread"))
    rng = np.random.default_rng(22)
    calls = []
    for kind in KINDS:
        for call in varied_calls(rng, kind)[::7]:
            calls += [call, *(replace(call, threads=4, runners=3, seed=seed) for seed in (1, 2))]
    found = results(driver, driver.paths()[-1], calls)
    for at in range(0, len(found), 3):
        assert found[at].tobytes() == found[at + 1].tobytes() == found[at + 2].tobytes()
