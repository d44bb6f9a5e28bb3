"""The service's rounding of KV to bytes, which it needs to move keys, against what the kernels write."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_library import KvCache, Library

from magnitude.engine.kv_bytes import quantise


@pytest.mark.parametrize("head_size", [8, 64, 128])
def test_the_service_rounds_keys_to_the_bytes_that_the_kernels_append(library: Library, head_size: int) -> None:
    rng = np.random.default_rng(head_size)
    rows = 2000
    keys = (rng.standard_normal((rows, head_size)) * 2.0 ** rng.integers(-90, 90, (rows, 1))).astype(np.float32)
    keys[::7, 3] *= np.float32(1000)
    keys[::11] = np.rint(keys[::11] * 8) / 8  # ties between two steps
    keys[0], keys[1, 2], keys[2, 5], keys[3] = 0, np.nan, np.inf, 2.0**-101
    cache = KvCache.empty((1, 1, rows, head_size), over_bytes=True)
    library.append(cache, np.zeros(rows), np.arange(rows), keys, keys)

    codes, scales = np.empty((rows, head_size), np.int8), np.empty(rows, np.float32)
    quantise(keys.copy(), codes, scales)
    assert (codes == cache.arrays["keys"][0, 0]).all()
    assert np.array_equal(scales, cache.arrays["key_scales"][0, 0], equal_nan=True)
