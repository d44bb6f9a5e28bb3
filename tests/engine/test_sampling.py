from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.engine.protocol import SamplerSettings
from magnitude.engine.sampling import Sampler, best_ids, uniform
from magnitude.errors import EngineError, RequestError

V = 1200  # more than the size from which on draws use two levels


def logits_of(seed: int, size: int = V, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


def sampler(size: int = V, prompt: tuple[int, ...] = (), emitted: tuple[int, ...] = (), **fields: object) -> Sampler:
    logprobs = fields.pop("logprobs", None)
    given_settings = SamplerSettings(**({"temperature": 1.0} | fields))
    return Sampler(given_settings, vocab_size=size, prompt=prompt, emitted=emitted, logprobs=logprobs)


any_settings = st.builds(
    SamplerSettings,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 0.8, 2.0]),
    top_p=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 40, 5000]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.dictionaries(st.integers(0, V - 1), st.floats(-100, 100), max_size=4),
    seed=st.integers(0, 2**64 - 1),
)


@given(given=any_settings, cut=st.integers(0, 12), prompt=st.lists(st.integers(0, V - 1), max_size=20))
@settings(max_examples=60, deadline=None)
def test_a_sampler_rebuilt_from_the_ids_goes_on_identically(given: SamplerSettings, cut: int, prompt: list[int]):
    def run(position: int, ids: list[int]) -> list[int]:
        one = Sampler(given, vocab_size=V, prompt=prompt, emitted=ids)
        ids = list(ids)
        for step in range(position, 12):
            ids.append(one.choose(logits_of(step)).token)
            one.accept(ids[-1])
        return ids

    whole = run(0, [])
    assert run(cut, whole[:cut]) == whole


