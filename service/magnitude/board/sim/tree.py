"""A simulated board as the kernel would show it: a tree of files that moves, with clocks that can be capped.

What reads sysfs reads this one alike. A clock's limit behaves as cpufreq's: the next operating point below holds,
what is out of range is clamped, what is no number changes nothing; but it is answered with the next look, not with
the write itself. Units beside the CPUs that have a clock of their own are there and do not move: nothing simulated
uses them.
"""

from __future__ import annotations

from pathlib import Path

from magnitude.board.cpu import cpu_list
from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import policy_name
from magnitude.board.roots import HostRoots
from magnitude.board.sim.tree_files import Figure, Setting
from magnitude.board.snapshot import ClockPolicy, Firmware, FirmwareFlags, Snapshot

# Where the Raspberry Pi's kernel shows what its firmware's GET_THROTTLED says, in hexadecimal without a prefix.
THROTTLED = "devices/platform/soc/soc:firmware/get_throttled"
# Bits of that word (raspberrypi/documentation, vcgencmd get_throttled); those of since boot are 16 places higher.
_BITS = {"under_voltage": 0, "clock_capped": 1, "throttled": 2, "soft_limit": 3}
_SINCE_BOOT = 16
# Graphics, accelerator and memory controller of an RK3588, by the names and with the lowest and highest clocks (Hz)
# that its vendor's kernel gives them (rk3588s.dtsi), and that kernel's own governors.
_RK3588_DEVICES = {
    "fb000000.gpu": ("simple_ondemand", 300_000_000, 1_000_000_000),
    "fdab0000.npu": ("rknpu_ondemand", 300_000_000, 1_000_000_000),
    "dmc": ("dmc_ondemand", 528_000_000, 2_112_000_000),
}
# What kernels call cooling by lower CPU clocks, followed by the first CPU.
_COOLING = "cpufreq-cpu"


