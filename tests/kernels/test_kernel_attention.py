"""Attention over KV caches: right within the bound that attention.h states, and the same bits however it is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from attention_cases import (
    SEGMENT,
    Append,
    AttentionDriver,
    Cache,
    Call,
    Doubles,
    Floats,
    expected,
    random_cache,
    random_call,
)
from kernel_builds import Build

HEAD_SIZES = (8, 24, 64, 80, 128, 256)
HEADS = ((1, 1), (3, 9), (2, 14), (1, 17), (2, 4))  # KV heads and query heads; 17 take two passes
KINDS = ("bytes", "float")


@pytest.fixture(scope="session")
def driver(host_build: Build) -> AttentionDriver:
    return AttentionDriver(host_build)


@pytest.fixture(scope="session")
def fastest(driver: AttentionDriver) -> str:
    return driver.paths()[-1]


def results(driver: AttentionDriver, path: str, calls: Sequence[Call]) -> list[Floats]:
    """Of calls that have to succeed."""
    answers = driver.run(path, calls)
    found = []
    for answer in answers:
        assert answer.error == ""
        assert answer.untouched
        assert answer.results is not None
        found.append(answer.results)
    return found


def varied_calls(rng: np.random.Generator, kind: str) -> list[Call]:
    """All head sizes and groups of heads, with gaps everywhere: single rows, ragged batches, windows, padding."""
    calls = []
    for head_size in HEAD_SIZES:
        for kv_heads, heads in HEADS:
            cache = random_cache(rng, (3, kv_heads, 300, head_size), kind=kind, gaps=(8, 3, 5, 1, 2))
            one = random_call(rng, cache, 1, heads)
            batch = random_call(rng, cache, 5, heads)
            chunk = replace(
                batch, slots=np.array([1, 1, 1, -9, 2]), positions=np.array([254, 255, 256, -1, 0]), row_gaps=(3, 5)
            )
            calls += [one, batch, replace(batch, window=int(rng.integers(1, 280))), chunk, replace(chunk, window=2)]
    return calls


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_within_the_stated_bound_of_float64(driver: AttentionDriver, fastest: str, kind: str) -> None:
    calls = varied_calls(np.random.default_rng(1), kind)
    for call, found in zip(calls, results(driver, fastest, calls), strict=True):
        exact, bound = expected(call)
        assert (np.abs(found - exact) <= bound).all()


def rms(array: Floats | Doubles) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))


def test_the_usual_error_is_a_small_part_of_what_the_cache_has_lost(driver: AttentionDriver, fastest: str) -> None:
    rng = np.random.default_rng(2)
    keys, values = (rng.standard_normal((1, 2, 1000, 64)).astype(np.float32) for _ in range(2))
    scales = [np.abs(array).max(axis=3) / np.float32(127) for array in (keys, values)]
    rounded = [np.rint(array / scale[..., None]) for array, scale in zip((keys, values), scales, strict=True)]
    in_floats = Cache(keys, values)
    in_bytes = Cache(rounded[0].astype(np.int8), rounded[1].astype(np.int8), scales[0], scales[1])
    call = replace(random_call(rng, in_floats, 8, 6), positions=np.arange(992, 1000))
    of_bytes = replace(call, cache=in_bytes)
    exact, _ = expected(call)
    exact_of_bytes, _ = expected(of_bytes)
    found, found_of_bytes = results(driver, fastest, [call, of_bytes])
    assert rms(found - exact) < 1e-6 * rms(exact)
    assert rms(found_of_bytes - exact_of_bytes) < rms(exact_of_bytes - exact) / 20


@pytest.mark.parametrize("kind", KINDS)
def test_every_path_gives_the_same_bits(driver: AttentionDriver, kind: str) -> None:
    calls = varied_calls(np.random.default_rng(3), kind)
    reference = results(driver, "reference", calls)
    for path in driver.paths():
        for one, other in zip(reference, results(driver, path, calls), strict=True):
            assert one.tobytes() == other.tobytes(), path


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_whatever_runs_beside_it(driver: AttentionDriver, fastest: str, kind: str) -> None:
    """Prefilled in one piece, in chunks, decoded; cut finely or not; by one thread or more, in any order of tasks."""
    rng = np.random.default_rng(4)
    cache = random_cache(rng, (2, 2, 700, 64), kind=kind)
    for window in (0, 1, 200):
        prompt = replace(
            random_call(rng, cache, 40, 6), slots=np.full(40, 1), positions=np.arange(500, 540), window=window
        )
        shuffled = rng.permutation(40)
        ways = [replace(prompt, threads=threads, seed=threads) for threads in (2, 3, 8, 64)]
        ways += [replace(prompt, threads=16, runners=4, seed=5)]
        ways += [cut(prompt, slice(at, at + 7)) for at in range(0, 40, 7)]
        ways += [replace(cut(prompt, slice(at, at + 1)), threads=4, seed=at) for at in range(40)]
        ways += [cut(prompt, shuffled)]
        # The other slot holds something else, and rows of both alternate.
        mixed = np.repeat(np.arange(40), 2)
        ways += [replace(cut(prompt, mixed), slots=np.tile([0, 1], 40))]
        whole, *others = results(driver, fastest, [prompt, *ways])
        for found in others[:5]:
            assert found.tobytes() == whole.tobytes()
        assert np.concatenate(others[5:11]).tobytes() == whole.tobytes()
        assert np.concatenate(others[11:51]).tobytes() == whole.tobytes()
        assert others[51].tobytes() == whole[shuffled].tobytes()
        assert others[52][1::2].tobytes() == whole.tobytes()


def cut(call: Call, rows: slice | np.ndarray) -> Call:
    return replace(call, slots=call.slots[rows], positions=call.positions[rows], queries=call.queries[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_beyond_a_row_in_its_slot_has_no_influence(
    driver: AttentionDriver, fastest: str, kind: str
) -> None:
    """Not even what is no number, also where a later row of the same call sees it."""
    rng = np.random.default_rng(5)
    cache = random_cache(rng, (1, 1, 300, 64), kind=kind)
    call = replace(random_call(rng, cache, 3, 3), slots=np.zeros(3, np.int64), positions=np.array([200, 203, 208]))
    scales = (cache.key_scales, cache.value_scales)
    spoilt = [array.copy() for array in (scales if kind == "bytes" else (cache.keys, cache.values))]
    for array in spoilt:
        array[:, :, 204:] = np.nan
    names = ("key_scales", "value_scales") if kind == "bytes" else ("keys", "values")
    other = replace(call, cache=replace(cache, **dict(zip(names, spoilt, strict=True))))
    before, after = results(driver, fastest, [call, other])
    assert after[:2].tobytes() == before[:2].tobytes()
    assert np.isnan(after[2]).all()
    # The same at the other end of a window.
    for array in spoilt:
        array[...] = np.nan_to_num(array, nan=0.5)
        array[:, :, :150] = np.nan
    other = replace(other, window=51)
    before, after = results(driver, fastest, [replace(call, window=51), other])
    assert after[:2].tobytes() == before[:2].tobytes()
    assert np.isfinite(after).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_stays_in_its_row(driver: AttentionDriver, kind: str) -> None:
    rng = np.random.default_rng(6)
    cache = random_cache(rng, (1, 1, 300, 64), kind=kind)
    call = replace(random_call(rng, cache, 4, 2), slots=np.zeros(4, np.int64), positions=np.arange(140, 144))
    spoilt = call.queries.copy()
    spoilt[1, 0, 7] = np.nan
    spoilt[2, 1, 63] = np.inf
    for path in driver.paths():
        before, after = results(driver, path, [call, replace(call, queries=spoilt)])
        wrong = np.zeros((4, 2), bool)
        wrong[1, 0] = wrong[2, 1] = True
        assert np.isnan(after[wrong]).all()
        assert after[~wrong].tobytes() == before[~wrong].tobytes()


def test_extreme_values_give_finite_results(driver: AttentionDriver, fastest: str) -> None:
    """Scores in the thousands, outliers beside nothing, scales of zero, queries of zero."""
    rng = np.random.default_rng(7)
    cache = random_cache(rng, (1, 1, 400, 64), kind="bytes")
    assert cache.key_scales is not None
    assert cache.value_scales is not None
    cache.key_scales[0, 0, ::3] = 0
    cache.value_scales[0, 0, ::5] = 0
    cache.value_scales[0, 0, 128:256] = 0
    cache.key_scales[0, 0, 300:] *= 1e4
    call = replace(random_call(rng, cache, 6, 2), slots=np.zeros(6, np.int64), positions=np.arange(290, 410, 20))
    call.queries[0] = 0
    call.queries[1, 0, 5] = 1e5
    call.queries[2] *= 1e-35
    found = results(driver, fastest, [call])[0]
    exact, bound = expected(call)
    assert np.isfinite(found).all()
    assert (np.abs(found - exact) <= bound).all()


def test_calls_of_no_rows_or_only_padding_succeed(driver: AttentionDriver, fastest: str) -> None:
    rng = np.random.default_rng(8)
    cache = random_cache(rng, (2, 1, 10, 8), kind="bytes")
    none = random_call(rng, cache, 0, 2)
    padding = replace(random_call(rng, cache, 3, 2), positions=np.full(3, -1))
    empty, zeros = results(driver, fastest, [none, padding])
    assert empty.shape == (0, 2, 8)
    assert not zeros.any()


def test_appended_bytes_are_within_half_a_step(driver: AttentionDriver, fastest: str) -> None:
    rng = np.random.default_rng(9)
    for head_size in HEAD_SIZES:
        cache = random_cache(rng, (3, 2, 200, head_size), kind="bytes", gaps=(8, 1, 2, 3, 4))
        new = [
            (rng.standard_normal((4, 2, head_size)) * 10 ** rng.uniform(-3, 3)).astype(np.float32) for _ in range(2)
        ]
        new[0][0, 0, 3] = 1e3  # an outlier costs its own head and position, no others
        new[0][1, 1] = 0
        new[1][2, 0] *= 1e-36
        slots, positions = np.array([2, 0, 1, 2]), np.array([7, 0, -1, 199])
        answer = driver.run(fastest, [Append(cache, slots, positions, new[0], new[1])])[0]
        assert answer.error == ""
        assert answer.untouched
        assert answer.cache is not None
        assert answer.cache.key_scales is not None
        assert answer.cache.value_scales is not None
        keys, values = answer.cache.dequantised()
        for row in (0, 1, 3):
            for found, scales, given in (
                (keys, answer.cache.key_scales, new[0][row]),
                (values, answer.cache.value_scales, new[1][row]),
            ):
                place = slots[row], slice(None), positions[row]
                largest = np.abs(given).max(axis=1)
                np.testing.assert_array_equal(
                    scales[place], np.where(largest < 2.0**-100, 0, largest / np.float32(127))
                )
                assert (np.abs(found[place] - given) <= 0.501 * largest[:, None] / 127).all()
        others = np.ones(cache.keys.shape[:3], bool)
        others[slots[[0, 1, 3]], :, positions[[0, 1, 3]]] = False
        assert (answer.cache.keys[others] == cache.keys[others]).all()
        assert (answer.cache.values[others] == cache.values[others]).all()


def test_appended_values_that_are_no_numbers_show_in_the_scale(driver: AttentionDriver, fastest: str) -> None:
    rng = np.random.default_rng(10)
    cache = random_cache(rng, (1, 2, 10, 16), kind="bytes")
    keys, values = (rng.standard_normal((2, 2, 16)).astype(np.float32) for _ in range(2))
    keys[0, 1, 15] = np.nan
    values[1, 0, 0] = -np.inf
    answer = driver.run(fastest, [Append(cache, np.zeros(2, np.int64), np.array([3, 4]), keys, values)])[0]
    assert answer.cache is not None
    assert answer.cache.key_scales is not None
    assert answer.cache.value_scales is not None
    assert np.isnan(answer.cache.key_scales[0, :, 3:5]).tolist() == [[False, False], [True, False]]
    assert np.isnan(answer.cache.value_scales[0, :, 3:5]).tolist() == [[False, True], [False, False]]


def test_appended_floats_are_copied_and_of_two_for_one_place_the_later_stays(
    driver: AttentionDriver, fastest: str
) -> None:
    rng = np.random.default_rng(11)
    cache = random_cache(rng, (2, 3, 20, 24), kind="float", gaps=(3, 1, 2, 0, 0))
    keys, values = (rng.standard_normal((3, 3, 24)).astype(np.float32) for _ in range(2))
    append = Append(cache, np.array([1, 0, 1]), np.array([19, 5, 19]), keys, values)
    answer = driver.run(fastest, [append])[0]
    assert answer.untouched
    assert answer.cache is not None
    assert (answer.cache.keys[1, :, 19] == keys[2]).all()
    assert (answer.cache.values[0, :, 5] == values[1]).all()
    assert (answer.cache.keys[1, :, :19] == cache.keys[1, :, :19]).all()


def wrong_cases(rng: np.random.Generator) -> list[Call | Append]:
    """Each with one thing about it that must be noticed before anything is read or written."""
    cases: list[Call | Append] = []
    for kind in KINDS:
        cache = random_cache(rng, (2, 2, 20, 16), kind=kind, gaps=(8, 8, 8, 1, 1))
        call = replace(random_call(rng, cache, 3, 4), positions=np.array([3, 19, 7]), slots=np.array([0, 1, 1]))
        new = rng.standard_normal((3, 2, 16)).astype(np.float32)
        append = Append(cache, call.slots, call.positions, new, new)
        lengths = [len(array) for array in cache.arrays()]
        changes = [
            {"head_size": 15},
            {"head_size": 0},
            {"head_size": -16},
            {"head_size": 264},
            {"kv_heads": 0},
            {"positions": 0},
            {"positions": 21},
            {"slots": 3},
            {"slots": -1},
            {"kv_heads": 3},
            {"position_stride": 15},
            {"position_stride": -24},
            {"head_stride": 20 * 24 - 9},
            {"slot_stride": 2 * (20 * 24 + 8) - 17},
            {"slot_stride": 1 << 60},
            {"head_stride": (1 << 63) - 1},
            {"keys_bytes": lengths[0] - 1},
            {"values_bytes": lengths[1] - 1},
            {"keys_bytes": 0},
            {"first_bytes": 3 * 2 * 16 * 4 - 1},
            {"first_stride": -1},
            {"first_stride": 1 << 62},
        ]
        if kind == "bytes":
            changes += [
                {"key_scales_bytes": lengths[2] - 1},
                {"value_scales_bytes": lengths[3] - 4},
                {"scale_head_stride": 19},
                {"scale_slot_stride": 2 * 21 - 2},
                {"scale_slot_stride": 1 << 61},
            ]
        for change in changes:
            cases += [replace(call, changed=change), replace(append, changed=change)]
        for slots, positions in (([0, 2, 1], [3, 4, 5]), ([0, -1, 1], [3, 4, 5]), ([0, 1, 1], [3, 20, 5])):
            places = {"slots": np.array(slots), "positions": np.array(positions)}
            cases += [replace(call, **places), replace(append, **places)]
        cases += [
            replace(call, positions=np.array([3, 19, -2])),
            replace(append, positions=np.array([1 << 62, 0, 0])),
        ]
        cases += [replace(call, changed=change) for change in ({"heads": 3}, {"heads": 0}, {"heads": -2})]
        cases += [replace(call, changed=change) for change in ({"window": -1}, {"threads": 0}, {"rows": -1})]
        cases += [replace(call, changed=change) for change in ({"second_bytes": 3 * 256 - 1}, {"second_stride": 63})]
    return cases


def test_lengths_and_places_that_are_wrong_are_errors_before_anything_is_written(
    driver: AttentionDriver, fastest: str
) -> None:
    cases = wrong_cases(np.random.default_rng(12))
    for case, answer in zip(cases, driver.run(fastest, cases), strict=True):
        assert answer.error, (case.changed, case.slots, case.positions)
        assert answer.untouched, case.changed


def fuzzed_cases(rng: np.random.Generator, count: int) -> list[Call | Append]:
    """Right calls and appends with up to three fields of the header replaced by others."""
    cases: list[Call | Append] = []
    lengths = ("keys_bytes", "values_bytes", "key_scales_bytes", "value_scales_bytes", "first_bytes", "second_bytes")
    sizes = ("slots", "kv_heads", "positions", "head_size", "heads", "window", "threads", "rows")
    strides = (
        *("slot_stride", "head_stride", "position_stride", "scale_slot_stride", "scale_head_stride"),
        *("first_stride", "second_stride"),
    )
    for _ in range(count):
        kv_heads, head_size = int(rng.integers(1, 4)), 8 * int(rng.integers(1, 6))
        shape = (int(rng.integers(1, 4)), kv_heads, int(rng.integers(1, 2 * SEGMENT)), head_size)
        cache = random_cache(rng, shape, kind=KINDS[rng.integers(2)], gaps=tuple(rng.integers(0, 9, 5).tolist()))
        rows = int(rng.integers(0, 6))
        call = random_call(rng, cache, rows, kv_heads * int(rng.integers(1, 5)))
        new = rng.standard_normal((rows, kv_heads, head_size)).astype(np.float32)
        case = call if rng.random() < 0.6 else Append(cache, call.slots, call.positions, new, new)
        changed = {}
        for _ in range(int(rng.integers(0, 4))):
            kind = rng.integers(3)
            if kind == 0:
                changed[str(rng.choice(lengths))] = int(rng.integers(0, 20000))
            elif kind == 1:
                changed[str(rng.choice(sizes))] = int(rng.integers(-1, 20)) * (8 if rng.random() < 0.3 else 1)
            else:
                wild = int(rng.integers(-(1 << 62), 1 << 62)) if rng.random() < 0.3 else int(rng.integers(-9, 3000))
                changed[str(rng.choice(strides))] = wild
        cases.append(replace(case, changed=changed))
    return cases
