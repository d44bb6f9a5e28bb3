"""What is known of a board before it is measured: its description in `profiles/*.yaml`.

A profile says what a kernel does not tell (memory bandwidth by threads, where the firmware throttles, how fast the
chip warms up) and what starts off the estimates of the thermal governor, which then go by what this very board
does. The simulator runs on the same figures.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from magnitude.board.snapshot import SensorKind

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]


class Opp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operating point of a cluster: clock and core voltage."""

    khz: Annotated[int, Meta(gt=0)]
    volts: Positive


class ClusterProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPUs that share a clock. `watts_per_ghz_v2` is what one busy core takes per GHz and square volt;
    `macs_per_cycle` what it computes in a product of matrices with 4-bit weights; `bytes_per_cycle` what it can
    ask of memory alone. `hidden_compute` is the share of its computing that runs while weights arrive from memory (0:
    a core that executes in order and waits)."""

    name: str
    cpus: tuple[int, ...]
    capacity: Annotated[int, Meta(ge=1, le=1024)]
    opps: Annotated[tuple[Opp, ...], Meta(min_length=1)]
    watts_per_ghz_v2: Positive
    macs_per_cycle: Positive
    bytes_per_cycle: Positive
    hidden_compute: Annotated[float, Meta(ge=0, le=1)] = 0.8


class ZoneProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A temperature sensor: every name that kernels give it, and what it sits at. `unit` says what its file counts in
    (None: told from what it says; only zones of some vendors' kernels count whole degrees)."""

    names: Annotated[tuple[str, ...], Meta(min_length=1)]
    kind: SensorKind
    unit: Literal["milli", "degrees"] | None = None


class MemoryProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes a second that so many threads of the fastest cluster read together, at its highest clock. Decoding
    reaches `weights_share` of it."""

    read_gb_s: Annotated[dict[int, Positive], Meta(min_length=1)]
    weights_share: Annotated[float, Meta(gt=0, le=1)] = 0.9
    watts_per_gb_s: NotNegative


class PowerProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Power beside the cores' own: `chip_idle_w` heats the chip also when nothing runs, `board_idle_w` is taken
    beside the chip. Leakage is `leakage_w` at 25 °C and doubles every `leakage_doubles_c`. `stalled_activity` is
    the share of a computing core's power that one takes while it waits for memory."""

    chip_idle_w: NotNegative
    board_idle_w: NotNegative
    leakage_w: NotNegative
    leakage_doubles_c: Positive
    stalled_activity: Annotated[float, Meta(ge=0, le=1)]


class ThermalStage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage of the way that heat takes from the chip to the air (a Foster network): at a constant power it adds
    `c_per_w` degrees a watt, with the time constant `tau_s`."""

    c_per_w: Positive
    tau_s: Positive


class FanStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From `at_c` on the fan runs at `speed_percent`, which leaves `resistance_share` of the last stage's
    resistance."""

    at_c: float
    speed_percent: Annotated[int, Meta(ge=0, le=100)]
    resistance_share: Annotated[float, Meta(gt=0, le=1)]


class Trips(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the firmware or the kernel acts by itself: clocks fall step by step from `soft_c`, everything is
    limited at `hard_c`. `by` says whose way of throttling the board has: the Raspberry Pi's firmware, or the
    kernel's step-wise cooling."""

    soft_c: float
    hard_c: float
    by: Literal["firmware", "kernel"] = "firmware"


class GovernorProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where our governor holds the chip: it settles at `target_c` at most; at `down_c` everything is reduced until it
    is below `up_c` again. `cold_start_s`: how long after a start nothing is learnt or changed but for heat."""

    target_c: float
    down_c: float
    up_c: float
    cold_start_s: Annotated[float, Meta(ge=30, le=120)] = 30.0


class BoardProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One board. `compatible` are the device tree's names that mean it (empty: chosen by name only). `decode_threads`
    and `prefill_threads` are what those phases run best with, before anything is measured. `clock_governor` is the
    kernel's own, as the board's usual system starts it."""

    name: str
    title: str
    compatible: tuple[str, ...] = ()
    architecture: str = ""
    clusters: Annotated[tuple[ClusterProfile, ...], Meta(min_length=1)]
    zones: tuple[ZoneProfile, ...] = ()
    memory: MemoryProfile
    power: PowerProfile
    thermal: Annotated[tuple[ThermalStage, ...], Meta(min_length=1)]
    fan: tuple[FanStep, ...] = ()
    trips: Trips
    governor: GovernorProfile
    prefill_threads: Annotated[int, Meta(ge=1)]
    decode_threads: Annotated[int, Meta(ge=1)]
    clock_governor: str = "ondemand"
