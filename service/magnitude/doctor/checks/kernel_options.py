"""Does the kernel tell of memory that gets short, and does it enforce limits? Both may be off at boot, as on a
Raspberry Pi."""

from __future__ import annotations

from magnitude.board import effective_memory
from magnitude.board.memory_reading import CONTROLLER_HINT
from magnitude.board.memory_stall import PSI_HINT, StallReader
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding


def check(context: DoctorContext) -> Finding:
    controller = effective_memory(context.roots).controller
    stalls = bool(StallReader(context.roots).stalls())
    lines = [
        f"memory limits of control groups: {'on' if controller else 'off'}",
        f"pressure stall information: {'on' if stalls else 'off'}",
    ]
    missing = [*([] if controller else ["limits of memory"]), *([] if stalls else ["news of stalls"])]
    if not missing:
        return Finding(level="ok", title="The kernel limits memory and tells of stalls", detail="\n".join(lines))
    return Finding(
        level="notice",
        title=f"This kernel has no {' and no '.join(missing)}: a shortage of memory is found by looking only",
        detail="\n".join(lines),
        advice=". ".join([*([] if controller else [CONTROLLER_HINT]), *([] if stalls else [PSI_HINT])]),
    )
