from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.feedback.peaks import KEPT_S, Peaks


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 9)), min_size=1, max_size=40), st.integers(0, 400))
def test_the_peak_is_the_highest_value_that_held_at_any_moment_since(
    told: list[tuple[int, int]], asked_s: int
) -> None:
    peaks, now_s = Peaks(), 0
    held: list[tuple[int, int]] = []
    for step_s, value in told:
        now_s += step_s
        held.append((now_s, value))
        peaks.add(value, now_s)
    ends = [*(begin for begin, _ in held[1:]), 10_000]
    expected = max(
        (value for (_, value), end_s in zip(held, ends, strict=True) if end_s > asked_s), default=held[-1][1]
    )
    assert peaks.since(asked_s) == expected


def test_nothing_is_known_before_anything_was_told() -> None:
    assert Peaks().since(0.0) is None


def test_what_is_kept_stays_bounded_however_long_values_fall() -> None:
    peaks = Peaks()
    for second in range(20_000):
        peaks.add(-second, float(second))
    assert len(peaks._highest) <= KEPT_S + 2
    assert peaks.since(0.0) is not None
