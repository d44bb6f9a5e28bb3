"""Counters: every call of every operator, with what it had to read."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_builds import build
from kernel_library import KvCache, Library
from product_cases import INT4, random_weights


def compute(library: Library) -> None:
    """Three rows through a product twice, and through attention over bytes at positions 0…2."""
    rng = np.random.default_rng(61)
    weights = random_weights(rng, INT4, 16, 64)
    packed = library.pack(INT4, 16, 64, weights.values, weights.scales)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    for _ in range(2):
        library.product(packed, x, 16)
    cache = KvCache.empty((1, 1, 128, 8), over_bytes=True)
    rows = rng.standard_normal((3, 1, 8)).astype(np.float32)
    slots, positions = np.zeros(3), np.arange(3)
    library.append(cache, slots, positions, rows, rows)
    library.attend(cache, slots, positions, rows)


def test_calls_rows_and_bytes_are_counted(library: Library) -> None:
    library.reset_counters()
    compute(library)
    counters = library.counters()
    times = {name: counter.pop("nanoseconds") for name, counter in counters.items()}
    assert counters["product"] == {
        "calls": 2,
        "rows": 6,
        # Two calls, two tiles of 8 outputs, two blocks with scales and values.
        "weight_bytes": 2 * 2 * 2 * (16 + 128),
        "kv_bytes": 0,
    }
    # Keys and values of 8 bytes, each with a scale of 4.
    assert counters["append"] == {"calls": 1, "rows": 3, "weight_bytes": 0, "kv_bytes": 3 * 2 * (8 + 4)}
    assert counters["attention_over_bytes"] == {"calls": 1, "rows": 3, "weight_bytes": 0, "kv_bytes": 3 * 2 * (8 + 4)}
    assert counters["attention"] == {"calls": 0, "rows": 0, "weight_bytes": 0, "kv_bytes": 0}
    assert times["product"] > 0
    assert times["attention"] == 0


def test_a_reset_sets_all_to_zero(library: Library) -> None:
    compute(library)
    library.reset_counters()
    assert all(number == 0 for counter in library.counters().values() for number in counter.values())


def test_a_call_that_is_refused_is_not_counted(library: Library) -> None:
    library.reset_counters()
    with pytest.raises(Exception, match="packed"):
        library.product(np.zeros(100, np.uint8), np.zeros((1, 32), np.float32), 8)
    assert library.counters()["product"]["calls"] == 0


def test_a_build_without_profiling_counts_nothing(library: Library) -> None:
    """The option changes what is counted and not what comes out."""
    options = ("-DENABLE_PROFILING=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O1")
    folder = build("unprofiled", *options, target="magnitude_kernels")
    unprofiled = Library(folder / "libmagnitude_kernels.so")
    compute(unprofiled)
    assert all(number == 0 for counter in unprofiled.counters().values() for number in counter.values())
