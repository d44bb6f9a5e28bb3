from __future__ import annotations

import pytest

from magnitude.config.units import parse_duration, parse_size, with_unit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("500ms", 0.5), ("5min", 300), ("1h 30min", 5400), ("1.5 h", 5400), (" 2 d ", 172800), ("0s", 0)],
)
def test_durations_are_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", " ", "30", "s", "1:30", "30 seconds", "-3s", "1e3s", "5m", "3s x", "nan s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "key", "words"),
    [
        (3600.0, "cold_start_s", "3600 s (1h)"),
        (604800.0, "half_life_s", "604800 s (7d)"),
        (10.0, "save_every_s", "10 s"),
        (0.0, "dwell_s", "0 s"),
        (0.5, "x_ms", "0.5 ms"),
        (64.0, "x_bytes", "64 bytes"),
        (100.0, "x_percent", "100 %"),
        (4096.0, "threads", "4096"),
    ],
)
def test_a_bound_is_told_in_the_unit_of_its_key(value: float, key: str, words: str) -> None:
    assert with_unit(value, key) == words


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4 MiB", 4 << 20),
        ("4MB", 4_000_000),
        ("512KiB", 512 << 10),
        ("1.5 GiB", 3 << 29),
        ("10 kB", 10_000),
        ("7 B", 7),
    ],
)
def test_sizes_are_read_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["4M", "4 K", "1G"])
def test_a_bare_letter_is_refused_because_it_is_ambiguous(text: str) -> None:
    with pytest.raises(ValueError, match="1000 or 1024"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "MiB", "4 mib", "-1 MiB", "1e3 B", "4 MiB 3 B", "0.5 B", "4 Mib"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)
