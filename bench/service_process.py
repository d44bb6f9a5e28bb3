"""The real service as a child process, in a home folder of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import yaml

from bench.contender import PROJECT
from magnitude.schedule.inference import ServiceState

# Loading two small models takes seconds; a board with a slow card gets the rest.
READY_TIMEOUT_S = 180.0
# At a stop conversations are saved: ten seconds of writing, and the one that was begun by then.
STOP_TIMEOUT_S = 45.0
POLL_S = 0.02

SERVE = (sys.executable, "-c", "from magnitude.cli.main import run; run()", "serve")


class ServiceFailed(Exception):
    """The service did not come up, or left on its own."""


class ServiceProcess:
    """A service that listens on loopback. `home` is its own and holds its log."""

    def __init__(self, command: tuple[str, ...], port: int, home: Path) -> None:
        self._command = command
        self.port = port
        self.home = home
        self._process = self._spawn()
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def engine_pid(self) -> int | None:
        """The engine's pid, or None while there is none."""
        found: list[tuple[float, int]] = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pid).children():
                with contextlib.suppress(psutil.Error):
                    if "magnitude.engine" in child.cmdline():
                        found.append((child.create_time(), child.pid))
        # A spare is always the younger one: it is started beside an engine that is up, and takes its place.
        return min(found)[1] if found else None

    def status_of(self, path: str, timeout_s: float = 5.0) -> int | None:
        """HTTP status of a GET, None without a connection."""
        return status_of(self.port, path, timeout_s)

    def wait_ready(self) -> None:
        """Until `/readyz` says yes. Raises `ServiceFailed` with the end of the log."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self.status_of("/readyz") != 200:
            if not self.alive or time.monotonic() > deadline:
                raise ServiceFailed(f"the service is not ready:\n{self.log_tail()}")
            time.sleep(POLL_S)

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join((self.home / "service.log").read_text("utf-8", "replace").splitlines()[-lines:])

    def state(self) -> ServiceState:
        """What the service says of itself, over its unix socket, which needs no key."""
        transport = httpx.HTTPTransport(uds=str(self.home / "run/magnitude.sock"))
        with httpx.Client(transport=transport, base_url="http://magnitude", timeout=30) as client:
            return msgspec.json.decode(
                client.get("/v1/magnitude/state").raise_for_status().content, type=ServiceState
            )

    def stop(self) -> None:
        """SIGTERM, patience, SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def restart(self) -> float:
        """Stop it, and start it again on the same home and port. How many seconds until it was ready again. Raises
        `ServiceFailed`."""
        begin = time.monotonic()
        self.stop()
        self._process = self._spawn()
        self.pid = self._process.pid
        self.wait_ready()
        return time.monotonic() - begin

    def _spawn(self) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            "MAGNITUDE_HOME": str(self.home),
            "PYTHONPATH": str(PROJECT / "service"),
        }
        environ.pop("MAGNITUDE_CONFIG", None)
        with (self.home / "service.log").open("ab") as log:
            return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)


def status_of(port: int, path: str, timeout_s: float = 5.0) -> int | None:
    """HTTP status of a GET to a loopback port, None without a connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def post(port: int, path: str, body: bytes, timeout_s: float = 300.0) -> tuple[int, bytes]:
    """Status and body of a JSON POST to a loopback port. Raises `OSError` or `HTTPException`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def running_service(
    models: Path,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    command: tuple[str, ...] = SERVE,
    prepare: Callable[[Path], object] = lambda home: None,
) -> Iterator[ServiceProcess]:
    """A ready service over the models in `models`, stopped at the end. `settings` go into its configuration,
    `prepare` may put something into its home before it starts."""
    home = Path(tempfile.mkdtemp(prefix="magnitude-bench-"))
    port = free_port()
    sections: dict[str, dict[str, Any]] = {name: dict(section) for name, section in (settings or {}).items()}
    sections.setdefault("server", {})["listen"] = f"127.0.0.1:{port}"
    sections.setdefault("models", {})["folder"] = str(models.absolute())
    (home / "magnitude.yaml").write_text(yaml.safe_dump(sections))
    try:
        prepare(home)
        service = ServiceProcess(command, port, home)
        try:
            service.wait_ready()
            yield service
        finally:
            service.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
