"""How much memory can the service have?"""

from __future__ import annotations

from magnitude.board import effective_memory
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

MIB = 1 << 20
# The smallest embedded model with its engine and the service takes about 350 MiB; below that it cannot start.
LEAST_BYTES = 350 * MIB
# Room for a model of half a billion parameters in 4 bits with its KV cache and the system beside it.
COMFORTABLE_BYTES = 1024 * MIB


def check(context: DoctorContext) -> Finding:
    memory = effective_memory(context.roots)
    if memory.total_bytes == 0:
        return Finding(
            level="notice", title="The memory is unknown", detail=f"{context.roots.proc}/meminfo says nothing"
        )
    lines = [f"total {_mib(memory.total_bytes)}, available {_mib(memory.available_bytes)}"]
    if memory.limit_bytes is not None:
        lines.append(f"control group limit {_mib(memory.limit_bytes)}, set at {memory.limit_path}")
    if memory.high_bytes is not None:
        lines.append(f"memory.high {_mib(memory.high_bytes)}: above it the kernel throttles the process")
    lines.append(f"room left {_mib(memory.headroom_bytes)}")
    detail = "\n".join(lines)
    limited = memory.headroom_bytes < memory.available_bytes
    by = "a control group leaves" if limited else "there are"
    if memory.headroom_bytes < LEAST_BYTES:
        return Finding(
            level="error",
            title=f"Too little memory: {by} {_mib(memory.headroom_bytes)}, at least {_mib(LEAST_BYTES)} are needed",
            detail=detail,
            advice="Raise MemoryMax= of the unit"
            if limited
            else "Stop other programs, or use a board with more memory",
        )
    if memory.headroom_bytes < COMFORTABLE_BYTES:
        return Finding(
            level="notice",
            title=f"Memory for small models: {by} {_mib(memory.headroom_bytes)}",
            detail=detail,
            advice="`magnitude budget MODEL --context N` says whether a model fits",
        )
    return Finding(level="ok", title=f"Memory: room for {_mib(memory.headroom_bytes)}", detail=detail)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.0f} MiB"
