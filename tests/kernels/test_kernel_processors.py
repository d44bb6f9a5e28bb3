"""The library on other processors, older and newer than this one: each path they have, to the bit of this one's."""

from __future__ import annotations

import kernel_builds
import numpy as np
import pytest
from kernel_builds import Build
from kernel_driver import Command, Driver, command
from product_cases import KINDS, attention_command, expected, random_weights
from test_kernel_row_math import rows_of

# What an emulated processor must offer; the last is what it chooses by itself.
ARM = {
    "max": ["reference", "neon", "dotprod", "i8mm"],
    "cortex-a76": ["reference", "neon", "dotprod"],  # Raspberry Pi 5 and the big cores of RK3588
    "cortex-a72": ["reference", "neon"],  # Raspberry Pi 4
}
X86 = {
    "Haswell": ["reference", "avx2"],
    "Denverton": ["reference"],  # Atoms of small servers have no AVX
}
PROCESSORS = {"aarch64": ARM, "x86_64": X86}
SHAPES = [(1, 1, 1), (9, 33, 2), (17, 640, 8), (40, 330, 13), (8, 64, 4)]


@pytest.fixture(params=[(machine, name) for machine, names in PROCESSORS.items() for name in names], ids="-".join)
def processor(request: pytest.FixtureRequest) -> tuple[str, str]:
    machine, name = request.param
    return machine, name


@pytest.fixture
def driver(processor: tuple[str, str], request: pytest.FixtureRequest) -> Driver:
    machine, name = processor
    build = request.getfixturevalue("arm_build" if machine == "aarch64" else "x86_build")
    return Driver(kernel_builds.on_processor(build, name, machine))


def calls(rng: np.random.Generator) -> list[Command]:
    """Norms, gates, products of all kinds, one of them with a NaN and one with an outlier, and attention."""
    commands = rows_of(rng) + [
        attention_command(rng, over_bytes, 140, window) for over_bytes in (False, True) for window in (0, 9)
    ]
    for kind in KINDS.values():
        for n, k, m in SHAPES:
            x = (rng.standard_normal((m, k)) * 10.0 ** rng.integers(-3, 4, (m, k))).astype(np.float32)
            x[m // 2, k // 2] = np.nan if m == 13 else 1e6
            commands.append(random_weights(rng, kind, n, k).command(x))
    return commands


def test_a_processor_gets_the_paths_that_it_has(driver: Driver, processor: tuple[str, str]) -> None:
    machine, name = processor
    assert driver.isas() == PROCESSORS[machine][name]


def test_every_path_gives_the_bits_that_this_machine_gives(host_driver: Driver, driver: Driver) -> None:
    commands = calls(np.random.default_rng(21))
    wanted = host_driver.results(commands)
    for isa in driver.isas():
        answers = driver.results([command(f"isa {isa}"), *commands])[1:]
        for answer, right in zip(answers, wanted, strict=True):
            got, y = np.frombuffer(answer, np.float32), np.frombuffer(right, np.float32)
            # A NaN's payload is the one thing that processors differ in.
            assert (np.isnan(got) == np.isnan(y)).all(), isa
            assert np.where(np.isnan(got), 0, got).tobytes() == np.where(np.isnan(y), 0, y).tobytes(), isa


def test_threads_change_no_bit(driver: Driver) -> None:
    rng = np.random.default_rng(22)
    weights = random_weights(rng, KINDS["int4"], 520, 320)
    x = rng.standard_normal((5, 320)).astype(np.float32)
    both = [weights.command(x), attention_command(rng, True, 40)]
    answers = driver.results([*both, command("pool 3"), *both, command("pool 2"), *both])
    assert answers[0:2] == answers[3:5] == answers[6:8]
    y, tolerance = expected(weights, x)
    assert (np.abs(np.frombuffer(answers[0], np.float32).reshape(y.shape) - y) <= tolerance).all()


def test_a_build_without_neon_has_the_reference_alone(arm_build: Build) -> None:
    """ENABLE_NEON=OFF is for finding out whether a fault is in the paths or before them."""
    driver = Driver(kernel_builds.on_processor(kernel_builds.build_arm("-DENABLE_NEON=OFF"), "max"))
    assert driver.isas() == ["reference"]
