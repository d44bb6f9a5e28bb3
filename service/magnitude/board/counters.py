"""The processor's own counters for this process: cycles, instructions, cache misses, branch misses.

`perf_event_open(2)`, called directly: no library of Debian's or PyPI's wraps it without a build of its own. Each
event is opened by itself and followed into threads that are made later (`inherit`, which excludes reading events as a
group). Many machines have none of them (virtual ones), or do not let us (`kernel.perf_event_paranoid`, a seccomp
filter): then a figure is None and the reason is told, never zero.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Callable
from typing import Literal

import msgspec

CounterName = Literal["cycles", "instructions", "cache_misses", "branch_misses", "memory_stalls"]

# <linux/perf_event.h>: type and config of the events, PERF_TYPE_HARDWARE is 0. Misses are those of the last cache, as
# the kernel maps them for each processor; stalls are cycles in which nothing could be finished ("stalled-cycles-
# backend"), for want of memory mostly.
_EVENTS: dict[CounterName, tuple[int, int]] = {
    "cycles": (0, 0),
    "instructions": (0, 1),
    "cache_misses": (0, 3),
    "branch_misses": (0, 5),
    "memory_stalls": (0, 8),
}
_ATTR_BYTES = 112  # PERF_ATTR_SIZE_VER5; a kernel takes every size that it knows
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 1, 1 << 5, 1 << 6
_TOTAL_TIMES = 0b11  # PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING
_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
_SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "armv7l": 364, "armv6l": 364, "i686": 336}
# Of a line that the last cache fetches. 64 bytes on every processor that the profiles know (Cortex-A55, -A76, x86).
LINE_BYTES = 64

_WHY = {
    errno.ENOENT: "the processor (or the virtual machine) has no such counter",
    errno.EOPNOTSUPP: "the processor has no such counter",
    errno.ENODEV: "the processor has no such counter",
    errno.EACCES: "not permitted: see kernel.perf_event_paranoid and hardware-counters.conf",
    errno.EPERM: "not permitted: see kernel.perf_event_paranoid and hardware-counters.conf",
    errno.ENOSYS: "the kernel has no perf events",
    errno.EMFILE: "too many open files",
    errno.EBUSY: "the counter is in use by somebody else",
}

# Opens an event by its attributes for this process; a descriptor, or a negative errno.
Opener = Callable[[bytes], int]


class CounterReading(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in user mode since the counters were opened, by all threads of the process. An event that
    shares a counter of the processor with others is scaled up to all of the time. None: it cannot be counted here."""

    cycles: int | None = None
    instructions: int | None = None
    cache_misses: int | None = None
    branch_misses: int | None = None
    memory_stalls: int | None = None


class CounterRates(msgspec.Struct, frozen=True, kw_only=True):
    """Derived from two readings: instructions a cycle, misses of 1,000 instructions, share of cycles that waited, and
    what the last cache fetched from memory a second (an estimate: prefetched lines are not always counted)."""

    ipc: float | None = None
    cache_misses_per_1000: float | None = None
    branch_misses_per_1000: float | None = None
    stalled_share: float | None = None
    read_bytes_s: float | None = None


def _open_by_kernel(attributes: bytes) -> int:
    import ctypes  # readings are told to processes that count nothing

    number = _SYSCALL.get(platform.machine())
    if number is None:
        return -errno.ENOSYS
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    # This process on any CPU, no group.
    descriptor = int(libc.syscall(number, ctypes.create_string_buffer(attributes), 0, -1, -1, _CLOEXEC))
    return descriptor if descriptor >= 0 else -(ctypes.get_errno() or errno.EIO)


class Counters:
    """Opened for the process that makes it; threads that it starts from then on are counted, earlier ones are not.
    `missing` says by name why one of the `known` figures cannot be had. Not thread-safe."""

    def __init__(self, opener: Opener = _open_by_kernel) -> None:
        self.missing: dict[CounterName, str] = {}
        self.known = len(_EVENTS)
        self._descriptors: dict[CounterName, int] = {}
        for name, (type_, config) in _EVENTS.items():
            descriptor = opener(attributes_of(type_, config))
            if descriptor >= 0:
                self._descriptors[name] = descriptor
            else:
                self.missing[name] = _WHY.get(-descriptor, os.strerror(-descriptor))

    def read(self) -> CounterReading:
        """Since they were opened. A counter that cannot be read any more is None from then on."""
        counts: dict[str, int] = {}
        for name, descriptor in list(self._descriptors.items()):
            try:
                counts[name] = scaled(os.read(descriptor, 24))
            except (OSError, struct.error) as error:
                os.close(self._descriptors.pop(name))
                self.missing[name] = f"it cannot be read: {error}"
        return CounterReading(**counts)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def attributes_of(type_: int, config: int) -> bytes:
    """`struct perf_event_attr`: type, size, config, (sample period and type), read format, flags."""
    flags = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV
    return struct.pack("=IIQQQQQ", type_, _ATTR_BYTES, config, 0, 0, _TOTAL_TIMES, flags).ljust(_ATTR_BYTES, b"\0")


def scaled(data: bytes) -> int:
    """The count, scaled up by the share of the time in which the event really had a counter.

    Raises `struct.error`.
    """
    count, enabled_ns, running_ns = struct.unpack("=QQQ", data)
    return int(count if not running_ns or running_ns >= enabled_ns else round(count * enabled_ns / running_ns))


def rates_between(before: CounterReading, now: CounterReading, seconds: float) -> CounterRates:
    """What happened in the `seconds` between two readings of the same counters."""
    cycles, instructions = (_since(before, now, name) for name in ("cycles", "instructions"))
    misses, branches, stalls = (
        _since(before, now, name) for name in ("cache_misses", "branch_misses", "memory_stalls")
    )
    return CounterRates(
        ipc=_ratio(instructions, cycles),
        cache_misses_per_1000=_ratio(misses, instructions, 1000.0),
        branch_misses_per_1000=_ratio(branches, instructions, 1000.0),
        stalled_share=_ratio(stalls, cycles),
        read_bytes_s=misses * LINE_BYTES / seconds if misses is not None and seconds > 0 else None,
    )


def _since(before: CounterReading, now: CounterReading, name: str) -> int | None:
    earlier, later = getattr(before, name), getattr(now, name)
    if earlier is None or later is None or later < earlier:  # counters of another process
        return None
    return int(later - earlier)


def _ratio(part: int | None, whole: int | None, factor: float = 1.0) -> float | None:
    return factor * part / whole if part is not None and whole else None
