"""`records:` what is written down of each task and of each failure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class RecordsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Disk space for the records of tasks, a row of about 200 bytes each; the oldest go first. "
            "0: none are kept. They hold numbers, never prompts or answers.",
        ),
    ] = 16 * 1024 * 1024
    keep_days: Annotated[int, Meta(ge=1, le=3650, description="Records and failures that are older are removed.")] = (
        30
    )
    failures_max_bytes: Annotated[
        int, Meta(ge=0, description="Disk space for what lost engines left behind. 0: nothing is kept of them.")
    ] = 16 * 1024 * 1024
    keep_content: Annotated[
        bool,
        Meta(
            description="Whether a failure keeps the tokens of the requests that ran, so that exactly they can be "
            "tried again. Without it `magnitude replay` uses made-up prompts of the same length."
        ),
    ] = False
    free_disk_reserve_bytes: Annotated[
        int, Meta(ge=0, description="So much of the storage is left free: below it nothing is recorded.")
    ] = 64 * 1024 * 1024
