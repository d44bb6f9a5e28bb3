"""Resident memory of a process by kind, from `/proc/PID/smaps`."""

from __future__ import annotations

from pathlib import Path

import msgspec


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resident bytes of one process.

    `kv_bytes`: pages of memfds. `weights_bytes`: mapped pages of files below the model folder. `files_bytes`: other
    mapped files, which are the interpreter and its libraries. `anon_bytes`: heap, stacks, anonymous mappings.
    """

    rss_bytes: int
    pss_bytes: int
    uss_bytes: int
    kv_bytes: int
    weights_bytes: int
    files_bytes: int
    anon_bytes: int

    @property
    def less_kv_bytes(self) -> int:
        return self.rss_bytes - self.kv_bytes


def parse_smaps(text: str, model_folder: Path | None = None) -> MemoryUse:
    """Sum up the mappings in `text`. Files that were deleted since count as files."""
    kinds = {"kv": 0, "weights": 0, "files": 0, "anon": 0}
    rss = pss = uss = 0
    path = ""
    for line in text.splitlines():
        words = line.split(maxsplit=5)
        if not words[0].endswith(":"):  # a mapping's head: addresses, permissions, offset, device, inode, path
            path = words[5] if len(words) > 5 else ""
            continue
        if words[0] not in ("Rss:", "Pss:", "Private_Clean:", "Private_Dirty:"):
            continue
        size = int(words[1]) * 1024
        if words[0] == "Rss:":
            rss += size
            kinds[_kind(path, model_folder)] += size
        elif words[0] == "Pss:":
            pss += size
        else:
            uss += size
    return MemoryUse(
        rss_bytes=rss,
        pss_bytes=pss,
        uss_bytes=uss,
        kv_bytes=kinds["kv"],
        weights_bytes=kinds["weights"],
        files_bytes=kinds["files"],
        anon_bytes=kinds["anon"],
    )


def _kind(path: str, model_folder: Path | None) -> str:
    if path.startswith("/memfd:"):
        return "kv"
    if not path.startswith("/"):
        return "anon"
    if model_folder is not None and Path(path).is_relative_to(model_folder):
        return "weights"
    return "files"


def read_memory(pid: int, model_folder: Path | None = None, proc: Path = Path("/proc")) -> MemoryUse:
    """Memory of process `pid` now. Raises `OSError` when it is gone."""
    return parse_smaps((proc / str(pid) / "smaps").read_text(), model_folder)


def open_files(pid: int, proc: Path = Path("/proc")) -> int:
    """How many descriptors process `pid` holds."""
    return sum(1 for _ in (proc / str(pid) / "fd").iterdir())
