"""Which CPUs this process may use, how fast each is, and what they can compute."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from magnitude.board.cgroup import chains
from magnitude.board.roots import HostRoots, read_int, read_text

# Features that change how fast a model runs, under the kernel's names. Everything else in /proc/cpuinfo is noise
# to us, and would only make keys and messages longer.
RELEVANT_FEATURES = frozenset(
    {
        *("avx", "avx2", "fma", "f16c"),
        *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
        *("avx_vnni", "amx_tile", "amx_int8"),
        *("asimd", "asimdhp", "fphp", "asimddp", "i8mm", "bf16"),
        *("sve", "sve2", "svei8mm", "sme"),
    }
)

# More than any CPU has: two of the first level, and one of each further.
_MOST_CACHES = 8


class CpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One online CPU. `capacity` is the kernel's scale (1024: the fastest core of the board)."""

    cpu: int
    capacity: int | None
    max_freq_khz: int | None


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs of one speed. `speed` compares clusters of one board with each other; it has no unit of its own.
    `l2_bytes` and `l3_bytes` are all caches of that level that its CPUs have, also those shared with others (None:
    not told)."""

    cpus: tuple[int, ...]
    speed: int
    max_freq_khz: int | None
    l2_bytes: int | None = None
    l3_bytes: int | None = None


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """Online CPUs by speed, the fastest cluster first."""

    online: tuple[int, ...]
    clusters: tuple[Cluster, ...]


class CpuSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a process may use. `quota_cpus` is CPU time over wall time that its groups grant (None: no quota)."""

    machine: str
    features: tuple[str, ...]
    topology: Topology
    affinity: tuple[int, ...]
    quota_cpus: float | None
    threads: int