@given(seed=st.integers(0, 2**64 - 1), temperature=st.floats(0.01, 5), data=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_top_k_of_one_is_greedy(seed: int, temperature: float, data: int):
    logits = logits_of(data)
    assert sampler(top_k=1, seed=seed, temperature=temperature).choose(logits).token == logits.argmax()


def test_top_k_of_one_takes_the_lowest_id_of_equal_logits_like_greedy():
    logits = np.zeros(V, np.float32)
    assert sampler(top_k=1).choose(logits).token == sampler(temperature=0.0).choose(logits).token == 0


@given(given=any_settings, data=st.integers(0, 1000), allowed=st.sets(st.integers(0, V - 1), min_size=1, max_size=30))
@settings(max_examples=80, deadline=None)
def test_no_setting_draws_a_token_that_the_mask_forbids(given: SamplerSettings, data: int, allowed: set[int]):
    mask = np.zeros(V, np.bool_)
    mask[list(allowed)] = True
    one = Sampler(given, vocab_size=V, prompt=[1, 2], emitted=[3])
    assert one.choose(logits_of(data), mask).token in allowed


def test_an_empty_mask_is_an_error():
    with pytest.raises(EngineError) as caught:
        sampler().choose(logits_of(1), np.zeros(V, np.bool_))
    assert caught.value.code == "nothing_allowed"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_an_error(bad: float, temperature: float):
    logits = logits_of(1)
    logits[700] = bad
    with pytest.raises(EngineError) as caught:
        sampler(temperature=temperature).choose(logits)
    assert caught.value.code == "bad_logits"


def test_minus_infinity_everywhere_is_an_error_and_somewhere_means_never():
    logits = np.full(V, -np.inf, np.float32)
    with pytest.raises(EngineError):
        sampler().choose(logits)
    logits[77] = -5.0
    assert sampler(temperature=2.0, seed=9).choose(logits).token == 77


def test_the_logits_are_left_as_they_were():
    logits = logits_of(3)
    before = logits.copy()
    one = sampler(logit_bias={3: 4.0}, repetition_penalty=1.2, prompt=(3, 4), top_p=0.5, logprobs=3)
    one.choose(logits, np.ones(V, np.bool_))
    assert np.array_equal(logits, before)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float((((counts - expected) ** 2) / expected).sum())


@pytest.mark.parametrize("size", [8, V])
def test_draws_are_distributed_like_the_softmax(size: int):
    logits = np.full(size, -np.inf, np.float32)
    places = np.linspace(0, size - 1, 8).astype(int)
    logits[places] = [0.0, 1.0, 0.5, -1.0, 2.0, 1.5, 0.2, -0.5]
    draws = 4000
    one = sampler(size, seed=11, temperature=0.7)
    counts = np.zeros(size)
    for _ in range(draws):
        counts[one.choose(logits).token] += 1
        one.accept(0)
    p = np.exp(logits[places] / 0.7)
    p /= p.sum()
    # 24.3 is the 0.999 quantile of the distribution with 7 degrees of freedom.
    assert chi_square(counts[places], p * draws) < 24.3


def test_top_p_keeps_the_smallest_set_that_reaches_the_share():
    p = np.array([0.05, 0.5, 0.2, 0.15, 0.1], np.float32)
    drawn = set()
    one = sampler(5, top_p=0.69, seed=1)
    for _ in range(300):
        drawn.add(one.choose(np.log(p)).token)
        one.accept(0)
    assert drawn == {1, 2}


def test_top_p_of_an_almost_flat_distribution_still_reaches_its_share():
    logits = np.random.default_rng(0).uniform(0, 1e-3, V).astype(np.float32)
    one = sampler(top_p=0.999, seed=2)
    drawn = set()
    for _ in range(2000):
        drawn.add(one.choose(logits).token)
        one.accept(0)
    assert len(drawn) > V / 2


@given(
    data=st.integers(0, 1000),
    top_k=st.sampled_from([0, 3, 40, V, 5000]),
    min_p=st.sampled_from([0.0, 0.01, 0.3]),
    top_p=st.sampled_from([0.2, 0.9, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=150, deadline=None)
def test_the_fast_cuts_keep_what_full_sorting_keeps(data: int, top_k: int, min_p: float, top_p: float, seed: int):
    logits = logits_of(data)
    order = np.argsort(-logits, kind="stable")[: top_k or V]
    weights = np.exp((logits[order] - logits.max()).astype(np.float64))
    order, weights = order[weights >= min_p], weights[weights >= min_p]
    running = np.cumsum(weights)
    kept = order[: int(np.searchsorted(running, top_p * running[-1] * (1 + 1e-6))) + 1]
    token = sampler(top_k=top_k, min_p=min_p, top_p=top_p, seed=seed).choose(logits).token
    assert token in kept


def test_min_p_drops_what_is_too_far_below_the_best():
    p = np.array([0.05, 0.5, 0.2, 0.15, 0.1], np.float32)
    one = sampler(5, min_p=0.29, seed=4)
    drawn = set()
    for _ in range(300):
        drawn.add(one.choose(np.log(p)).token)
        one.accept(0)
    assert drawn == {1, 2, 3}


@given(seed=st.integers(0, 10**6), count=st.integers(1, V), levels=st.integers(1, 40))
@settings(max_examples=80, deadline=None)
def test_best_ids_equals_a_full_stable_sort(seed: int, count: int, levels: int):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, V).astype(np.float32)  # many equal scores
    scores[rng.random(V) < 0.3] = -np.inf
    scores[5] = 1.0
    wanted = np.argsort(-scores, kind="stable")[: min(count, int((scores > -np.inf).sum()))]
    assert best_ids(scores, int(scores.argmax()), count).tolist() == wanted.tolist()


def test_presence_and_frequency_penalties_count_what_was_emitted_and_not_the_prompt():
    logits = np.array([5.0, 4.0, 3.0, 2.0], np.float32)
    settings_of = {"temperature": 0.0, "presence_penalty": 0.4, "frequency_penalty": 0.4}
    assert sampler(4, prompt=(0, 0, 0), **settings_of).choose(logits).token == 0
    assert sampler(4, emitted=(0,), **settings_of).choose(logits).token == 0
    assert sampler(4, emitted=(0, 0), **settings_of).choose(logits).token == 1


def test_the_repetition_penalty_counts_the_prompt_and_pushes_both_signs_down():
    assert sampler(2, prompt=(0,), temperature=0.0, repetition_penalty=2.0).choose(_row(3.0, 2.0)).token == 1
    assert sampler(2, prompt=(0,), temperature=0.0, repetition_penalty=2.0).choose(_row(-2.0, -3.0)).token == 1


def test_penalties_reach_every_one_of_many_distinct_tokens():
    one = sampler(temperature=0.0, presence_penalty=2.0, emitted=tuple(range(400)), prompt=tuple(range(500)))
    logits = np.full(V, -10.0, np.float32)
    logits[:400] = np.linspace(2.0, 1.0, 400)
    logits[900] = 0.5
    assert one.choose(logits).token == 900


def _row(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_logit_bias_moves_a_token_up_and_bans_another():
    assert sampler(3, temperature=0.0, logit_bias={2: 100.0}).choose(_row(3, 2, 1)).token == 2
    assert sampler(3, temperature=0.0, logit_bias={0: -100.0}).choose(_row(3, 2, 1)).token == 1


def test_logprobs_are_a_log_softmax_after_bias_and_mask():
    logits = _row(1.0, 2.0, 3.0, 9.0)
    choice = sampler(4, temperature=0.0, logprobs=2, logit_bias={0: 1.5}).choose(
        logits, np.array([True, True, True, False])
    )
    rest = np.array([2.5, 2.0, 3.0])
    expected = rest - np.log(np.exp(rest).sum())
    assert choice.token == 2
    assert choice.logprob is not None
    assert choice.logprob.logprob == pytest.approx(expected[2], abs=1e-6)
    assert [i for i, _ in choice.logprob.top] == [2, 0]
    assert choice.logprob.top[1][1] == pytest.approx(expected[0], abs=1e-6)


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**40))
def test_the_generator_is_the_philox_of_numpy(seed: int, position: int):
    key = np.array([seed, position], np.uint64)
    assert uniform(seed, position) == np.random.Generator(np.random.Philox(key=key)).random()


def test_the_generator_depends_on_seed_and_position_alone():
    values = {uniform(seed, position) for seed in range(20) for position in range(20)}
    assert len(values) == 400
    assert uniform(2**64 - 1, 3) == uniform(2**64 - 1, 3)
    assert uniform(7, 0) != uniform(0, 7)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 1.1),
        ("min_p", -1.0),
        ("top_k", -1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.inf),
        ("logit_bias", {V: 1.0}),
        ("logit_bias", {1: math.nan}),
    ],
)
def test_impossible_settings_are_refused_by_name(field: str, value: object):
    with pytest.raises(RequestError) as caught:
        sampler(**{field: value})
    assert caught.value.param == field
