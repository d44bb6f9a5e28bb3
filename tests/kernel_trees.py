"""Writes kernel file trees for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from magnitude.board import HostRoots


def write_tree(root: Path, files: Mapping[str, str | int]) -> HostRoots:
    """Write `files` (path below `root` to content) and give the roots that read them."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    (root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    return HostRoots.under(root)
