"""`memory:` what is done when memory gets short, and from when on."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: Annotated[
        bool, Meta(description="Whether anything is done. Without it memory is only watched and shown.")
    ] = True
    check_every_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=300,
            description="How often memory is looked at; besides whenever the kernel reports a shortage.",
        ),
    ] = 5.0
    cool_down_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=3600,
            description="Least time between two steps: what one has freed must show before the next one is judged. "
            "Steps are left after twice as long in calm; a new engine has four times as long to show what it "
            "changes.",
        ),
    ] = 15.0
    thresholds_percent: Annotated[
        list[Annotated[int, Meta(ge=1, le=100)]],
        Meta(
            max_length=6,
            description="Percent of the effective limit at which the six steps begin: give back what is not needed, "
            "shrink KV and save idle conversations, unload idle models, refuse new long prompts, replace the engine, "
            "restart the service. Empty: by the size of the limit.",
        ),
    ] = []
    engine_limit_percent: Annotated[
        float,
        Meta(
            ge=110,
            le=1000,
            description="An engine whose own memory is above this share of what was planned for it is replaced.",
        ),
    ] = 150.0
    own_limit_percent: Annotated[
        float,
        Meta(
            ge=10,
            le=100,
            description="Share of the board that the service and its engines may take where no control group limits "
            "them.",
        ),
    ] = 85.0
    long_prompt_tokens: Annotated[
        int,
        Meta(
            ge=16,
            le=1048576,
            description="A prompt with more tokens to compute than this is long: refused while memory is short.",
        ),
    ] = 1024
