"""`power:` what is done about a battery that runs low and a supply that is too weak."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class PowerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: Annotated[
        bool,
        Meta(
            description="Whether anything is saved on battery or at under-voltage. Without it the supply is only "
            "watched and shown."
        ),
    ] = True
    battery_saving_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="On battery, at this level and below: a smaller variant where there is one, two generations "
            "at once, the clock at 70 %.",
        ),
    ] = 30.0
    battery_least_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="On battery, at this level and below: the smallest variant, one generation at a time, the "
            "clock at half. At most battery_saving_percent.",
        ),
    ] = 15.0
    battery_hysteresis_percent: Annotated[
        float,
        Meta(
            ge=1,
            le=50,
            description="So much above its level the battery must be again before that is given back: gauges jump by "
            "several percent when the load goes.",
        ),
    ] = 10.0
    calm_s: Annotated[
        float,
        Meta(
            ge=1,
            le=3600,
            description="So long nothing must have asked for saving before more is allowed again, step by step: "
            "plugs bounce, chargers negotiate. After under-voltage it is at least twice as long.",
        ),
    ] = 60.0
