"""`log:` how much is said, and in which shape."""

from __future__ import annotations

from typing import Literal

import msgspec


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    # auto: priority prefixes under the journal, colours in a terminal, plain lines elsewhere.
    format: Literal["auto", "journal", "pretty", "plain", "json"] = "auto"
    # Prompts and answers appear in the log only when this is true.
    content: bool = False
