"""What is shown of memory and of the steps that were taken, in `/v1/magnitude/state` and the metrics."""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.governor.memory_ladder import Step


class StepTaken(msgspec.Struct, frozen=True, kw_only=True):
    """`what` was done `ago_s` ago, and why, with the figures of that moment."""

    step: Step
    what: str
    reason: str
    ago_s: float


class MemoryState(msgspec.Struct, frozen=True, kw_only=True):
    """`limit_bytes` is the nearest limit and `limit_path` whose it is; `pressure_bytes` counts against it,
    `file_bytes` are clean pages of files beside it. `memory_limit`: the tightest limit of a control group, or `none`.
    `psi`: whether the kernel tells of stalls; `watch`: who reports a shortage at once (`none`: nobody, it is only
    looked for). `own_bytes` is held by the service and its engines. `hints`: what would let it see or hold more.
    """

    enabled: bool = True
    step: Step = "normal"
    reason: str = ""
    limit_bytes: int | None = None
    limit_path: str = ""
    memory_limit: str = "none"
    pressure_bytes: int | None = None
    pressure_percent: float | None = None
    file_bytes: int = 0
    available_bytes: int = 0
    total_bytes: int = 0
    own_bytes: int | None = None
    engine_own_bytes: int | None = None
    engine_planned_bytes: int | None = None
    psi: Literal["available", "unavailable"] = "unavailable"
    stall_some_percent: float | None = None
    stall_full_percent: float | None = None
    watch: str = "none"
    high_events: int | None = None
    max_events: int | None = None
    oom_kills: int | None = None
    board_oom_kills: int | None = None
    thresholds_percent: dict[str, int] = {}
    last_steps: list[StepTaken] = []
    steps: dict[str, int] = {}
    hints: list[str] = []
