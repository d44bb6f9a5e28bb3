"""Whether the kernel has killed for want of memory."""

from __future__ import annotations

from magnitude.board.roots import HostRoots, read_text


def oom_kills(roots: HostRoots | None = None) -> int | None:
    """Processes killed by the kernel for want of memory since boot, in whatever control group (`oom_kill` of
    /proc/vmstat); None where the kernel does not count them."""
    text = read_text((roots or HostRoots()).proc / "vmstat") or ""
    for line in text.splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.strip().isdecimal():
            return int(count)
    return None
