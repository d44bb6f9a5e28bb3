"""`log:` how much is said, and in which shape."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least important events that are written.")
    ] = "info"
    format: Annotated[
        Literal["auto", "journal", "pretty", "plain", "json"],
        Meta(description="auto: priority prefixes under the journal, colours in a terminal, plain lines elsewhere."),
    ] = "auto"
    content: Annotated[bool, Meta(description="Prompts and answers appear in the log only when this is true.")] = (
        False
    )
