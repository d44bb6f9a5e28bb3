"""The real service under a service manager: what it tells over a real notify socket, and when."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from started_service import free_port
from tiny_service import FOREIGN, STARTED_S, TinyService

from fake_manager import FakeManager
from magnitude.config import EngineSettings, ServerSettings, Settings
from magnitude.engine.protocol import SamplerSettings
from magnitude.paths import find_paths
from magnitude.schedule.inference import GenerationTask
from magnitude.service import Service
from magnitude.service_loop import look_at
from magnitude.supervise.exit_status import EXIT_ENGINE_BUDGET_SPENT
from magnitude.supervise.lifecycle import Phase
from magnitude.supervise.notify import Notifier
from magnitude.supervise.teller import Teller

PRIVATE = (b"NOTIFY_SOCKET=", b"WATCHDOG_", b"LISTEN_")


class Told:
    """A tiny service and the manager that it tells."""

    def __init__(self, home: Path, manager: FakeManager, **more: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.manager = manager
        self.home = home
        environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "60000000", **more.pop("environ", {})}
        self.service = TinyService(home, environ=environ, listen=f"127.0.0.1:{self.port}", **more)

    def state(self) -> dict[str, Any]:
        transport = httpx.HTTPTransport(uds=str(self.home / "run" / "magnitude.sock"))
        with httpx.Client(transport=transport, base_url="http://localhost") as admin:
            return admin.get("/v1/magnitude/state").json()

    def write(self, **sections: object) -> None:
        """Another configuration; the address stays."""
        server = {"listen": f"127.0.0.1:{self.port}", **sections.pop("server", {})}  # type: ignore[dict-item]
        settings = {"engine": {"model_path": str(FOREIGN)}, **sections, "server": server}
        (self.home / "magnitude.yaml").write_text(yaml.safe_dump(settings))

    def reload(self) -> dict[str, str]:
        """What follows a SIGHUP: the message that says READY again."""
        before = len(self.manager.messages)
        self.service.process.send_signal(signal.SIGHUP)
        self.manager.until("RELOADING", after=before)
        return self.manager.until("READY", after=before)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[FakeManager]:
    with FakeManager(tmp_path / "notify") as listening:
        yield listening


@pytest.fixture
def told(tmp_path: Path, manager: FakeManager) -> Iterator[Callable[..., Told]]:
    started: list[Told] = []

    def start(**more: Any) -> Told:
        started.append(Told(tmp_path / "home", manager, **more))
        return started[-1]

    yield start
    for one in started:
        one.service.process.kill()
        one.service.process.wait()


def test_a_life_from_start_over_reloads_to_stop_is_told_and_nothing_leaks_to_the_engine(
    told: Callable[..., Told], manager: FakeManager
) -> None:
    service = told()
    ready = manager.until("READY")
    # No retry: what is told as ready answers, and its model has done its first work.
    assert httpx.get(f"{service.url}/readyz").status_code == 200
    assert ready["STATUS"].startswith(f"{FOREIGN.name}: idle")
    assert any(
        one.get("STATUS", "").startswith("starting: ") for one in manager.messages[: manager.messages.index(ready)]
    )
    manager.until("WATCHDOG")

    engine_pid = service.state()["health"]["engine_pid"]
    environ = Path(f"/proc/{engine_pid}/environ").read_bytes().split(b"\0")
    assert [line for line in environ if line.startswith(PRIVATE)] == []
    assert [line for line in Path(f"/proc/{engine_pid}/environ").read_bytes().split(b"\0") if b"HOME" in line]

    # A new configuration: what can be followed counts now, the rest is named.
    service.write(
        models={"aliases": {"gpt": FOREIGN.name}}, log={"level": "warning"}, server={"max_queue": 3}, kv={"slots": 2}
    )
    assert service.reload()["STATUS"].endswith("needs restart: kv.slots")
    assert service.state()["reload"] == {
        "applied": ["log.level", "models.aliases", "server.max_queue"],
        "needs_restart": ["kv.slots"],
        "error": "",
        "hint": "",
    }
    question = {"model": "gpt", "prompt": [3, 7, 11], "max_tokens": 2}
    assert httpx.post(f"{service.url}/v1/completions", json=question).status_code == 200

    # A broken one: the old one stays in force, and the status says so.
    (service.home / "magnitude.yaml").write_text("server: {max_queue: many}\n")
    assert "reload failed: " in (status := service.reload()["STATUS"])
    assert "(old configuration kept)" in status
    assert "max_queue" in service.state()["reload"]["error"]
    assert httpx.post(f"{service.url}/v1/completions", json=question).status_code == 200
    log = service.service.log.read_text()
    assert log.count("reload failed, the old configuration is kept") == 1
    assert "hint=" in log

    # One that would open the door to the network is refused as well.
    service.write()
    assert "reload failed" not in service.reload()["STATUS"]
    assert httpx.post(f"{service.url}/v1/completions", json=question).status_code == 404

    assert service.service.stop() == 0
    manager.read(1.0)
    assert [key for one in manager.messages for key in one if key in ("READY", "RELOADING", "STOPPING")] == [
        "READY",
        *("RELOADING", "READY") * 3,
        "STOPPING",
    ]
    told = [one for one in manager.messages if "FDNAME" not in one]  # descriptors have their own tests
    assert told[-1] == {"STOPPING": "1", "STATUS": "stopping: SIGTERM received"}


def test_a_reload_that_would_let_everybody_in_is_refused(
    told: Callable[..., Told], manager: FakeManager, tmp_path: Path
) -> None:
    secret = {"name": "kitchen", "sha256": "0" * 64}
    service = told(api_keys=[secret])
    manager.until("READY")
    service.write(server={"api_keys": []})
    assert "reload failed" not in service.reload()["STATUS"]  # on loopback nobody else comes in
    assert service.state()["reload"]["applied"] == ["server.api_keys"]
    assert service.service.stop() == 0

    port = free_port()
    open_to_all = TinyService(
        tmp_path / "open", environ={"NOTIFY_SOCKET": manager.address}, listen=f"0.0.0.0:{port}", api_keys=[secret]
    )
    try:
        before = len(manager.messages)
        manager.until("READY", after=before)
        (tmp_path / "open" / "magnitude.yaml").write_text(
            yaml.safe_dump({"engine": {"model_path": str(FOREIGN)}, "server": {"listen": f"0.0.0.0:{port}"}})
        )
        before = len(manager.messages)
        open_to_all.process.send_signal(signal.SIGHUP)
        assert "would let everybody in" in manager.until("READY", after=before)["STATUS"]
        assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 401
    finally:
        open_to_all.process.kill()
        open_to_all.process.wait()


def test_a_configuration_that_cannot_be_used_is_the_status_and_the_exit_status(
    told: Callable[..., Told], manager: FakeManager
) -> None:
    service = told(unix_socket_group="no-such-group-here")
    assert service.service.process.wait(STARTED_S) == 78
    assert "no group" in manager.until("STATUS")["STATUS"]
    assert manager.count("READY") == 0


def test_a_model_that_can_never_be_loaded_ends_the_start_under_a_manager_only(
    told: Callable[..., Told], manager: FakeManager, tmp_path: Path
) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(FOREIGN, torn)
    graph = (torn / "model.onnx").read_bytes()
    assert b"MatMul" in graph
    (torn / "model.onnx").write_bytes(graph.replace(b"MatMul", b"MatMux"))  # which no runtime knows
    sections = {"engine": {"model_path": str(torn)}}
    service = told(sections=sections)
    assert service.service.process.wait(STARTED_S) == EXIT_ENGINE_BUDGET_SPENT
    assert manager.count("READY") == 0
    assert "the engine cannot serve" in manager.until("STOPPING")["STATUS"]

    alone = TinyService(tmp_path / "alone", sections=sections, listen=f"127.0.0.1:{(port := free_port())}")
    try:
        deadline = time.monotonic() + STARTED_S
        reasons = ""
        while "failed" not in reasons and time.monotonic() < deadline:
            time.sleep(0.1)
            try:
                reasons = str(httpx.get(f"http://127.0.0.1:{port}/readyz").json()["reasons"])
            except httpx.TransportError:
                continue
        assert "engine failed" in reasons
        assert alone.process.poll() is None
    finally:
        alone.process.kill()
        alone.process.wait()


def test_memory_that_an_earlier_version_stored_is_given_back(tmp_path: Path, manager: FakeManager) -> None:
    memory = os.memfd_create("kv")
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        stored = socket.socket(fileno=os.dup(tcp.fileno()))
        service = TinyService(
            tmp_path / "home", inherited=(stored,), stored=(memory,), environ={"NOTIFY_SOCKET": manager.address}
        )
        try:
            assert manager.until("FDSTOREREMOVE") == {"FDSTOREREMOVE": "1", "FDNAME": "magnitude-kv"}
            manager.until("READY")
            assert httpx.get(f"http://127.0.0.1:{tcp.getsockname()[1]}/readyz").status_code == 200
            assert service.stop() == 0
        finally:
            service.process.kill()
            service.process.wait()
            stored.close()
            os.close(memory)


def test_pings_end_when_the_engine_stands_still_with_work_and_supervision_is_gone(
    tmp_path: Path, manager: FakeManager
) -> None:
    asyncio.run(stand_still(tmp_path / "home", manager))


async def stand_still(home: Path, manager: FakeManager) -> None:
    paths = find_paths({"MAGNITUDE_HOME": str(home)})
    for folder in (paths.models, paths.state, paths.run):
        folder.mkdir(parents=True)
    settings = Settings(engine=EngineSettings(model_path=str(FOREIGN), step_deadline_s=1.0), server=ServerSettings())
    service = Service(settings, paths)
    notifier = Notifier(manager.address, watchdog_s=0.6)
    accepting = asyncio.Event()
    accepting.set()
    teller = Teller(notifier, lambda: look_at(service, accepting), grace_s=1.0)
    supervision = asyncio.create_task(service.supervisor.run())
    telling = asyncio.create_task(teller.run())

    async def until(fact: Callable[[], object]) -> None:
        async with asyncio.timeout(STARTED_S):
            while not fact():
                manager.read()
                await asyncio.sleep(0.05)

    try:
        await until(lambda: manager.count("READY"))
        assert service.supervisor.lifecycle.phase is Phase.UP
        supervision.cancel()
        task = GenerationTask(
            request_key="x",
            model=FOREIGN.name,
            prompt=[3, 7, 11],
            max_new_tokens=4,
            sampler=SamplerSettings(temperature=0.0),
        )
        engine_pid = service.supervisor.pid
        assert engine_pid is not None
        os.kill(engine_pid, signal.SIGSTOP)
        generation = await service.dispatcher.generate(task)
        async with asyncio.timeout(STARTED_S):
            before = 0
            while manager.count("WATCHDOG") > before:  # its deadline, and what supervision may take on top
                before = manager.count("WATCHDOG")
                await asyncio.sleep(2.0)  # three periods of the watchdog
                manager.read()
        assert not telling.done()
        os.kill(engine_pid, signal.SIGCONT)
        await until(lambda: manager.count("WATCHDOG") > before)
        generation.cancel("the test is over")
    finally:
        telling.cancel()
        supervision.cancel()
        await service.stop()
        notifier.close()
