"""Numbers as people read them."""

from __future__ import annotations


def size(size_bytes: int) -> str:
    """Bytes with a unit and three significant digits: `131 MB` (1000-based, as storage is sold and weights named)."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def age(age_s: float) -> str:
    """A duration in its two largest units: `3 d 4 h`."""
    seconds = max(0, int(age_s))
    units = [("d", seconds // 86400), ("h", seconds // 3600 % 24), ("min", seconds // 60 % 60), ("s", seconds % 60)]
    while len(units) > 1 and units[0][1] == 0:
        units.pop(0)
    return " ".join(f"{value} {unit}" for unit, value in units[:2])
