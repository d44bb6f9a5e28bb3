"""What a check says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Level = Literal["ok", "notice", "warning", "error"]

# `notice` is worth knowing and needs nothing done, so scripts do not stop for it.
_STATUS: dict[Level, int] = {"ok": 0, "notice": 0, "warning": 1, "error": 2}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result. `title` is a sentence that stands alone, `advice` what to do (empty when there is nothing)."""

    check: str = ""  # the check's module name; filled in by the runner
    level: Level
    title: str
    detail: str = ""
    advice: str = ""


def exit_status(findings: Iterable[Finding]) -> int:
    """0, 1 or 2 by the worst level."""
    return max((_STATUS[finding.level] for finding in findings), default=0)
