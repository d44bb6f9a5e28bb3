from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.generation import LEAST_PIECE, first_position

sizes = st.integers(1, 300)


@given(prompt=sizes, emitted=st.integers(0, 300), valid=st.integers(0, 700))
def test_it_never_goes_on_behind_what_is_valid_and_always_does_the_last_step_again(
    prompt: int, emitted: int, valid: int
):
    start = first_position(prompt, emitted, valid)
    assert 0 <= start <= min(valid, prompt + emitted - 1)


@given(prompt=sizes, emitted=st.integers(0, 300), valid=st.integers(0, 700))
def test_what_is_left_of_a_prompt_is_never_less_than_a_piece(prompt: int, emitted: int, valid: int):
    start = first_position(prompt, emitted, valid)
    assert start >= prompt or prompt - start >= min(LEAST_PIECE, prompt)


@given(prompt=sizes, emitted=st.integers(0, 300), valid=st.integers(0, 700))
def test_no_more_is_computed_again_than_the_last_step_or_piece(prompt: int, emitted: int, valid: int):
    undone = min(valid, prompt + emitted) - first_position(prompt, emitted, valid)
    assert undone <= LEAST_PIECE


def test_after_the_prompt_only_the_last_step_is_done_again():
    assert first_position(prompt=10, emitted=5, valid=14) == 14
    assert first_position(prompt=10, emitted=5, valid=99) == 14
    assert first_position(prompt=10, emitted=5, valid=12) == 12


def test_with_nothing_emitted_the_last_piece_of_the_prompt_is_done_again():
    assert first_position(prompt=10, emitted=0, valid=10) == 8
    assert first_position(prompt=10, emitted=0, valid=7) == 7
    assert first_position(prompt=1, emitted=0, valid=1) == 0
