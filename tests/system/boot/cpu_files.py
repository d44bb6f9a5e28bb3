"""Frequency policies for a container, whose host has none."""

from __future__ import annotations

import os
from pathlib import Path

from nspawn import Container

CPUS = "/sys/devices/system/cpu"
LIMIT = "cpufreq/policy0/scaling_max_freq"
HARDWARE_KHZ = 2400000


def write_cpus(folder: Path) -> Path:
    """The host's CPUs, which programs read, with two frequency policies."""
    folder.chmod(0o755)
    for name in ("online", "possible", "present"):
        (folder / name).write_text(Path(CPUS, name).read_text())
    for policy in ("policy0", "policy4"):
        (folder / "cpufreq" / policy).mkdir(parents=True)
        for name in ("scaling_max_freq", "scaling_min_freq", "cpuinfo_max_freq"):
            (folder / "cpufreq" / policy / name).write_text(f"{HARDWARE_KHZ}\n")
            (folder / "cpufreq" / policy / name).chmod(0o644)
    for number in range(os.cpu_count() or 1):
        (folder / f"cpu{number}").mkdir()
        (folder / f"cpu{number}/online").write_text("1\n")
    return folder


def bound(folder: Path) -> str:
    """The option of a container that lets `show_cpus` find them."""
    return f"--bind={folder}:/mnt/cpus"


def show_cpus(board: Container) -> None:
    """Put them in place, after the boot: nspawn mounts a /sys of its own over what it is given there."""
    board.run("mount", "--bind", "/mnt/cpus", CPUS)


def close_to_all_but_root(limit: Path) -> None:
    """As the kernel makes a file anew when its policy comes back."""
    os.chown(limit, 0, 0)
    limit.chmod(0o644)
