"""`policy:` how the strategy loop (`engine.self_optimize`) learns, and within which bounds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from magnitude.config.field_test import FieldTestSettings


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    explore: Annotated[
        Literal["off", "idle", "load"],
        Meta(
            description="When other ways to run are tried. idle: only while nothing runs, given up at once when work "
            "comes; load: also with a few of the runs of requests, within loss_budget; off: never, what is known "
            "already is used."
        ),
    ] = "load"
    prefer: Annotated[
        Literal["quality", "speed"],
        Meta(
            description="Among variants of a model. quality: the most exact one that the limits allow; speed: the "
            "fastest one that passed its check."
        ),
    ] = "quality"
    least_gain: Annotated[
        float,
        Meta(
            ge=0,
            le=0.5,
            description="Share of the time that another way must save before it is taken: less cannot be told from "
            "noise within an hour, and is not worth a switch.",
        ),
    ] = 0.03
    dwell_s: Annotated[
        float,
        Meta(
            ge=1,
            le=86400,
            description="A choice stays for so long at least, and twice as long each time it comes back: a load that "
            "swings must not make the strategy swing.",
        ),
    ] = 60.0
    cold_start_s: Annotated[
        Annotated[float, Meta(ge=0, le=3600)] | None,
        Meta(
            description="So long after the start nothing is tried: caches fill and the board warms up, and what is "
            "measured then does not hold later. Unset: by the board, 30 s to 2 min.",
        ),
    ] = None
    half_life_s: Annotated[
        float,
        Meta(
            ge=10,
            le=604800,
            description="A measurement loses half of its weight within this time, so that a cold morning does not "
            "decide about a hot noon.",
        ),
    ] = 1800.0
    loss_budget: Annotated[
        float,
        Meta(
            ge=0,
            le=0.2,
            description="Share of the engine's time that trying other ways under load may cost, as far as they turn "
            "out slower.",
        ),
    ] = 0.01
    bandwidth_threshold: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Share of the board's memory bandwidth above which work counts as bound by memory: then few "
            "threads are tried first. The usual mark; a board's own knee may lie elsewhere.",
        ),
    ] = 0.7
    latency_limit_ms: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="Where the 95th percentile of a model's tasks passes this, a smaller variant of it takes its "
            "place as long as that lasts. Unset: no limit.",
        ),
    ] = None
    session_memory_bytes: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Memory for further sessions of all models together; one is taken for as large as the "
            "model's weights until it was made. Unset: what is left beside the models, given back as soon as memory "
            "gets short. 0: none, so that nothing changes but settings of a request.",
        ),
    ] = None
    save_every_s: Annotated[
        float,
        Meta(
            ge=10,
            le=86400,
            description="What was learned is written to the disk no more often than this, and at the stop: flash "
            "wears out.",
        ),
    ] = 300.0
    profile_every: Annotated[
        int,
        Meta(
            ge=0,
            description="After so many requests of a model, and an hour after the last time, its operators are "
            "profiled while the engine is idle. That takes a second or two: a thousandth of the time of as many "
            "requests. 0: never.",
        ),
    ] = 1000
    field_test: Annotated[FieldTestSettings, Meta(description="A test of the strategy loop over many devices.")] = (
        FieldTestSettings()
    )
