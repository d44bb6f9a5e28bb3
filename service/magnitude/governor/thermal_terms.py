"""What the thermal governor sees, and what it may ask for."""

from __future__ import annotations

from typing import Literal

import msgspec

# "mixed": prompts are read while answers are written.
Phase = Literal["idle", "prefill", "decode", "mixed"]
PHASES: tuple[Phase, ...] = ("idle", "prefill", "decode", "mixed")
# "cool": no limit is in force. "warm": limits hold the chip below its target. "hot": the safety net holds everything
# down until it has cooled. "blind": no sensor can be trusted.
HeatState = Literal["cool", "warm", "hot", "blind"]


class ClusterSight(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs that share a clock, as `board.snapshot.ClockPolicy` has them. `writable` False: its cap is not ours."""

    name: str
    cpus: int
    opps_khz: tuple[int, ...]
    cap_khz: int | None = None
    cur_khz: int | None = None
    writable: bool = True


class LoadSight(msgspec.Struct, frozen=True, kw_only=True):
    """What runs now, and the share of the time since the last look that went into each phase (the rest was idle).
    `rows` sequences decode together."""

    phase: Phase = "idle"
    prefill_share: float = 0.0
    decode_share: float = 0.0
    mixed_share: float = 0.0
    running: int = 0
    waiting: int = 0
    rows: int = 0


class ThermalSight(msgspec.Struct, frozen=True, kw_only=True):
    """`temp_c` is the warmest trusted sensor at the processor, `age_s` old; None: none has answered. `soft_limit` and
    `throttled` are the firmware's own word, None where it cannot be asked."""

    temp_c: float | None
    age_s: float = 0.0
    clusters: tuple[ClusterSight, ...] = ()
    load: LoadSight = LoadSight()
    soft_limit: bool | None = None
    throttled: bool | None = None


class SetCaps(msgspec.Struct, frozen=True):
    """Upper clock limits by cluster, in kHz; None: as it was found."""

    caps_khz: dict[str, int | None]
    reason: str


class SetDuty(msgspec.Struct, frozen=True):
    """The engine computes for this share of the time at most, and pauses between steps for the rest; 1: always."""

    share: float
    reason: str


class SetThreads(msgspec.Struct, frozen=True):
    """Threads for prompts and for answers; None: as planned. A wish to the policy, which may not be able to."""

    prefill: int | None
    decode: int | None
    reason: str


class SetConcurrency(msgspec.Struct, frozen=True):
    """Generations that may run at once; None: as planned."""

    limit: int | None
    reason: str


class PreferSmaller(msgspec.Struct, frozen=True):
    """Whether a smaller variant should be used where there is one. A wish to the policy."""

    on: bool
    reason: str


class Announce(msgspec.Struct, frozen=True):
    """From `before` the board went to `state`."""

    state: HeatState
    before: HeatState
    reason: str


Effect = SetCaps | SetDuty | SetThreads | SetConcurrency | PreferSmaller | Announce
