"""A simulated board with its files, watched over in its own time: what `BoardWatch` meets in a running service,
without threads and without waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from magnitude.board.clock_caps import CapOutcome, ClockCaps
from magnitude.board.profiles import load_profile
from magnitude.board.sim.board import SimulatedBoard
from magnitude.board.sim.tree import BoardTree
from magnitude.board.snapshot import Snapshot
from magnitude.board.workload import ModelCost, Work
from magnitude.config.power import PowerSettings
from magnitude.config.thermal import ThermalSettings
from magnitude.governor.thermal_terms import LoadSight
from magnitude.supervise.board_watch import BoardWatch

MODEL = ModelCost(weight_bytes=1e9, macs_per_token=1.5e9)
START_S = 1000.0


class Eyes:
    """What the simulated board shows; as a sampler's thread gives it, or nothing new while `stuck`."""

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self.on_snapshot: Callable[[Snapshot], None] | None = None
        self.stuck = False
        self.change: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
        self._look = look
        self._last: Snapshot | None = None

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def hurry(self) -> None:
        pass

    def latest(self) -> Snapshot | None:
        if not self.stuck:
            self._last = self.change(self._look())
        return self._last


class DirectCaps:
    """The real `ClockCaps` over the tree, at once instead of in a thread."""

    def __init__(self, caps: ClockCaps, told: Callable[[CapOutcome], None]) -> None:
        self.caps = caps
        self.sent: list[dict[str, int | None]] = []
        self.renewals = 0
        self.busy = 0.0
        self._told = told

    def start(self) -> None:
        pass

    def set(self, caps_khz: Mapping[str, int | None]) -> None:
        self.sent.append(dict(caps_khz))
        self._told(self.caps.set(caps_khz))

    def renew(self) -> None:
        self.renewals += 1
        self._told(self.caps.renew())

    def busy_s(self) -> float:
        return self.busy

    def stop(self, patience_s: float) -> bool:
        self.caps.restore()
        return True


class WatchedBoard:
    """`pass_s` lets time pass, with a look a second."""

    def __init__(
        self,
        folder: Path,
        profile: str = "pi5-bare",
        *,
        start_c: float = 40.0,
        thermal: ThermalSettings | None = None,
        power: PowerSettings | None = None,
        write: Callable[[Path, int], None] | None = None,
        **options: Any,
    ) -> None:
        self.profile = load_profile(profile)
        self.board = SimulatedBoard(self.profile)
        self.board.warm(start_c)
        self.tree = BoardTree(folder / "tree", self.profile, self.board.snapshot())
        (folder / "run").mkdir()
        self.work = Work(phase="idle", threads=4)
        self.duties: list[float] = []
        self.limits: list[int | None] = []
        self.asked: list[list[str]] = []
        self.eyes = Eyes(self._snapshot)
        self._made = ClockCaps(self.tree.roots, folder / "run", boot_id="b", **({"write": write} if write else {}))
        self.watch = BoardWatch(
            thermal or ThermalSettings(),
            power or PowerSettings(),
            profile=self.profile,
            eyes=self.eyes,
            caps=self._make_caps,
            load=self._load,
            pace=self.duties.append,
            limit=self.limits.append,
            ask_permission=lambda policies: self.asked.append(list(policies)),
            threads=4,
            clock=self.now_s,
            **options,
        )

    def now_s(self) -> float:
        return START_S + self.board.now_s

    @property
    def duty(self) -> float:
        return self.duties[-1] if self.duties else 1.0

    @property
    def limit(self) -> int | None:
        return self.limits[-1] if self.limits else None

    def cap_khz(self, policy: str = "policy0") -> int:
        file = self.tree.roots.sys / f"devices/system/cpu/cpufreq/{policy}/scaling_max_freq"
        return int(file.read_text())

    def busy(self, phase: Any = "prefill") -> None:
        self.work = Work(phase=phase, threads=4, model=MODEL)

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            work = msgspec.structs.replace(self.work, duty=self.duty)
            for policy, khz in self.tree.read_back().items():
                self.board.set_cap(policy, khz)
            self.board.advance(1.0, work)
            self.tree.show(self.board.snapshot())
            self.watch.look()

    def decided(self, kind: str) -> list[str]:
        """What was decided of that kind, the newest first."""
        return [one.what for one in self.watch.decisions.last() if one.kind == kind]

    def _make_caps(self, told: Callable[[CapOutcome], None]) -> DirectCaps:
        self.caps = DirectCaps(self._made, lambda outcome: self.watch._caps_told(outcome))
        return self.caps

    def _snapshot(self) -> Snapshot:
        return msgspec.structs.replace(self.board.snapshot(), at_s=self.now_s())

    def _load(self) -> LoadSight:
        phase = self.work.phase
        if phase == "idle":
            return LoadSight()
        return LoadSight(phase=phase, running=1, rows=1, **{f"{phase}_share": 1.0})
