"""Durations and sizes as people write them: `30s`, `1h 30min`, `4 MiB`."""

from __future__ import annotations

import re

_DURATION_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_BYTES = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("k", "M", "G", "T"), start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), start=1)},
}
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")

DURATION_EXAMPLE = "30s, 500ms, 5min, 2h or 1h 30min"
SIZE_EXAMPLE = "512 KiB, 4 MiB, 1.5 GiB or 4 MB"


def parse_duration(text: str) -> float:
    """Seconds of `text`: numbers with ms, s, min, h or d, added up. Raises `ValueError` with what is allowed."""
    total_s, end = 0.0, 0
    while end < len(text):
        part = _PART.match(text, end)
        if part is None or part[2] not in _DURATION_S:
            break
        total_s += float(part[1]) * _DURATION_S[part[2]]
        end = part.end()
    if not text.strip() or end < len(text):
        raise ValueError(f"{text!r} is not a duration; write for example {DURATION_EXAMPLE}")
    return total_s


def with_unit(value: float, key: str) -> str:
    """A number as a message names it, in the unit in which a key's name ends: "3600 s (1h)", "500 ms", "64 bytes"."""
    number = f"{value:.0f}" if value == int(value) else f"{value:g}"
    suffix = key.rpartition("_")[2] if "_" in key else ""
    if suffix == "s":
        unit = next((unit for unit in ("d", "h", "min") if value and value % _DURATION_S[unit] == 0), None)
        return f"{number} s ({value / _DURATION_S[unit]:.0f}{unit})" if unit else f"{number} s"
    units = {"ms": " ms", "bytes": " bytes", "percent": " %", "c": " °C"}
    return number + units.get(suffix, "")


def parse_size(text: str) -> int:
    """Bytes of `text`. A bare K, M or G is refused: half of the world reads it as 1000, half as 1024."""
    part = _PART.fullmatch(text)
    if part is not None and part[2] in ("k", "K", "M", "G", "T"):
        raise ValueError(f"{text!r} leaves open whether {part[2]} counts in 1000 or 1024; write {SIZE_EXAMPLE}")
    if part is None or part[2] not in _SIZE_BYTES:
        raise ValueError(f"{text!r} is not a size; write for example {SIZE_EXAMPLE}")
    size = float(part[1]) * _SIZE_BYTES[part[2]]
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)
