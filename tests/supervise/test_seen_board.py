"""The watch with the real sampler and the real thread that writes limits, over files as the kernel has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from kernel_trees import write_tree
from magnitude.board.clock_caps import CapOutcome, ClockCaps
from magnitude.board.profiles import load_profile
from magnitude.board.sampler import Sampler
from magnitude.config.power import PowerSettings
from magnitude.config.thermal import ThermalSettings
from magnitude.governor.thermal_terms import LoadSight
from magnitude.supervise.board_watch import BoardWatch
from magnitude.supervise.cap_thread import CapThread

CPUFREQ = "sys/devices/system/cpu/cpufreq/policy0"
ZONE = "sys/class/thermal/thermal_zone0"
HIGHEST_KHZ, LOWEST_KHZ = 2_400_000, 1_500_000


class SeenBoard:
    """A Raspberry Pi 5 whose files say `temp_c`, until `warm` says otherwise."""

    def __init__(self, root: Path, temp_c: float) -> None:
        self.roots = write_tree(
            root,
            {
                "sys/devices/system/cpu/online": "0-3",
                f"{CPUFREQ}/affected_cpus": "0 1 2 3",
                f"{CPUFREQ}/related_cpus": "0 1 2 3",
                f"{CPUFREQ}/cpuinfo_min_freq": LOWEST_KHZ,
                f"{CPUFREQ}/cpuinfo_max_freq": HIGHEST_KHZ,
                f"{CPUFREQ}/scaling_min_freq": LOWEST_KHZ,
                f"{CPUFREQ}/scaling_max_freq": HIGHEST_KHZ,
                f"{CPUFREQ}/scaling_cur_freq": HIGHEST_KHZ,
                f"{CPUFREQ}/scaling_governor": "ondemand",
                f"{CPUFREQ}/scaling_available_frequencies": "1500000 1800000 2000000 2400000",
                f"{ZONE}/type": "cpu-thermal",
                f"{ZONE}/temp": round(temp_c * 1000),
            },
        )
        self._root = root
        (root / "run").mkdir()
        self.duties: list[float] = []
        profile = load_profile("pi5-bare")
        self.watch = BoardWatch(
            ThermalSettings(),
            PowerSettings(),
            profile=profile,
            eyes=Sampler(self.roots, profile),
            caps=self._caps,
            load=lambda: LoadSight(phase="prefill", prefill_share=1.0, running=1),
            pace=self.duties.append,
            limit=lambda limit: None,
            threads=4,
        )

    def warm(self, temp_c: float) -> None:
        (self._root / ZONE / "temp").write_text(f"{round(temp_c * 1000)}\n")

    def cap_khz(self) -> int:
        return int((self._root / CPUFREQ / "scaling_max_freq").read_text())

    def _caps(self, told: Callable[[CapOutcome], None]) -> CapThread:
        return CapThread(lambda: ClockCaps(self.roots, self._root / "run", boot_id="b"), told)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.02)


def test_a_chip_that_gets_hot_is_slowed_down_and_the_stop_gives_its_clock_back(tmp_path: Path) -> None:
    board = SeenBoard(tmp_path, 40.0)

    async def main() -> None:
        running = asyncio.create_task(board.watch.run())
        await until(lambda: board.watch.temp_c == 40.0)
        assert (board.cap_khz(), board.duties) == (HIGHEST_KHZ, [])
        board.warm(84.0)
        await until(lambda: board.cap_khz() == LOWEST_KHZ and board.duties != [])
        await until(lambda: board.watch.board_state().clocks[0].cap_khz == LOWEST_KHZ)
        state = board.watch.thermal_state()
        assert state.governor is not None
        assert state.governor.state == "hot"
        assert {"state", "caps", "duty"} <= {one.kind for one in state.decisions}
        await board.watch.close()
        assert board.cap_khz() == HIGHEST_KHZ
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(main())


def test_when_its_sensor_says_nothing_any_more_it_counts_as_warm(tmp_path: Path) -> None:
    board = SeenBoard(tmp_path, 70.0)

    async def main() -> None:
        running = asyncio.create_task(board.watch.run())
        await until(lambda: board.watch.temp_c == 70.0)
        (tmp_path / ZONE / "temp").write_text("")
        await until(lambda: board.watch.temp_c is None)
        await until(lambda: (state := board.watch.thermal_state().governor) is not None and state.state == "blind")
        await until(lambda: board.cap_khz() < HIGHEST_KHZ)
        await board.watch.close()
        running.cancel()

    asyncio.run(main())
