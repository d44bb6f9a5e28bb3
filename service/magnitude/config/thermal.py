"""`thermal:` what is done about heat, and from when on."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Celsius = Annotated[float, Meta(ge=30, le=110)]


class ThermalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: Annotated[
        bool,
        Meta(
            description="Whether clocks are limited and the engine is paused for heat. Without it temperatures are "
            "only watched and shown, and heat is left to the firmware."
        ),
    ] = True
    target_c: Annotated[
        Celsius | None,
        Meta(description="Under lasting load the chip settles at this at most, in °C. null: as the board's profile."),
    ] = None
    down_c: Annotated[
        Celsius | None,
        Meta(
            description="From this on everything is reduced at once, whatever was forecast; below the firmware's own "
            "limit. null: as the board's profile."
        ),
    ] = None
    up_c: Annotated[
        Celsius | None,
        Meta(description="… until the chip is below this again. null: as the board's profile."),
    ] = None