class EngineCpus(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine may use now: `cores` by number, the fastest first, `big` of them of the fastest kind, and
    `usable` at once under its quota."""

    cores: tuple[int, ...] = ()
    big: int = 0
    usable: int = 1


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPUs in the kernel's list notation, `0-3,6`. Parts that do not parse are left out."""
    cpus: set[int] = set()
    for part in text.replace("\n", ",").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def cpu_list(cpus: Collection[int]) -> str:
    """CPUs in that notation."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in spans)


def cpu_quota(roots: HostRoots | None = None, pid: int | None = None) -> float | None:
    """The tightest CPU bandwidth limit of the groups of this process, or of process `pid`, in CPUs; None without
    one."""
    roots = roots or HostRoots()
    quotas: list[float] = []
    for chain in chains(roots, "cpu", pid):
        for folder in chain.folders:
            quota = _quota_v2(folder) if chain.version == 2 else _quota_v1(folder)
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _quota_v2(folder: Path) -> float | None:
    words = (read_text(folder / "cpu.max") or "").split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(folder: Path) -> float | None:
    quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
    if quota is None or quota < 0 or not period:
        return None
    return quota / period


def usable_threads(cpus: int, quota_cpus: float | None) -> int:
    """Threads that can run at once on `cpus` CPUs under the quota: max(1, min(cpus, floor(quota))).

    Rounded down: a thread too many makes the kernel stop all of them until the next period, and one that waits
    for the others makes the whole graph wait.
    """
    return max(1, min(cpus, int(quota_cpus)) if quota_cpus is not None else cpus)


def thread_affinity(roots: HostRoots, pid: int | None = None) -> frozenset[int]:
    """The CPUs on which any thread of this process, or of process `pid`, may run. Threads of a pool can be bound to
    some of what the process has; what all have together is that. Empty when the process is gone."""
    cpus: set[int] = set()
    try:
        for task in (roots.proc / str(pid or "self") / "task").iterdir():
            with contextlib.suppress(OSError, ValueError):  # it has just ended
                cpus |= os.sched_getaffinity(int(task.name))
    except OSError:
        return frozenset()
    return frozenset(cpus)


def engine_cpus(board: Topology, allowed: Collection[int], quota_cpus: float | None) -> EngineCpus:
    """The online ones of `allowed`, by speed."""
    groups = [tuple(cpu for cpu in cluster.cpus if cpu in allowed) for cluster in board.clusters]
    groups = [group for group in groups if group]
    cores = tuple(cpu for group in groups for cpu in group)
    return EngineCpus(
        cores=cores, big=len(groups[0]) if groups else 0, usable=usable_threads(max(1, len(cores)), quota_cpus)
    )


def topology(roots: HostRoots | None = None) -> Topology:
    """Online CPUs by speed: `cpu_capacity` where the kernel gives it, else the highest clock, else all alike.

    What one CPU's files do not say now (EBUSY while it comes and goes), a CPU of the same clock says for it.
    """
    roots = roots or HostRoots()
    tree = roots.sys / "devices/system/cpu"
    online = parse_cpu_list(read_text(tree / "online") or "")
    if not online:
        online = tuple(sorted(os.sched_getaffinity(0)))
    infos = [
        CpuInfo(
            cpu=cpu,
            capacity=read_int(tree / f"cpu{cpu}/cpu_capacity"),
            max_freq_khz=read_int(tree / f"cpu{cpu}/cpufreq/cpuinfo_max_freq"),
        )
        for cpu in online
    ]
    if any(info.capacity is None or info.max_freq_khz is None for info in infos):
        infos = _completed(infos, policies(roots))
    clusters = cluster_by_speed(infos)
    return Topology(
        online=online,
        clusters=tuple(
            msgspec.structs.replace(
                cluster, l2_bytes=_cache_bytes(tree, cluster.cpus, 2), l3_bytes=_cache_bytes(tree, cluster.cpus, 3)
            )
            for cluster in clusters
        ),
    )


def policies(roots: HostRoots) -> tuple[tuple[int, ...], ...]:
    """CPUs that share a clock, those offline included."""
    try:
        folders = sorted((roots.sys / "devices/system/cpu/cpufreq").glob("policy*"))
    except OSError:
        return ()
    return tuple(cpus for folder in folders if (cpus := spaced_cpus(folder / "related_cpus")))


def spaced_cpus(file: Path) -> tuple[int, ...]:
    """cpufreq separates CPUs by spaces."""
    return parse_cpu_list((read_text(file) or "").replace(" ", ","))


def _completed(infos: list[CpuInfo], groups: Iterable[tuple[int, ...]]) -> list[CpuInfo]:
    known = {info.cpu: info for info in infos}
    completed = []
    for info in infos:
        mates = [known[cpu] for group in groups if info.cpu in group for cpu in group if cpu in known]
        capacities = (mate.capacity for mate in mates if mate.capacity)
        clocks = (mate.max_freq_khz for mate in mates if mate.max_freq_khz)
        completed.append(
            CpuInfo(
                cpu=info.cpu,
                capacity=info.capacity or next(capacities, None),
                max_freq_khz=info.max_freq_khz or next(clocks, None),
            )
        )
    return completed


def _cache_bytes(tree: Path, cpus: Iterable[int], level: int) -> int | None:
    """All caches of that level together. Each CPU lists its own as `index0` to `index3` or so."""
    sizes: dict[tuple[int, ...], int] = {}
    for cpu in cpus:
        for index in range(_MOST_CACHES):
            folder = tree / f"cpu{cpu}/cache/index{index}"
            found = read_int(folder / "level")
            if found is None:
                break
            if found == level and (size := parse_size(read_text(folder / "size") or "")) is not None:
                sizes[parse_cpu_list(read_text(folder / "shared_cpu_list") or str(cpu))] = size
    return sum(sizes.values()) if sizes else None


def parse_size(text: str) -> int | None:
    """Bytes in the kernel's notation, `512K`."""
    digits = text.rstrip("KM")
    shift = {"": 0, "K": 10, "M": 20}.get(text[len(digits) :])
    return int(digits) << shift if digits.isdecimal() and shift is not None else None


def cluster_by_speed(infos: Iterable[CpuInfo]) -> tuple[Cluster, ...]:
    """Group CPUs by speed, the fastest first. A measure counts only when every CPU has it."""
    infos = list(infos)
    if all(info.capacity for info in infos):
        speeds = {info.cpu: info.capacity or 0 for info in infos}
    elif all(info.max_freq_khz for info in infos):
        speeds = {info.cpu: info.max_freq_khz or 0 for info in infos}
    else:
        speeds = {info.cpu: 1 for info in infos}
    clusters: list[Cluster] = []
    for speed in sorted(set(speeds.values()), reverse=True):
        members = [info for info in infos if speeds[info.cpu] == speed]
        clocks = [info.max_freq_khz for info in members if info.max_freq_khz is not None]
        clusters.append(
            Cluster(
                cpus=tuple(sorted(info.cpu for info in members)),
                speed=speed,
                max_freq_khz=max(clocks, default=None),
            )
        )
    return tuple(clusters)


def compute_cpus(board: Topology, allowed: Collection[int]) -> tuple[int, ...]:
    """The CPUs among `allowed` on which a graph runs fastest.

    A graph's work is split evenly, so its speed is the number of CPUs times the slowest one's: clusters are added
    from the fastest down as long as that product grows. (RK3588: 4 * 1024 > 8 * 414, so the big cores alone.)
    """
    best: tuple[int, ...] = ()
    best_rate = 0
    taken: tuple[int, ...] = ()
    for cluster in board.clusters:
        taken += tuple(cpu for cpu in cluster.cpus if cpu in allowed)
        if len(taken) * cluster.speed > best_rate:
            best, best_rate = taken, len(taken) * cluster.speed
    return tuple(sorted(best)) or tuple(sorted(allowed))


def cpu_features(roots: HostRoots | None = None) -> tuple[str, ...]:
    """Those `RELEVANT_FEATURES` that every CPU of the board has, sorted.

    Clusters can differ; a feature that only some cores have would be an illegal instruction on the others.
    """
    roots = roots or HostRoots()
    common: set[str] | None = None
    for line in (read_text(roots.proc / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            have = RELEVANT_FEATURES & set(value.split())
            common = set(have) if common is None else common & have
    return tuple(sorted(common or ()))


def read_cpu(roots: HostRoots | None = None, affinity: Collection[int] | None = None) -> CpuSnapshot:
    """Everything above in one reading. `affinity` None asks the kernel for this process's mask."""
    roots = roots or HostRoots()
    allowed = os.sched_getaffinity(0) if affinity is None else affinity
    board = topology(roots)
    quota = cpu_quota(roots)
    return CpuSnapshot(
        machine=os.uname().machine,
        features=cpu_features(roots),
        topology=board,
        affinity=tuple(sorted(allowed)),
        quota_cpus=quota,
        threads=usable_threads(len(compute_cpus(board, allowed)), quota),
    )