class BoardTree:
    """The tree of one simulated board below `root`, which must not hold anything else; `roots` point into it. What
    there is to be shown is what the first `snapshot` has.

    `naming` chooses among the names that kernels give a sensor: 0 is the profile's first, a sensor with fewer names
    has its last.
    """

    def __init__(self, root: Path, profile: BoardProfile, snapshot: Snapshot, *, naming: int = 0) -> None:
        self.roots = HostRoots.under(root)
        self._profile = profile
        self._figures: list[Figure] = []
        self._clusters = {policy_name(profile, index): cluster for index, cluster in enumerate(profile.clusters)}
        self._limits: dict[str, Setting] = {}
        self._wanted: dict[str, int | None] = dict.fromkeys(self._clusters)
        self._write_identity()
        self._write_cpus()
        self._clocks = {policy: self._write_policy(policy) for policy in self._clusters}
        self._temps = self._write_zones(snapshot, naming)
        self._fans = self._write_fans(snapshot)
        self._cooling = self._write_cooling() if profile.trips.by == "kernel" else {}
        self._throttled = self._write_throttled(snapshot.firmware) if snapshot.firmware.now else None
        if any("rk3588" in name for name in profile.compatible):
            self._write_devices()
        (self.roots.sys / "class/power_supply").mkdir(parents=True, exist_ok=True)
        self.show(snapshot)

    def show(self, snapshot: Snapshot) -> None:
        """Bring the files up to date."""
        for temp in snapshot.temps:
            if temp.temp_c is not None:
                for figure in self._temps.get(temp.name, ()):
                    figure.show(round(temp.temp_c * 1000))
        for clock in snapshot.clocks:
            self._show_clock(clock)
        for fan, shown in zip(snapshot.fans, self._fans, strict=True):
            shown.show(fan.state or 0)
        if self._throttled is not None:
            self._throttled.show(_word(snapshot.firmware))

    def read_back(self) -> dict[str, int | None]:
        """The upper limits that are asked for by now, in kHz by policy: operating points, or None for no limit."""
        for policy, limit in self._limits.items():
            text = limit.taken()
            if text is None:
                continue
            opps = [opp.khz for opp in self._clusters[policy].opps]
            if text.isascii() and text.isdecimal():
                khz = max((khz for khz in opps if khz <= int(text)), default=opps[0])
                self._wanted[policy] = khz if khz < opps[-1] else None
                limit.show(khz)
            else:
                limit.show(limit.shown)
        return dict(self._wanted)

    def close(self) -> None:
        """Let go of the files; they stay."""
        for figure in self._figures:
            figure.close()
        self._figures.clear()

    # --- inside ---

    def _show_clock(self, clock: ClockPolicy) -> None:
        opps = [opp.khz for opp in self._clusters[clock.name].opps]
        current, limit = self._clocks[clock.name], self._limits[clock.name]
        if clock.cur_khz is not None:
            current.show(clock.cur_khz)
        if clock.cap_khz is None:
            return
        if limit.taken() is None:
            limit.show(clock.cap_khz)
        if clock.name in self._cooling:
            # The kernel's own cooling holds the limit below what was asked for, by so many operating points.
            wanted = self._wanted[clock.name] or opps[-1]
            cooled = clock.cap_khz < wanted
            self._cooling[clock.name].show(sum(khz > clock.cap_khz for khz in opps) if cooled else 0)

    def _figure(self, path: str, value: int | str) -> Figure:
        figure = Figure(self.roots.sys / path, value)
        self._figures.append(figure)
        return figure

    def _text(self, path: str, text: str | int) -> None:
        file = self.roots.sys / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def _write_identity(self) -> None:
        base = self.roots.sys / "firmware/devicetree/base"
        base.mkdir(parents=True, exist_ok=True)
        (base / "compatible").write_bytes(b"".join(name.encode() + b"\0" for name in self._profile.compatible))
        (base / "model").write_bytes(f"{self._profile.title} (simulated)\0".encode())
        self.roots.proc.mkdir(parents=True, exist_ok=True)
        _link(self.roots.proc / "device-tree", base)

    def _write_cpus(self) -> None:
        cpus = sorted(cpu for cluster in self._profile.clusters for cpu in cluster.cpus)
        for name in ("online", "present", "possible"):
            self._text(f"devices/system/cpu/{name}", cpu_list(cpus))
        for policy, cluster in self._clusters.items():
            for cpu in cluster.cpus:
                folder = f"devices/system/cpu/cpu{cpu}"
                self._text(f"{folder}/cpu_capacity", cluster.capacity)
                self._text(f"{folder}/topology/core_id", cpu)
                _link(self.roots.sys / folder / "cpufreq", self.roots.sys / f"devices/system/cpu/cpufreq/{policy}")

    def _write_policy(self, policy: str) -> Figure:
        """The clock's own figure."""
        cluster = self._clusters[policy]
        folder, opps = f"devices/system/cpu/cpufreq/{policy}", [opp.khz for opp in cluster.opps]
        cpus = " ".join(str(cpu) for cpu in sorted(cluster.cpus))
        texts: dict[str, str | int] = {
            "affected_cpus": cpus,
            "related_cpus": cpus,
            "cpuinfo_min_freq": opps[0],
            "cpuinfo_max_freq": opps[-1],
            "scaling_min_freq": opps[0],
            "scaling_available_frequencies": " ".join(map(str, opps)),
            "scaling_available_governors": " ".join(sorted({self._profile.clock_governor, "performance"})),
            "scaling_governor": self._profile.clock_governor,
            "scaling_driver": "cpufreq-dt",
        }
        for name, text in texts.items():
            self._text(f"{folder}/{name}", text)
        self._limits[policy] = Setting(self.roots.sys / folder / "scaling_max_freq", opps[-1])
        return self._figure(f"{folder}/scaling_cur_freq", opps[0])

    def _write_zones(self, snapshot: Snapshot, naming: int) -> dict[str, list[Figure]]:
        """Thermal zones and the same sensors under hwmon, as kernels show them there; by the snapshot's names."""
        figures: dict[str, list[Figure]] = {}
        for number, temp in enumerate(temp for temp in snapshot.temps if temp.temp_c is not None):
            names = next((zone.names for zone in self._profile.zones if temp.name in zone.names), (temp.name,))
            name = names[min(naming, len(names) - 1)]
            milli_c = round((temp.temp_c or 0.0) * 1000)
            self._text(f"class/thermal/thermal_zone{number}/type", name)
            self._text(f"class/hwmon/hwmon{number}/name", name.replace("-", "_"))
            figures[temp.name] = [
                self._figure(f"class/thermal/thermal_zone{number}/temp", milli_c),
                self._figure(f"class/hwmon/hwmon{number}/temp1_input", milli_c),
            ]
        return figures

    def _write_throttled(self, firmware: Firmware) -> Figure:
        """The firmware's word, and the driver that keeps it up to date."""
        number = len(self._temps)
        self._text(f"class/hwmon/hwmon{number}/name", "rpi_volt")
        self._text(f"class/hwmon/hwmon{number}/in0_lcrit_alarm", 0)
        return self._figure(THROTTLED, _word(firmware))

    def _write_fans(self, snapshot: Snapshot) -> list[Figure]:
        figures = []
        for number, fan in enumerate(snapshot.fans):
            self._text(f"class/thermal/cooling_device{number}/type", fan.name)
            self._text(f"class/thermal/cooling_device{number}/max_state", fan.max_state or 0)
            figures.append(self._figure(f"class/thermal/cooling_device{number}/cur_state", fan.state or 0))
        return figures

    def _write_cooling(self) -> dict[str, Figure]:
        cooling = {}
        for number, (policy, cluster) in enumerate(self._clusters.items(), start=len(self._fans)):
            folder = f"class/thermal/cooling_device{number}"
            self._text(f"{folder}/type", f"{_COOLING}{min(cluster.cpus)}")
            self._text(f"{folder}/max_state", len(cluster.opps) - 1)
            cooling[policy] = self._figure(f"{folder}/cur_state", 0)
        return cooling

    def _write_devices(self) -> None:
        for name, (governor, min_hz, max_hz) in _RK3588_DEVICES.items():
            folder = f"class/devfreq/{name}"
            self._text(f"{folder}/governor", governor)
            self._text(f"{folder}/available_governors", f"{governor} powersave performance")
            self._text(f"{folder}/available_frequencies", f"{min_hz} {max_hz}")
            self._text(f"{folder}/min_freq", min_hz)
            self._text(f"{folder}/max_freq", max_hz)
            self._text(f"{folder}/cur_freq", min_hz)


def _word(firmware: Firmware) -> str:
    """The firmware's flags as its word has them."""
    value = _bits(firmware.now) | _bits(firmware.since_boot) << _SINCE_BOOT
    return f"{value:x}"


def _bits(flags: FirmwareFlags | None) -> int:
    return sum(getattr(flags, name) << place for name, place in _BITS.items()) if flags is not None else 0


def _link(path: Path, target: Path) -> None:
    if not path.is_symlink():
        path.symlink_to(target)
