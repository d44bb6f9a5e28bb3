"""What the hardware says, and what it can be told: CPUs, memory, storage; every reader takes its roots."""

from magnitude.board.cpu import (
    Cluster,
    CpuSnapshot,
    Topology,
    compute_cpus,
    cpu_features,
    cpu_quota,
    parse_cpu_list,
    read_cpu,
    topology,
    usable_threads,
)
from magnitude.board.memory import MemorySnapshot, effective_memory
from magnitude.board.roots import HostRoots
from magnitude.board.storage import StorageSnapshot, free_bytes, storage_of

__all__ = [
    "Cluster",
    "CpuSnapshot",
    "HostRoots",
    "MemorySnapshot",
    "StorageSnapshot",
    "Topology",
    "compute_cpus",
    "cpu_features",
    "cpu_quota",
    "effective_memory",
    "free_bytes",
    "parse_cpu_list",
    "read_cpu",
    "storage_of",
    "topology",
    "usable_threads",
]
