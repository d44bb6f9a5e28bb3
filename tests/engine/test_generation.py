from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.generation import first_position

sizes = st.integers(1, 300)


@given(prompt=sizes, emitted=st.integers(0, 300), chunk=st.integers(1, 140), valid=st.integers(0, 700))
def test_a_rebuilt_generation_never_goes_on_behind_what_is_valid_and_always_does_the_last_step_again(
    prompt: int, emitted: int, chunk: int, valid: int
):
    start = first_position(prompt, emitted, chunk, valid)
    assert 0 <= start <= min(valid, prompt + emitted - 1)


@given(prompt=sizes, emitted=st.integers(0, 300), chunk=st.integers(1, 140), valid=st.integers(0, 700))
def test_inside_the_prompt_it_goes_on_at_the_border_of_a_chunk(prompt: int, emitted: int, chunk: int, valid: int):
    start = first_position(prompt, emitted, chunk, valid)
    assert start >= prompt or start % chunk == 0


def test_after_the_prompt_only_the_last_step_is_done_again():
    assert first_position(prompt=10, emitted=5, chunk=4, valid=14) == 14
    assert first_position(prompt=10, emitted=5, chunk=4, valid=99) == 14
    assert first_position(prompt=10, emitted=5, chunk=4, valid=12) == 12


def test_with_nothing_emitted_the_last_chunk_of_the_prompt_is_done_again():
    assert first_position(prompt=10, emitted=0, chunk=4, valid=10) == 8
    assert first_position(prompt=8, emitted=0, chunk=4, valid=8) == 4
    assert first_position(prompt=3, emitted=0, chunk=4, valid=3) == 0
