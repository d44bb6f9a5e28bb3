from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.encoder_buckets import (
    LEAST_RUN_TOKENS,
    MAX_RUN_TOKENS,
    bucket_tokens,
    padding_share,
    plan_runs,
    run_token_limit,
)


@given(
    lengths=st.lists(st.integers(1, 60), max_size=200),
    limit=st.integers(1, 512),
    padding=st.floats(0, 1),
)
def test_every_input_is_in_exactly_one_run_and_runs_are_bounded(lengths: list[int], limit: int, padding: float):
    plans = plan_runs(lengths, max_tokens=60, max_run_tokens=limit, max_padding=padding)
    assert sorted(i for plan in plans for i in plan.indices) == list(range(len(lengths)))
    for plan in plans:
        inside = [lengths[i] for i in plan.indices]
        cells = len(inside) * plan.padded_tokens
        assert plan.padded_tokens == bucket_tokens(max(inside), 60)
        assert cells <= limit or len(inside) == 1
        own = sum(bucket_tokens(length, 60) for length in inside)
        assert cells - own <= padding * cells


def test_texts_are_padded_to_a_few_lengths_and_never_beyond_the_model():
    assert [bucket_tokens(n, 60) for n in (1, 8, 9, 57, 60)] == [8, 8, 16, 60, 60]


def test_padding_is_counted_over_all_runs():
    lengths = [4, 8, 8]
    assert padding_share(lengths, plan_runs(lengths, 64)) == 1 - 20 / 24
    assert padding_share([], []) == 0.0


def test_runs_get_smaller_on_a_slow_board_and_stay_small_until_its_speed_is_known():
    assert run_token_limit(0.0001, 0.06) == MAX_RUN_TOKENS
    assert run_token_limit(0.0003, 0.06) == 200
    assert run_token_limit(0.01, 0.06) == LEAST_RUN_TOKENS
    assert run_token_limit(0.0, 0.06) == LEAST_RUN_TOKENS
