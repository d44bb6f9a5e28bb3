"""What the kernel says about another process of ours."""

from __future__ import annotations

import msgspec

from magnitude.board.roots import HostRoots, read_text


class ProcessUse(msgspec.Struct, frozen=True):
    """`read_bytes`: what the process made storage read since its start (proc(5), `io`); `rss_bytes`: its resident
    memory. 0 where the kernel does not tell, as for a process that has ended."""

    read_bytes: int
    rss_bytes: int


def read_process(pid: int, roots: HostRoots | None = None) -> ProcessUse:
    """The figures of the process `pid` now."""
    folder = (roots or HostRoots()).proc / str(pid)
    io, status = _lines(read_text(folder / "io")), _lines(read_text(folder / "status"))
    return ProcessUse(read_bytes=_number(io.get("read_bytes")), rss_bytes=_number(status.get("VmRSS")) * 1024)


def _lines(text: str | None) -> dict[str, str]:
    pairs = (line.partition(":") for line in (text or "").splitlines())
    return {name.strip(): value for name, _, value in pairs}


def _number(value: str | None) -> int:
    """The first word as a whole number, or 0."""
    words = (value or "").split()
    return int(words[0]) if words and words[0].isascii() and words[0].isdecimal() else 0
