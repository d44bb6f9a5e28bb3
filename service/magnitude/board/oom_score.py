"""Who the kernel kills first when memory runs out and no control group decides it."""

from __future__ import annotations

import contextlib

from magnitude.board.roots import HostRoots

# In thousandths of all memory (proc(5), oom_score_adj): the service counts as if it held half of the board less. It
# holds everybody's requests and takes little memory; its engine, which takes the most, can be replaced.
PROTECTED = -500


def protect_from_oom(roots: HostRoots | None = None) -> bool:
    """Lower this process's chance of being killed for want of memory. Needs CAP_SYS_RESOURCE, so the unit does it
    (`OOMScoreAdjust=`) where there is one; without the right nothing happens. Returns whether it is protected."""
    path = (roots or HostRoots()).proc / "self/oom_score_adj"
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_text()) > PROTECTED:
            path.write_text(f"{PROTECTED}\n")
        return True
    return False
