"""What the service manager is told, with a real datagram socket and a clock that a test moves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fake_manager import FakeManager
from magnitude.supervise.load_progress import LoadSample
from magnitude.supervise.notify import Notifier
from magnitude.supervise.status_line import StatusFacts
from magnitude.supervise.teller import EXTEND_EVERY_S, EXTENSION_S, Look, Teller
from magnitude.supervise.watchdog import GRACE_S, EngineView

STEP_DEADLINE_S = 60.0
UP = EngineView(pid=7, phase="up", steps=0, work=False, patience_s=STEP_DEADLINE_S)
LOADING = EngineView(pid=7, phase="loading", steps=0, work=False, patience_s=120.0)


class Service:
    """A service as it looks from outside, told through a `Teller`, in simulated time."""

    def __init__(self, manager: FakeManager, watchdog_s: float | None = None) -> None:
        self.manager = manager
        self.now_s = 5000.0
        self.failures: list[str] = []
        self.look = Look(
            engine=LOADING,
            load=LoadSample(7, "loading"),
            facts=StatusFacts(model="tiny", engine="engine loading: loading models"),
            serves=False,
        )
        notifier = Notifier(manager.address, watchdog_s=watchdog_s, clock=lambda: self.now_s)
        self.teller = Teller(notifier, lambda: self.look, on_failed=self.failures.append, clock=lambda: self.now_s)

    def sees(self, **changes: object) -> None:
        self.look = msgspec.structs.replace(self.look, **changes)

    def loaded(self, read_bytes: int) -> None:
        self.sees(load=LoadSample(7, "loading", read_bytes=read_bytes))

    def serves(self, **facts: object) -> None:
        self.sees(engine=UP, serves=True, facts=StatusFacts(model="tiny", **facts))  # type: ignore[arg-type]

    def tick(self, after_s: float = 1.0) -> list[dict[str, str]]:
        """One look after so long; what the manager is told by it."""
        self.now_s += after_s
        self.teller.tick()
        return self.manager.read()

    def ticks(self, for_s: float, each_s: float = 1.0) -> list[dict[str, str]]:
        return [message for _ in range(round(for_s / each_s)) for message in self.tick(each_s)]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[FakeManager]:
    with FakeManager(tmp_path / "notify") as listening:
        yield listening


def having(messages: list[dict[str, str]], key: str) -> list[str]:
    return [message[key] for message in messages if key in message]


def test_ready_is_told_once_and_only_when_the_service_serves(manager: FakeManager) -> None:
    service = Service(manager)
    before = service.ticks(60)
    assert not having(before, "READY")
    assert having(before, "STATUS") == ["starting: engine loading: loading models; tiny"]
    service.serves()
    assert {"READY": "1", "STATUS": "tiny: idle"} in service.tick()
    service.sees(serves=False, engine=LOADING)
    service.ticks(5)
    service.serves()
    assert not having(service.ticks(60), "READY")


def test_more_time_is_asked_for_while_the_load_gets_on_and_not_longer(manager: FakeManager) -> None:
    service = Service(manager)
    service.tick()
    asked = 0
    for second in range(100):
        service.loaded(read_bytes=second * 20_000_000)
        asked += len(having(service.tick(), "EXTEND_TIMEOUT_USEC"))
    assert 100 / EXTEND_EVERY_S - 2 <= asked <= 100 / EXTEND_EVERY_S + 1
    assert having(manager.messages, "EXTEND_TIMEOUT_USEC")[-1] == str(int(EXTENSION_S * 1e6))
    service.ticks(EXTEND_EVERY_S)
    assert not having(service.ticks(300), "EXTEND_TIMEOUT_USEC")


def test_no_more_time_is_asked_for_once_it_is_ready(manager: FakeManager) -> None:
    service = Service(manager)
    service.serves()
    service.tick()
    service.loaded(read_bytes=10**9)
    assert not having(service.ticks(60), "EXTEND_TIMEOUT_USEC")


def test_the_status_is_told_on_change_and_not_more_often_than_every_few_seconds(manager: FakeManager) -> None:
    service = Service(manager)
    service.serves()
    service.tick()
    assert service.ticks(600) == []
    told: list[str] = []
    for running in range(1, 31):
        service.serves(running=running)
        told += having(service.tick(), "STATUS")
    assert 5 <= len(told) <= 11
    assert having(service.ticks(5), "STATUS")[-1:] in ([], ["tiny: 30 running"])
    assert having(manager.messages, "STATUS")[-1] == "tiny: 30 running"


def test_the_rate_in_the_status_is_that_of_tokens_generated_for_somebody(manager: FakeManager) -> None:
    service = Service(manager)
    service.sees(generated_tokens=500)  # by models that prove themselves
    service.tick()
    service.serves()
    assert {"READY": "1", "STATUS": "tiny: idle"} in service.tick()
    for second in range(1, 11):
        service.sees(generated_tokens=500 + 40 * second)
        service.serves(running=1)
        service.tick()
    assert having(manager.messages, "STATUS")[-1] == "tiny: 1 running; 40 tokens/s"


def test_pings_come_three_times_a_period_while_idle(manager: FakeManager) -> None:
    service = Service(manager, watchdog_s=30.0)
    service.serves()
    service.tick()
    pings = len(having(service.ticks(3600), "WATCHDOG"))
    assert 360 * 0.9 <= pings <= 361


def test_pings_stop_when_an_engine_with_work_stands_still_and_nobody_ends_it(
    manager: FakeManager, capfd: pytest.CaptureFixture[str]
) -> None:
    async def hang() -> list[str]:
        service = Service(manager, watchdog_s=30.0)
        service.serves(running=1)
        service.sees(engine=msgspec.structs.replace(UP, work=True, steps=4))
        assert having(service.ticks(STEP_DEADLINE_S), "WATCHDOG")
        service.ticks(GRACE_S + 10)
        silence = having(service.ticks(300), "WATCHDOG")
        service.sees(engine=msgspec.structs.replace(UP, work=True, steps=5))
        assert having(service.ticks(11), "WATCHDOG")
        return silence

    assert asyncio.run(hang()) == []
    stacks = capfd.readouterr().err
    assert stacks.count("Stack for <Task") == 1  # told once, with where the loop's tasks are
    assert "in hang" in stacks


def test_a_loop_that_stood_still_is_not_told_as_well_but_the_next_tick_is(manager: FakeManager) -> None:
    async def block() -> tuple[list[str], list[str]]:
        service = Service(manager, watchdog_s=30.0)
        service.serves()
        service.ticks(5)
        return having(service.tick(60.0), "WATCHDOG"), having(service.tick(), "WATCHDOG")

    assert asyncio.run(block()) == ([], ["1"])


def test_without_a_watchdog_no_pings_are_due_more_often_than_looks(manager: FakeManager) -> None:
    service = Service(manager)
    assert service.teller.period_s < 1.0
    service.serves()
    service.tick()
    assert service.teller.period_s == 1.0


def test_a_short_watchdog_is_looked_after_often_enough(manager: FakeManager) -> None:
    service = Service(manager, watchdog_s=0.9)
    service.serves()
    service.tick()
    pings = having(service.ticks(9.0, each_s=service.teller.period_s), "WATCHDOG")
    assert len(pings) >= 2 * 9.0 / 0.9


def test_a_reload_is_told_as_a_pair_with_its_note_in_the_status(manager: FakeManager) -> None:
    service = Service(manager)
    service.serves()
    service.tick()
    service.teller.reloading()
    service.teller.reloaded("reload failed: line 3 (old configuration kept)")
    first, second = manager.read()
    assert first == {"RELOADING": "1", "MONOTONIC_USEC": str(int(service.now_s * 1e6))}
    assert second == {"READY": "1", "STATUS": "tiny: idle; reload failed: line 3 (old configuration kept)"}
    service.teller.reloading()
    service.teller.reloaded("")
    assert manager.read()[1] == {"READY": "1", "STATUS": "tiny: idle"}


def test_a_reload_during_the_start_does_not_claim_that_the_service_is_ready(manager: FakeManager) -> None:
    service = Service(manager)
    service.tick()
    service.teller.reloading()
    service.teller.reloaded("")
    assert manager.read() == []


def test_once_it_stops_nothing_else_is_told_but_that_it_lives(manager: FakeManager) -> None:
    service = Service(manager, watchdog_s=30.0)
    service.serves()
    service.tick()
    service.teller.stopping("SIGTERM received")
    assert manager.read() == [{"STOPPING": "1", "STATUS": "stopping: SIGTERM received"}]
    service.teller.reloaded("late")
    service.serves(running=5)
    assert {key for message in service.ticks(30) for key in message} == {"WATCHDOG"}


def test_that_no_engine_will_ever_come_is_handed_on_once(manager: FakeManager) -> None:
    service = Service(manager)
    service.sees(failed="model.onnx is torn")
    service.ticks(10)
    assert service.failures == ["model.onnx is torn"]
    assert not having(manager.messages, "READY")


BLOCKED = """
import asyncio, os, sys, time
from magnitude.supervise.last_words import speak_when_killed
from magnitude.supervise.load_progress import LoadSample
from magnitude.supervise.notify import Notifier
from magnitude.supervise.status_line import StatusFacts
from magnitude.supervise.teller import Look, Teller
from magnitude.supervise.watchdog import EngineView

speak_when_killed()
look = Look(
    engine=EngineView(pid=1, phase="up", steps=0, work=False, patience_s=60.0),
    load=LoadSample(1, "up"), facts=StatusFacts(model="tiny"), serves=True,
)

async def computes_on_the_loop():
    await asyncio.sleep(1.0)
    print("blocked", flush=True)
    time.sleep(600)

async def main():
    teller = Teller(Notifier.from_environ(os.environ), lambda: look)
    await asyncio.gather(teller.run(), computes_on_the_loop())

asyncio.run(main())
"""


def test_a_blocked_loop_gets_no_ping_and_dies_with_its_stacks_in_the_log(manager: FakeManager) -> None:
    environ = {**os.environ, "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "600000"}
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "blocked\n"
    manager.read()
    assert manager.count("READY") == 1
    assert manager.count("WATCHDOG") >= 1
    assert manager.read(wait_s=2.0) == []  # three periods
    process.send_signal(signal.SIGABRT)  # what systemd does then
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGABRT
    assert "computes_on_the_loop" in said
    assert "most recent call first" in said
