"""`schedule:` who waits for whom."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ScheduleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    utilisation: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Share of the conversations that the board could carry by its measured compute and wait "
            "times, up to which new ones are taken in freely.",
        ),
    ] = 0.7
    aging_s: Annotated[
        float,
        Meta(gt=0, le=3600, description="A request that waits for so long counts as one priority class higher."),
    ] = 10.0
    encode_wait_ms: Annotated[
        float,
        Meta(
            ge=0,
            le=1000,
            description="So long an embedding may wait for others to be computed together with, while the engine "
            "is busy anyway.",
        ),
    ] = 5.0
    encode_max_batch: Annotated[int, Meta(ge=1, le=256, description="Most texts in one run of an encoder.")] = 16
