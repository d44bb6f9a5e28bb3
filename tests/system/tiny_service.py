"""The real service as a process of its own, with a tiny folder of ONNX Runtime GenAI's own builder."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml
from started_service import GOLDEN

FOREIGN = GOLDEN / "genai_tiny_llama"
STARTED_S = 60
# Above all that a test hands over: sockets, and descriptors of stored memory.
FIRST_FREE_FD = 100

# What systemd does between fork and exec: the sockets from descriptor 3 on, and the number of the process.
ACTIVATED = """
import os, sys
for number, given in enumerate(map(int, sys.argv[1].split(","))):
    os.dup2(given, 3 + number)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(number + 1), "LISTEN_FDNAMES": sys.argv[2]}
os.execv(sys.executable, [sys.executable, "-m", "magnitude.cli.main", "serve"])
"""


class TinyService:
    def __init__(
        self,
        home: Path,
        *,
        inherited: tuple[socket.socket, ...] = (),
        stored: tuple[int, ...] = (),
        sections: dict[str, object] | None = None,
        environ: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
        **server: object,
    ) -> None:
        """`inherited` and `stored` are handed over as systemd does. `sections` are those of the configuration beside
        `server`; unless given, the foreign folder is served. `options` are those of the command line."""
        home.mkdir(exist_ok=True)
        settings = {**(sections or {"engine": {"model_path": str(FOREIGN)}}), "server": server}
        (home / "magnitude.yaml").write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-m", "magnitude.cli.main", "serve", *options]
        # Free numbers beyond those that the starter fills, so that none is overwritten before it is copied.
        handed = [*(sock.fileno() for sock in inherited), *stored]
        given = [fcntl.fcntl(fd, fcntl.F_DUPFD, FIRST_FREE_FD) for fd in handed]
        names = ":".join(["magnitude.socket"] * len(inherited) + ["magnitude-kv"] * len(stored))
        if given:
            command = [sys.executable, "-c", ACTIVATED, ",".join(map(str, given)), names]
        self.log = home / f"service-{len(list(home.glob('*.log')))}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "MAGNITUDE_HOME": str(home), **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=given,
            )
        for fd in given:
            os.close(fd)

    def wait_ready(self, url: str) -> None:
        deadline = time.monotonic() + STARTED_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{url}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        pytest.fail(f"not ready:\n{self.log.read_text()}", pytrace=False)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STARTED_S)
