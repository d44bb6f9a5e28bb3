"""The whole library under sanitizers: no access beyond a buffer, no undefined behaviour, no data race."""

from __future__ import annotations

import kernel_builds
import numpy as np
import pytest
from kernel_builds import Build
from kernel_driver import Command, Driver, Refused, command
from kernel_library import Library
from product_cases import KINDS, attention_command, random_weights

SHAPES = [(1, 1, 1), (7, 31, 3), (9, 33, 2), (17, 640, 9), (40, 330, 13), (8, 32, 0)]


def products(rng: np.random.Generator) -> list[Command]:
    """Products of all kinds; their buffers in the driver are exactly as large as they must be."""
    commands = []
    for kind in KINDS.values():
        for n, k, m in SHAPES:
            x = rng.standard_normal((m, k)).astype(np.float32)
            if m > 2:
                x[0], x[1] = 3e38, np.nan
            commands.append(random_weights(rng, kind, n, k).command(x))
    return commands


def test_no_address_is_beyond_its_buffer_and_no_behaviour_undefined(host_build: Build, library: Library) -> None:
    driver = Driver(kernel_builds.build_sanitized("address,undefined"))
    rng = np.random.default_rng(41)
    commands = products(rng)
    commands += [attention_command(rng, over_bytes, rows) for over_bytes in (False, True) for rows in (1, 130)]
    for isa in driver.isas():
        assert len(driver.results([command(f"isa {isa}"), *commands])) == len(commands) + 1
    # Packed weights that are damaged anywhere: an error or, beyond the header, some numbers; never a wild access.
    weights = random_weights(rng, KINDS["int4"], 20, 100)
    packed = library.pack(KINDS["int4"], 20, 100, weights.values, weights.scales)
    x = rng.standard_normal((2, 100)).astype(np.float32)
    damaged = []
    for i in range(300):
        copy = packed.copy()
        if i % 3 == 0:
            copy = copy[: rng.integers(0, len(packed))]
        elif i % 3 == 1:
            copy[rng.integers(0, 64, 4)] = rng.integers(0, 256, 4)
        else:
            copy[64:] = rng.integers(0, 256, len(packed) - 64)
        damaged.append(command(f"packed 20 100 2 {len(copy)}", copy.tobytes(), x.tobytes()))
    answers = driver.run(damaged)
    assert any(isinstance(answer, Refused) for answer in answers)
    assert any(isinstance(answer, bytes) for answer in answers)


@pytest.mark.slow
def test_threads_share_nothing_without_an_order(host_build: Build) -> None:
    """Several callers, a pool that is made wider and narrower, and products on it."""
    driver = Driver(kernel_builds.build_sanitized("thread"))
    rng = np.random.default_rng(42)
    weights = random_weights(rng, KINDS["int4_minimum"], 700, 320)
    product = weights.command(rng.standard_normal((5, 320)).astype(np.float32))
    attention = attention_command(rng, True, 40)
    commands = [product, attention]
    for threads in (2, 4, 1, 3, 2):
        commands += [
            command(f"pool {threads}"),
            command("runs 3 300 97"),
            product,
            command("runs 1 300 3"),
            attention,
        ]
    answers = driver.results(commands)
    sums = [int.from_bytes(answer, "little") for answer in answers if len(answer) == 8]
    assert sums == [3 * 300 * 97 * 96 // 2, 300 * 3] * 5
    assert len({answer for answer in answers if len(answer) > 8}) == 2
