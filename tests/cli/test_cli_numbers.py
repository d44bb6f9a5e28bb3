from __future__ import annotations

import pytest

from magnitude.cli.numbers import age, size


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (999_600, "1.0 MB"),
        (131_000_000, "131 MB"),
        (2_150_000_000, "2.1 GB"),
    ],
)
def test_sizes_read_easily(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


@pytest.mark.parametrize(
    ("age_s", "text"), [(0, "0 s"), (61, "1 min 1 s"), (3700, "1 h 1 min"), (90000, "1 d 1 h"), (-5, "0 s")]
)
def test_ages_read_easily_and_are_never_negative(age_s: float, text: str) -> None:
    assert age(age_s) == text
