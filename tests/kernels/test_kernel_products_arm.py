"""Products on aarch64: each path, on processors with and without the newer instructions, to the bit of the others."""

from __future__ import annotations

import kernel_builds
import numpy as np
import pytest
from kernel_builds import Build
from kernel_driver import Driver, command
from kernel_library import Library
from product_cases import KINDS, expected, random_weights

# What an emulated processor must offer; the last is what it chooses by itself.
PROCESSORS = {
    "max": ["reference", "neon", "dotprod", "i8mm"],
    "cortex-a76": ["reference", "neon", "dotprod"],  # Raspberry Pi 5 and the big cores of RK3588
    "cortex-a72": ["reference", "neon"],  # Raspberry Pi 4
}

SHAPES = [(1, 1, 1), (9, 33, 2), (17, 640, 8), (40, 330, 13), (8, 64, 4)]


@pytest.fixture(params=PROCESSORS)
def processor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def driver(arm_build: Build, processor: str) -> Driver:
    return Driver(kernel_builds.on_processor(arm_build, processor))


def test_a_processor_gets_the_paths_that_it_has(driver: Driver, processor: str) -> None:
    assert driver.isas() == PROCESSORS[processor]


def test_every_path_gives_the_bits_that_this_machine_gives(driver: Driver, processor: str, library: Library) -> None:
    rng = np.random.default_rng(21)
    commands = []
    wanted = []
    for kind in KINDS.values():
        for n, k, m in SHAPES:
            weights = random_weights(rng, kind, n, k)
            x = (rng.standard_normal((m, k)) * 10.0 ** rng.integers(-3, 4, (m, k))).astype(np.float32)
            x[m // 2, k // 2] = np.nan if (n, m) == (40, 13) else 1e6
            packed = library.pack(kind, n, k, weights.values, weights.scales, weights.minima)
            commands.append(weights.command(x))
            wanted.append(library.product(packed, x, n))
    for isa in PROCESSORS[processor]:
        answers = driver.results([command(f"isa {isa}"), *commands])[1:]
        for answer, y in zip(answers, wanted, strict=True):
            got = np.frombuffer(answer, np.float32).reshape(y.shape)
            # A NaN's payload is the one thing that processors differ in.
            assert np.where(np.isnan(got), 0, got).tobytes() == np.where(np.isnan(y), 0, y).tobytes(), isa
            assert (np.isnan(got) == np.isnan(y)).all(), isa


def test_threads_change_no_bit(driver: Driver) -> None:
    rng = np.random.default_rng(22)
    weights = random_weights(rng, KINDS["int4"], 520, 320)
    x = rng.standard_normal((5, 320)).astype(np.float32)
    product = weights.command(x)
    answers = driver.results([product, command("pool 3"), product, command("pool 2"), product])
    assert answers[0] == answers[2] == answers[4]
    y, tolerance = expected(weights, x)
    assert (np.abs(np.frombuffer(answers[0], np.float32).reshape(y.shape) - y) <= tolerance).all()


def test_a_build_without_neon_has_the_reference_alone(arm_build: Build) -> None:
    """ENABLE_NEON=OFF is for finding out whether a fault is in the paths or before them."""
    driver = Driver(kernel_builds.on_processor(kernel_builds.build_arm("-DENABLE_NEON=OFF"), "max"))
    assert driver.isas() == ["reference"]
