"""A real service, started as a newcomer starts it: through `scripts/run`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
GOLDEN = CHECKOUT / "tests" / "golden"
# Generous: two imported models are loaded and prove themselves on whatever else the machine is doing.
READY_S = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RunningService:
    """`scripts/run` under way. `url` is the TCP address, `socket` the unix socket with the admin's rights."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.socket = home / "run" / "magnitude.sock"
        self.log = home / "service.log"
        environ = {**os.environ, "MAGNITUDE_HOME": str(home), "MAGNITUDE_VENV": sys.prefix}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [CHECKOUT / "scripts" / "run", "--", "--listen", f"127.0.0.1:{self.port}", *options],
                cwd="/",
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        self.stop()
        pytest.fail(f"the service did not become ready:\n{self.log.read_text()[-4000:]}", pytrace=False)

    def wait_loaded(self) -> dict:
        """Wait until every model is loaded or given up; the health that is told then."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            try:
                state = self.state()
            except httpx.TransportError:
                state = {"engine_phase": ""}
            if state["engine_phase"] in {"up", "failed"}:
                return state["health"]
            time.sleep(0.1)
        self.stop()
        pytest.fail(f"the models were not loaded:\n{self.log.read_text()[-4000:]}", pytrace=False)

    def admin(self) -> httpx.Client:
        """A client on the unix socket."""
        return httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.socket)), base_url="http://localhost", timeout=30
        )

    def state(self) -> dict:
        with self.admin() as client:
            return client.get("/v1/magnitude/state").json()

    def until_idle(self) -> None:
        """Wait until nothing runs and nothing waits; fail when that does not come about."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            health = self.state()["health"]
            if health["running"] == 0 and health["queue_depth"] == 0:
                return
            time.sleep(0.02)
        pytest.fail(f"requests are still open: {health}", pytrace=False)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


def import_source(name: str, home: Path, source: Path) -> None:
    environ = {**os.environ, "MAGNITUDE_HOME": str(home)}
    command = [
        sys.executable,
        "-c",
        "from magnitude.cli.main import run; run()",
        "import",
        str(source),
        "--name",
        name,
    ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
