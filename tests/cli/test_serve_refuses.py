from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import magnitude

SOURCE = str(Path(magnitude.__file__).parent.parent)
# What systemd does before it executes a service: the socket becomes descriptor 3, the variables name this process.
AS_SYSTEMD = 'exec 3<&"$1"; shift; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'


@pytest.mark.parametrize(
    "configuration", ["nonsense: 1\n", ""], ids=["an unknown key", "no API key for a socket beyond loopback"]
)
def test_who_waits_at_a_socket_learns_that_the_service_cannot_start(configuration: str, tmp_path: Path) -> None:
    config = tmp_path / "magnitude.yaml"
    config.write_text(configuration)
    with socket.create_server(("0.0.0.0", 0)) as listening:
        with socket.create_connection(("127.0.0.1", listening.getsockname()[1]), timeout=60) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            serve = [sys.executable, "-m", "magnitude.cli.main", "serve", "--config", str(config)]
            done = subprocess.run(
                ["bash", "-c", AS_SYSTEMD, "bash", str(listening.fileno()), *serve],
                pass_fds=[listening.fileno()],
                env={**os.environ, "PYTHONPATH": SOURCE, "MAGNITUDE_HOME": str(tmp_path)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert client.recv(65536).startswith(b"HTTP/1.1 503 ")
        assert done.returncode == 78, done.stderr
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
