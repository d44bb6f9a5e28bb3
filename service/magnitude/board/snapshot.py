"""What the hardware says at one moment: the one view that every decision starts from.

The sampler makes it, from whatever the kernel and the firmware tell; everything else only reads it. A figure that
could not be read is None, never zero: unknown is neither cool nor fine.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.board.cpu import EngineCpus
from magnitude.board.memory_reading import MemoryReading

SensorKind = Literal["cpu", "gpu", "npu", "case", "battery", "other"]
DeviceKind = Literal["gpu", "npu", "memory", "other"]


class TempSensor(msgspec.Struct, frozen=True, kw_only=True):
    """A temperature sensor by its `name` (a zone's type, or a driver's name; `source` says which file). `temp_c` is
    its last good sample, `age_s` how old that is (None: there never was one), and `fault` why there is none now."""

    name: str
    kind: SensorKind
    source: str = ""
    temp_c: float | None = None
    age_s: float | None = None
    fault: str = ""


class ClockPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs that share one clock. `cpus` are those online, `opps_khz` the clocks that the hardware has, ascending
    (empty: not told). `min_khz` and `max_khz` are the hardware's limits, `cap_khz` the upper limit in force as read
    back, `cur_khz` the clock that the kernel asked for: the firmware may run another one."""

    name: str
    cpus: tuple[int, ...] = ()
    opps_khz: tuple[int, ...] = ()
    min_khz: int | None = None
    max_khz: int | None = None
    cap_khz: int | None = None
    cur_khz: int | None = None
    governor: str = ""
    writable: bool = False


class ClockedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A unit beside the CPUs with a clock of its own (devfreq): graphics, accelerator, memory controller."""

    name: str
    kind: DeviceKind
    governor: str = ""
    min_khz: int | None = None
    max_khz: int | None = None
    cur_khz: int | None = None


class FirmwareFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What a Raspberry Pi's firmware does about supply and heat."""

    under_voltage: bool = False
    clock_capped: bool = False
    throttled: bool = False
    soft_limit: bool = False


class Firmware(msgspec.Struct, frozen=True, kw_only=True):
    """`now` and `since_boot` are None where the firmware cannot be asked; `hint` says then what would help."""

    now: FirmwareFlags | None = None
    since_boot: FirmwareFlags | None = None
    hint: str = ""


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """The supply. `on_mains` None: not told (boards without a battery seldom tell). `battery_percent` None: there is
    no battery, or it does not say. `discharging`: the battery feeds the board now."""

    on_mains: bool | None = None
    battery_percent: float | None = None
    discharging: bool | None = None
    battery_temp_c: float | None = None


class Fan(msgspec.Struct, frozen=True, kw_only=True):
    """A cooling device that blows. `state` of `max_state`; `rpm` where it is measured."""

    name: str
    state: int | None = None
    max_state: int | None = None
    rpm: int | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The board at `at_s` (monotonic).

    `hottest_c` is the warmest fresh sensor at the processor: what limits go by. `fused_c` weighs processor, graphics
    and case or battery: what the board as a whole is like. Both are None when no such sensor has answered lately.
    `online` are the CPUs that run; `usable_threads` of them this process may use at once. `engine` is what the engine
    may, as it is now.
    """

    at_s: float
    board: str = ""
    online: tuple[int, ...] = ()
    usable_threads: int = 1
    engine: EngineCpus = EngineCpus()
    temps: tuple[TempSensor, ...] = ()
    hottest_c: float | None = None
    fused_c: float | None = None
    clocks: tuple[ClockPolicy, ...] = ()
    devices: tuple[ClockedDevice, ...] = ()
    firmware: Firmware = Firmware()
    power: Power = Power()
    fans: tuple[Fan, ...] = ()
    memory: MemoryReading | None = None
