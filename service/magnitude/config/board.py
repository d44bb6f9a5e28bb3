"""`board:` which board this is, and how often it is looked at."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class BoardSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    profile: Annotated[
        str,
        Meta(
            description="What is taken for known of the board before it is measured: a name (magnitude simulate "
            "--help lists them) or the path of a YAML file. Empty: found by the device tree."
        ),
    ] = ""
    sensor_period_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=2000,
            description="How often the processor's temperature is read while it moves. A chip warms by some degrees "
            "a second; a slower look costs less and sees it later.",
        ),
    ] = 100
