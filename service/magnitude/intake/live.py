"""The settings in force, and the way to have them read again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from magnitude.config import Settings
from magnitude.config.changes import ReloadOutcome


class LiveSettings:
    """`current` is replaced as a whole; whoever needs a setting looks it up here each time. `last_reload` is how
    reading the configuration again went the last time, `reload` does it; None where nobody can."""

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self.last_reload: ReloadOutcome | None = None
        self.reload: Callable[[], Coroutine[Any, Any, ReloadOutcome]] | None = None
