"""What a check has to say."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A fault: the file that it is in, what is wrong, and what to do where that is not plain."""

    path: Path
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f". {self.hint}" if self.hint else "")
