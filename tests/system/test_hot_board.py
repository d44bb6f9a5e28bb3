"""The real service on a simulated board that is too hot: what it does about it, says about it, and takes back."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import msgspec
import pytest
import yaml
from started_service import free_port
from tiny_service import FOREIGN, TinyService

from magnitude.board.clock_caps import restore_leftover
from magnitude.board.roots import HostRoots
from magnitude.schedule.inference import ServiceState

PATIENCE_S = 60
LOWEST_KHZ, HIGHEST_KHZ = 1_500_000, 2_400_000
# Half a degree below where the firmware of that board throttles everything.
START_C = "84.5"
TREE = "run/simulated-board/tree"


class HotService:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        options = ("--simulate", "pi5-bare", "--simulate-start", START_C)
        self.process = TinyService(home, listen=f"127.0.0.1:{port}", options=options)
        self.process.wait_ready(self.url)

    def admin(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.home / "run/magnitude.sock"))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE_S)

    def state(self) -> ServiceState:
        with self.admin() as admin:
            return msgspec.convert(admin.get("/v1/magnitude/state").json(), ServiceState)

    def cap_khz(self) -> int:
        policy = self.home / TREE / "sys/devices/system/cpu/cpufreq/policy0"
        return int((policy / "scaling_max_freq").read_text())

    def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, self.process.log.read_text()[-4000:]
            time.sleep(0.05)

    def answer(self) -> None:
        body = {"model": FOREIGN.name, "prompt": [3, 7, 11], "max_tokens": 8, "temperature": 0}
        assert httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S).status_code == 200


@pytest.fixture
def hot(tmp_path: Path) -> Iterator[HotService]:
    service = HotService(tmp_path / "home")
    yield service
    service.process.stop()


def test_clocks_are_limited_the_engine_is_paced_and_everybody_is_told_until_the_stop_takes_it_back(
    hot: HotService,
) -> None:
    hot.until(lambda: hot.cap_khz() == LOWEST_KHZ and "governor" in hot.state().pace)
    hot.answer()
    state = hot.state()
    assert (state.board.profile, state.board.simulated) == ("pi5-bare", True)
    assert state.board.hottest_c is not None
    assert state.thermal.governor is not None
    assert state.thermal.governor.state == "hot"
    assert state.thermal.caps_khz == {"policy0": LOWEST_KHZ}
    assert state.pace["governor"].decode == state.thermal.wanted.duty < 1
    kinds = {decision.kind for decision in state.thermal.decisions}
    assert {"state", "caps", "duty"} <= kinds
    assert all(decision.reason for decision in state.thermal.decisions)
    assert state.power.tier == "full"
    hot.until(lambda: [clock.cap_khz for clock in hot.state().board.clocks] == [LOWEST_KHZ])  # as read back
    with hot.admin() as admin:
        metrics = admin.get("/metrics").text
    assert 'magnitude_heat_state{state="hot"} 1.0' in metrics
    assert 'magnitude_clock_cap_hertz{policy="policy0"} 1.5e+09' in metrics
    assert hot.process.stop() == 0
    assert hot.cap_khz() == HIGHEST_KHZ
    assert "cool to hot" in hot.process.log.read_text()
    with closing(sqlite3.connect(hot.home / "state/records.db")) as records:
        ((temperature_c,),) = records.execute("SELECT temperature_c FROM tasks").fetchall()
    assert 40 < temperature_c < 90


def test_a_reload_that_switches_it_off_takes_everything_back_while_the_service_runs(hot: HotService) -> None:
    hot.until(lambda: hot.cap_khz() == LOWEST_KHZ)
    file = hot.home / "magnitude.yaml"
    settings = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**settings, "thermal": {"target_c": 99}}))
    hot.process.process.send_signal(signal.SIGHUP)
    hot.until(lambda: "do not fit" in hot.process.log.read_text())
    assert hot.state().thermal.enabled
    file.write_text(yaml.safe_dump({**settings, "thermal": {"enabled": False}}))
    hot.process.process.send_signal(signal.SIGHUP)
    hot.until(lambda: hot.cap_khz() == HIGHEST_KHZ and "governor" not in hot.state().pace)
    state = hot.state()
    assert (state.thermal.enabled, state.thermal.governor) == (False, None)
    assert state.board.hottest_c is not None


def test_a_killed_service_leaves_a_note_of_what_is_to_be_put_back(hot: HotService) -> None:
    hot.until(lambda: hot.cap_khz() == LOWEST_KHZ)
    hot.process.stop(signal.SIGKILL)
    outcome = restore_leftover(hot.home / "run/simulated-board/run", HostRoots(sys=hot.home / TREE / "sys"))
    assert outcome.in_force_khz == {"policy0": HIGHEST_KHZ}
    assert hot.cap_khz() == HIGHEST_KHZ
