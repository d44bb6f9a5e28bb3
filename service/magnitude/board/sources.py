"""Everything on the board that can be read, how often each is worth it, and the snapshot that comes of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from magnitude.board.bounded_reads import Result
from magnitude.board.clocks import PolicyReader, find_policies
from magnitude.board.cpu import (
    EngineCpus,
    Topology,
    compute_cpus,
    cpu_quota,
    engine_cpus,
    thread_affinity,
    topology,
    usable_threads,
)
from magnitude.board.devices import DeviceReader, find_devices
from magnitude.board.fan import FanReader, find_fans
from magnitude.board.firmware import COMMAND, MAILBOX, FirmwareReader, throttled_files
from magnitude.board.heat import FRESH_S, fused, hottest, warmest
from magnitude.board.kernel_file import KernelFile, NoSample
from magnitude.board.memory_reading import MemoryReading
from magnitude.board.power import PowerReader
from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import compatible
from magnitude.board.roots import HostRoots
from magnitude.board.sampling_rate import CALM_S
from magnitude.board.sensors import Sensor, Unit, find_sensors
from magnitude.board.snapshot import (
    ClockedDevice,
    ClockPolicy,
    Fan,
    Firmware,
    Power,
    SensorKind,
    Snapshot,
)

log = logging.getLogger("magnitude.sensors")

# Seconds between two reads at the fast rate. All stretch with it, up to `CALM_S`: what is older is not fresh.
SENSOR_PERIODS_S: Mapping[SensorKind, float] = {
    "cpu": 0.1,
    "gpu": 0.15,
    "npu": 0.15,
    "case": 0.2,
    "battery": 0.2,
    "other": 2.0,
}
# These are decided by within seconds, or only shown.
CLOCKS_S = 0.5
DEVICES_S = 2.0
# As often as the kernel's own driver asks it.
FIRMWARE_S = 2.0
FANS_S = 2.0
# A battery's controller answers over I2C, slowly.
POWER_S = 5.0
# What events tell of at once (hotplug), in case that there are none.
CPUS_S = 10.0
# Quotas and masks change without an event. A few small files and a system call for each thread of the engine; who
# chooses threads by them wants to know within seconds.
ALLOWANCE_S = 2.0
# Slow by nature, so nobody waits for them from the start.
SLOW = frozenset({"firmware", "power"})


class Cpus(msgspec.Struct, frozen=True):
    """What this process may use of the CPUs that run."""

    board: Topology = Topology(online=(), clusters=())
    usable_threads: int = 1


class Allowance(msgspec.Struct, frozen=True):
    """What the engine may use; `cpus` None: all that run."""

    cpus: frozenset[int] | None = None
    quota_cpus: float | None = None


class Reader(Protocol):
    """What reads one thing again and again. `key` tells it from all others."""

    @property
    def key(self) -> str: ...

    def close(self) -> None: ...


class Sources:
    """One board, as enumerated once. Make a new one when devices have come or gone; `carry` keeps what is known.

    `affinity` are the CPUs that this process may run on, None: asked from the kernel on this machine's own roots, all
    that are online on others. `engine_pid` says which process the engine is (None: there is none, and it will be
    allowed what this one is). `vcgencmd` is the command that asks a Raspberry Pi's firmware, None: the usual one on
    this machine's own roots, none on others.
    """

    def __init__(
        self,
        roots: HostRoots,
        profile: BoardProfile,
        *,
        units: Mapping[str, Unit] | None = None,
        affinity: Collection[int] | None = None,
        engine_pid: Callable[[], int | None] = lambda: None,
        vcgencmd: tuple[str, ...] | None = None,
        files: Callable[[Path], KernelFile] = KernelFile,
    ) -> None:
        self._roots = roots
        self._engine_pid = engine_pid
        self._affinity = affinity
        own = roots.sys == HostRoots().sys
        self._ask_affinity = affinity is None and own
        self.sensors = find_sensors(roots, profile.zones, units, files)
        self.policies: tuple[PolicyReader, ...] = find_policies(roots)
        self.devices: tuple[DeviceReader, ...] = find_devices(roots)
        self.fans: tuple[FanReader, ...] = find_fans(roots)
        self.power = PowerReader(roots)
        self.firmware = _firmware(roots, own, vcgencmd)
        self._board = profile.name
        self._clocks: dict[str, ClockPolicy] = {}
        self._clocked: dict[str, ClockedDevice] = {}
        self._blowing: dict[str, Fan] = {}
        self._said = Firmware()
        self._fed = Power()
        self._cpus = Cpus()
        self._allowed: Allowance | None = None
        self._engine = EngineCpus()
        self._by_key = {sensor.key: sensor for sensor in self.sensors}
        self._zones = {
            kind: [s for s in self.sensors if (s.place, s.kind) == ("zone", kind)] for kind in SENSOR_PERIODS_S
        }
        drivers = [sensor for sensor in self.sensors if sensor.place == "hwmon"]
        self._doubled = {each.kind: {s.key for s in drivers if s.kind == each.kind} for each in drivers}
        self._planned: tuple[float, frozenset[str], dict[str, float]] | None = None
        self._periods = self._all_periods()
        self._leading = {sensor.key for sensor in self.sensors if sensor.kind == "cpu"} or set(self._periods)
        self._reads = self._all_reads()

    # --- what to read ---

    def periods(self, now_s: float, stretch: float) -> Mapping[str, float]:
        """Seconds between two reads, by key. `stretch`: the current period of sampling over the fastest one. The same
        object as before where nothing has changed."""
        spare = self._spare(now_s)
        if self._planned is None or self._planned[:2] != (stretch, spare):
            plan = {
                key: max(period, min(period * stretch, CALM_S))
                for key, period in self._periods.items()
                if key not in spare
            }
            self._planned = (stretch, spare, plan)
        return self._planned[2]

    def leads(self, key: str) -> bool:
        """Whether rounds go by this one: a sensor at the processor, or anything where there is none."""
        return key in self._leading

    def read(self, key: str) -> Callable[[], object]:
        return self._reads[key]

    def keys(self) -> frozenset[str]:
        return frozenset(self._reads)

    def took(self, results: Mapping[str, Result]) -> None:
        """What came of reads."""
        for key, result in results.items():
            if (sensor := self._by_key.get(key)) is not None:
                self._sensed(sensor, result)
            elif result.error is not None:
                log.warning(
                    "%s could not be read: %s", key, result.error, exc_info=result.error, extra={"cause": key}
                )
            else:
                self._keep(key, result.value)

    def missed(self, keys: Collection[str], fault: str) -> None:
        """These have not answered."""
        for key in keys:
            if (sensor := self._by_key.get(key)) is not None:
                sensor.missed(fault)

    def snapshot(self, now_s: float, memory: MemoryReading | None = None) -> Snapshot:
        temps = tuple(sensor.seen(now_s) for sensor in self.sensors if sensor.place == "zone" or sensor.asked)
        by_kind = warmest(temps)
        return Snapshot(
            at_s=now_s,
            board=self._board,
            online=self._cpus.board.online,
            usable_threads=self._cpus.usable_threads,
            engine=self._engine,
            temps=temps,
            hottest_c=hottest(by_kind),
            fused_c=fused(by_kind),
            clocks=tuple(self._clocks.values()),
            devices=tuple(self._clocked.values()),
            firmware=self._said,
            power=self._fed,
            fans=tuple(self._blowing.values()),
            memory=memory,
        )

    def carry(self, old: Sources) -> None:
        """Keep what `old` knew of what is still there: nothing is unknown for having been looked for again."""
        for sensor in self.sensors:
            before = old._by_key.get(sensor.key)
            if before is not None and before.name == sensor.name:
                sensor.carry(before)
        self._clocks = {reader.key: old._clocks[reader.key] for reader in self.policies if reader.key in old._clocks}
        self._clocked = {key: old._clocked[key] for key in (r.key for r in self.devices) if key in old._clocked}
        self._blowing = {key: old._blowing[key] for key in (r.key for r in self.fans) if key in old._blowing}
        self._said, self._fed, self._cpus = old._said, old._fed, old._cpus
        self._allowed, self._engine = old._allowed, old._engine

    def close(self) -> None:
        """Readers that are stuck in another thread keep their file; it goes with them."""
        readers: list[Reader] = [*self.sensors, *self.policies, *self.devices, *self.fans, self.power]
        if self.firmware is not None:
            readers.append(self.firmware)
        for reader in readers:
            reader.close()

    # --- inside ---

    def _all_periods(self) -> dict[str, float]:
        return (
            {sensor.key: SENSOR_PERIODS_S[sensor.kind] for sensor in self.sensors}
            | {reader.key: CLOCKS_S for reader in self.policies}
            | {reader.key: DEVICES_S for reader in self.devices}
            | {reader.key: FANS_S for reader in self.fans}
            | {"power": POWER_S, "cpus": CPUS_S, "allowance": ALLOWANCE_S}
            | ({"firmware": FIRMWARE_S} if self.firmware is not None else {})
        )

    def _all_reads(self) -> dict[str, Callable[[], object]]:
        reads: dict[str, Callable[[], object]] = {sensor.key: sensor.sample for sensor in self.sensors}
        reads |= {reader.key: reader.read for reader in self.policies}
        reads |= {reader.key: reader.read for reader in self.devices}
        reads |= {reader.key: reader.read for reader in self.fans}
        reads |= {"power": self.power.read, "cpus": self._read_cpus, "allowance": self._read_allowance}
        if self.firmware is not None:
            reads["firmware"] = self.firmware.read
        return reads

    def _spare(self, now_s: float) -> frozenset[str]:
        """hwmon shows the same sensors as zones do: it is read only for places where no zone answers."""
        return frozenset().union(
            *(keys for kind, keys in self._doubled.items() if any(_answers(z, now_s) for z in self._zones[kind]))
        )

    def _sensed(self, sensor: Sensor, result: Result) -> None:
        if result.error is None:
            sensor.took(result.value, result.at_s)
        elif isinstance(result.error, NoSample):
            sensor.missed(str(result.error))
        else:
            sensor.missed(f"{type(result.error).__name__}: {result.error}")

    def _keep(self, key: str, value: object) -> None:
        match value:
            case ClockPolicy():
                self._clocks[key] = value
            case ClockedDevice():
                self._clocked[key] = value
            case Fan():
                self._blowing[key] = value
            case Firmware():
                self._said = value
            case Power():
                self._fed = value
            case Cpus():
                self._cpus = value
                self._see_engine()
            case Allowance():
                self._allowed = value
                self._see_engine()

    def _see_engine(self) -> None:
        if self._allowed is not None and self._cpus.board.online:
            board, allowed = self._cpus.board, self._allowed
            cpus = board.online if allowed.cpus is None else allowed.cpus
            self._engine = engine_cpus(board, cpus, allowed.quota_cpus)

    def _read_cpus(self) -> Cpus:
        board = topology(self._roots)
        allowed: Collection[int] = board.online
        if self._ask_affinity:
            allowed = os.sched_getaffinity(0)
        elif self._affinity is not None:
            allowed = self._affinity
        usable = usable_threads(len(compute_cpus(board, allowed)), cpu_quota(self._roots))
        return Cpus(board, usable)

    def _read_allowance(self) -> Allowance:
        pid = self._engine_pid()
        if not self._ask_affinity:
            cpus = frozenset(self._affinity) if self._affinity is not None else None
            return Allowance(cpus, cpu_quota(self._roots, pid))
        cpus = thread_affinity(self._roots, pid)
        if cpus:
            return Allowance(cpus, cpu_quota(self._roots, pid))
        return Allowance(frozenset(os.sched_getaffinity(0)), cpu_quota(self._roots))  # it has just ended


def _answers(zone: Sensor, now_s: float) -> bool:
    """One that has not been read yet is given the chance."""
    age_s = zone.age_s(now_s)
    return age_s <= FRESH_S if age_s is not None else not zone.fault


def _firmware(roots: HostRoots, own: bool, command: tuple[str, ...] | None) -> FirmwareReader | None:
    """Only a Raspberry Pi has one that can be asked."""
    if not any(name.startswith("raspberrypi,") for name in compatible(roots)) and not throttled_files(roots):
        return None
    asked = command if command is not None else COMMAND if own else ()
    return FirmwareReader(roots, mailbox=MAILBOX if own else None, command=asked)
