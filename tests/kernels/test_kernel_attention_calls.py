"""Appends and attention through the C interface: what comes out, and that no way of calling changes a bit of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import attention_cases
import numpy as np
import pytest
from kernel_driver import Refused
from kernel_library import KvCache, Library

SHAPE = (3, 2, 300, 64)  # slots, kv_heads, positions, head_size
HEADS = 6
SLOT = 1


@dataclass(frozen=True)
class Sequence:
    """A prompt in one slot: queries, keys and values of all its positions."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray

    def append(self, library: Library, cache: KvCache, begin: int, end: int) -> None:
        slots, positions = np.full(end - begin, SLOT), np.arange(begin, end)
        library.append(cache, slots, positions, self.keys[begin:end], self.values[begin:end])

    def attend(self, library: Library, cache: KvCache, begin: int, end: int, window: int = 0) -> np.ndarray:
        slots, positions = np.full(end - begin, SLOT), np.arange(begin, end)
        return library.attend(cache, slots, positions, self.queries[begin:end], window=window)


@pytest.fixture(scope="module")
def sequence() -> Sequence:
    rng = np.random.default_rng(51)
    _, kv_heads, positions, head_size = SHAPE
    queries = rng.standard_normal((positions, HEADS, head_size)).astype(np.float32)
    keys, values = (rng.standard_normal((positions, kv_heads, head_size)).astype(np.float32) for _ in range(2))
    return Sequence(queries, keys, values)


@pytest.fixture(params=[False, True], ids=["float", "bytes"])
def cache(request: pytest.FixtureRequest) -> KvCache:
    return KvCache.empty(SHAPE, over_bytes=bool(request.param))


@pytest.mark.parametrize("window", [0, 1, 100])
def test_attention_is_the_contract_in_float64_within_its_bound(
    library: Library, cache: KvCache, sequence: Sequence, window: int
) -> None:
    sequence.append(library, cache, 0, 300)
    stored = attention_cases.Cache(**cache.arrays)
    rows = np.array([0, 1, 127, 128, 129, 255, 256, 299])
    slots = np.full(len(rows), SLOT)
    call = attention_cases.Call(stored, slots, rows, sequence.queries[rows], window=window)
    y, bound = attention_cases.expected(call)
    for isa in library.isas():
        library.use(isa)
        got = library.attend(cache, slots, rows, call.queries, window=window)
        assert (np.abs(got - y) <= bound).all(), isa


def test_prefill_chunks_decode_and_threads_give_the_same_bits(
    library: Library, cache: KvCache, sequence: Sequence
) -> None:
    sequence.append(library, cache, 0, 300)
    whole = sequence.attend(library, cache, 0, 300)
    held = {name: array.tobytes() for name, array in cache.arrays.items()}
    for isa in library.isas():
        library.use(isa)
        for threads in (1, 3):
            library.set_pool(threads)
            again = KvCache.empty(SHAPE, over_bytes=bool(cache.over_bytes))
            parts = []
            for begin, end in pairwise([0, 130, 257, 258, 259, 290, 300]):
                sequence.append(library, again, begin, end)
                parts.append(sequence.attend(library, again, begin, end))
            assert np.concatenate(parts).tobytes() == whole.tobytes(), (isa, threads)
            assert {name: array.tobytes() for name, array in again.arrays.items()} == held, (isa, threads)


def test_rows_of_other_slots_and_padding_change_nothing(library: Library, cache: KvCache, sequence: Sequence) -> None:
    sequence.append(library, cache, 0, 300)
    alone = sequence.attend(library, cache, 200, 203)
    positions = np.array([-1, 200, 0, 201, 17, 202, -1])
    slots = np.array([0, SLOT, 2, SLOT, 0, SLOT, SLOT])
    library.set_pool(2)
    y = library.attend(cache, slots, positions, sequence.queries[np.maximum(positions, 0)])
    assert y[[1, 3, 5]].tobytes() == alone.tobytes()
    assert (y[[0, 6]] == 0).all()


def test_no_rows_are_no_error(library: Library, cache: KvCache, sequence: Sequence) -> None:
    nothing = np.empty(0, np.int64)
    library.append(cache, nothing, nothing, sequence.keys[:0], sequence.values[:0])
    assert library.attend(cache, nothing, nothing, sequence.queries[:0]).shape == (0, HEADS, 64)


def test_places_outside_the_cache_are_errors_and_nothing_is_written(
    library: Library, cache: KvCache, sequence: Sequence
) -> None:
    for slot, position in ((3, 0), (-1, 0), (0, 300), (0, -2), (2**40, 0), (0, 2**62)):
        with pytest.raises(Refused, match="slot|position"):  # noqa: RUF043
            library.append(
                cache, np.array([0, slot]), np.array([0, position]), sequence.keys[:2], sequence.values[:2]
            )
        with pytest.raises(Refused, match="slot|position"):  # noqa: RUF043
            library.attend(cache, np.array([slot]), np.array([position]), sequence.queries[:1])
    assert not any(array.any() for array in cache.arrays.values())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keys_bytes", 10),
        ("values_bytes", 0),
        ("key_scales_bytes", 8),
        ("slots", 4),
        ("slots", -1),
        ("kv_heads", 3),
        ("kv_heads", 2**40),
        ("positions", 301),
        ("positions", 2**62),
        ("head_size", 12),
        ("head_size", 264),
        ("slot_stride", 5),
        ("over_bytes", 2),
        ("reserved", 1),
        ("keys", None),
        ("value_scales", None),
    ],
)
def test_a_cache_that_is_not_as_large_as_it_says_is_an_error(
    library: Library, sequence: Sequence, field: str, value: int | None
) -> None:
    cache = KvCache.empty(SHAPE, over_bytes=True)
    setattr(cache, field, value)
    with pytest.raises(Refused):
        library.append(cache, np.array([0]), np.array([0]), sequence.keys[:1], sequence.values[:1])
    with pytest.raises(Refused):
        library.attend(cache, np.array([0]), np.array([0]), sequence.queries[:1])
