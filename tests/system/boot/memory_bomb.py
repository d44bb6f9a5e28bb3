"""Runs inside the guest: takes memory in the engine's control group until the kernel kills the engine for it.

    memory_bomb.py GROUP PID [BYTES]        eats in the control group GROUP while the process PID lives, at most BYTES

It grows slowly enough for somebody to do something about it, and spares itself: what is to be killed is the engine.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

# 20 MB/s: the limit of a guest with 1 GB is half a minute away, some looks of the service at its memory.
BITE_BYTES = 2 << 20
PAUSE_S = 0.1


def eat(group: Path, pid: int, most_bytes: float) -> None:
    Path("/proc/self/oom_score_adj").write_text("-1000")
    (group / "cgroup.procs").write_text("0")  # this process
    eaten = []
    while Path(f"/proc/{pid}").exists():
        if len(eaten) * BITE_BYTES < most_bytes:
            eaten.append(b"\1" * BITE_BYTES)
        time.sleep(PAUSE_S)
    print(f"{len(eaten) * BITE_BYTES} bytes were too much")


if __name__ == "__main__":
    eat(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else math.inf)
