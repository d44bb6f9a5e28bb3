"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import msgspec

from magnitude.board.cpu import read_cpu
from magnitude.board.roots import HostRoots, read_text

# Above this one-minute load per core something else is running, and the figures are not the machine's own.
QUIET_LOAD_PER_CPU = 0.3


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The board, as far as it bears on speed."""

    cpu_model: str
    architecture: str
    cpus: int
    threads: int  # usable by a graph: affinity, clusters and quota
    cpu_features: tuple[str, ...]
    memory_bytes: int
    kernel: str
    python: str
    onnxruntime: str
    load_per_cpu: float

    @property
    def quiet(self) -> bool:
        return self.load_per_cpu <= QUIET_LOAD_PER_CPU


def read_machine(roots: HostRoots | None = None) -> Machine:
    """The machine as it is now."""
    roots = roots or HostRoots()
    cpu = read_cpu(roots)
    cpus = len(cpu.topology.online)
    return Machine(
        cpu_model=_cpu_model(roots),
        architecture=cpu.machine,
        cpus=cpus,
        threads=cpu.threads,
        cpu_features=cpu.features,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        python=platform.python_version(),
        onnxruntime=version("onnxruntime"),
        load_per_cpu=round(os.getloadavg()[0] / max(1, cpus), 2),
    )


def _cpu_model(roots: HostRoots) -> str:
    """x86 names its model in cpuinfo, Arm boards name themselves in the device tree."""
    for line in (read_text(roots.proc / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    board = read_text(Path(roots.sys / "firmware/devicetree/base/model"))
    return board.rstrip("\0") if board else "unknown"
