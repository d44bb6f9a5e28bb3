"""What looking at the board costs: CPU time of a sampler over wall time, at the fast rate and when nothing moves."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from magnitude.board.profile import BoardProfile
from magnitude.board.roots import HostRoots
from magnitude.board.sampler import Sampler
from magnitude.board.sampling_rate import CALM_AFTER_S, FAST_S

# What is promised, at the fast rate.
MOST_SHARE = 0.005

# What an RK3588 has on its vendor's kernel, and some more: two radios, a disk, a board sensor, two power controllers.
ZONES = (
    *("soc-thermal", "bigcore0-thermal", "bigcore1-thermal", "littlecore-thermal", "center-thermal"),
    *("gpu-thermal", "npu-thermal", "board-thermal", "pmic-thermal", "wlan-thermal", "nvme-thermal", "dram-thermal"),
)
POLICIES = {0: ("0 1 2 3", 414, 1_800_000), 4: ("4 5", 1024, 2_400_000), 6: ("6 7", 1024, 2_400_000)}
DEVICES = ("dmc", "fb000000.gpu", "fdab0000.npu")


class SamplingCost(msgspec.Struct, frozen=True, kw_only=True):
    """`share` is CPU time of the sampler's threads over wall time: 1 is one core."""

    where: str
    rate: str
    wall_s: float
    cpu_s: float
    snapshots: int
    sensors: int

    @property
    def share(self) -> float:
        return self.cpu_s / self.wall_s


def measure(where: str, roots: HostRoots, profile: BoardProfile, *, calm: bool, wall_s: float) -> SamplingCost:
    """Let a sampler run for that long, in this process, which does nothing else meanwhile. `calm`: as if nothing had
    moved for long; else as if something always did."""
    # A clock that is ahead makes a sampler calm without waiting for it.
    ahead = [0.0]
    sampler = Sampler(roots, profile, clock=lambda: time.monotonic() + ahead[0])
    count = [0]
    sampler.on_snapshot = lambda _: count.__setitem__(0, count[0] + 1)
    sampler.start()
    _wait_until(lambda: sampler.latest() is not None)
    if calm:
        ahead[0] = 2 * CALM_AFTER_S
        time.sleep(3 * FAST_S)
    before_cpu_s, before_s, before_count = _cpu_s(), time.monotonic(), count[0]
    ends_s = before_s + wall_s
    while time.monotonic() < ends_s:
        if not calm:
            sampler.hurry()
        time.sleep(min(5.0, max(0.0, ends_s - time.monotonic())))
    latest = sampler.latest()
    cost = SamplingCost(
        where=where,
        rate="nothing moves" if calm else "fast",
        wall_s=time.monotonic() - before_s,
        cpu_s=_cpu_s() - before_cpu_s,
        snapshots=count[0] - before_count,
        sensors=len(latest.temps) if latest is not None else 0,
    )
    sampler.stop()
    return cost


def write_board(root: Path) -> HostRoots:
    """A tree like an RK3588's."""
    for number, name in enumerate(ZONES):
        _write(root / f"sys/class/thermal/thermal_zone{number}", {"type": name, "temp": 45000 + 500 * number})
    tree = root / "sys/devices/system/cpu"
    _write(tree, {"online": "0-7"})
    for first, (cpus, capacity, khz) in POLICIES.items():
        texts = {"affected_cpus": cpus, "related_cpus": cpus, "scaling_governor": "schedutil"}
        clocks = {
            "cpuinfo_min_freq": 408_000,
            "cpuinfo_max_freq": khz,
            "scaling_max_freq": khz,
            "scaling_cur_freq": khz,
        }
        _write(tree / f"cpufreq/policy{first}", {**texts, **clocks, "scaling_available_frequencies": f"408000 {khz}"})
        for cpu in cpus.split():
            _write(tree / f"cpu{cpu}", {"cpu_capacity": capacity})
    for name in DEVICES:
        clocks = {"min_freq": 300_000_000, "max_freq": 1_000_000_000, "cur_freq": 600_000_000}
        _write(root / f"sys/class/devfreq/{name}", {"governor": "simple_ondemand", **clocks})
    _write(root / "sys/class/thermal/cooling_device0", {"type": "pwm-fan", "max_state": 4, "cur_state": 2})
    return HostRoots.under(root)


def _write(folder: Path, files: dict[str, str | int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _wait_until(reached: Callable[[], bool]) -> None:
    while not reached():
        time.sleep(0.01)
