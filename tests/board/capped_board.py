"""A tree of cpufreq policies as kernels show them, and services that come and go on it."""

from __future__ import annotations

from pathlib import Path

from kernel_trees import write_tree
from magnitude.board import HostRoots

CPUFREQ = "sys/devices/system/cpu/cpufreq"
BOOT, NEXT_BOOT = "6b1c0a4e-boot", "d2f7e911-boot"
OPPS = (1000000, 1200000, 1500000, 1800000, 2000000, 2200000, 2400000)


class CappedBoard:
    """One policy, `policy0`, unless more are named; the run folder is there, as systemd makes it."""

    def __init__(self, root: Path, *, policies: tuple[str, ...] = ("policy0",), limit_khz: int = 2400000) -> None:
        self.root = root
        self.run = root / "run"
        self.run.mkdir()
        self.roots: HostRoots = write_tree(root, {"proc/sys/kernel/random/boot_id": BOOT})
        for policy in policies:
            self.add(policy, limit_khz=limit_khz)

    def add(self, policy: str, *, limit_khz: int = 2400000) -> None:
        """A policy as a driver makes it."""
        files: dict[str, str | int] = {
            "scaling_max_freq": limit_khz,
            "cpuinfo_min_freq": OPPS[0],
            "cpuinfo_max_freq": OPPS[-1],
            "scaling_available_frequencies": " ".join(map(str, OPPS)) + " ",
        }
        write_tree(self.root, {f"{CPUFREQ}/{policy}/{name}": content for name, content in files.items()})

    def path(self, policy: str = "policy0") -> Path:
        return self.root / CPUFREQ / policy / "scaling_max_freq"

    def limit(self, policy: str = "policy0") -> int:
        return int(self.path(policy).read_text())

    def admin_sets(self, khz: int, policy: str = "policy0") -> None:
        self.path(policy).write_text(f"{khz}\n")

    def reboot(self) -> None:
        """The kernel begins anew; the run folder stays, as it does where it is no tmpfs."""
        write_tree(self.root, {"proc/sys/kernel/random/boot_id": NEXT_BOOT})
        for folder in (self.root / CPUFREQ).iterdir():
            self.add(folder.name)

    def cools(self, state: int, *, kind: str = "cpufreq-cpu0") -> None:
        """The kernel lowers clocks by so many steps for heat."""
        device = "sys/class/thermal/cooling_device0"
        write_tree(self.root, {f"{device}/type": kind, f"{device}/cur_state": state})
