"""Runs inside the guest: takes one request a line from a virtio-serial port and answers with one line.

A request is `{"id", "command", "timeout_s", "files"}`: `files` (path → base64) are written first, then the shell
command runs. The answer is `{"id", "status", "output"}`; a command that did not end in time has status 124, as with
timeout(1). Only the standard library of the guest's own Python is needed, and no network, key or login.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

PORT = "/dev/virtio-ports/magnitude.test"
# udev makes the link; under emulation it may come long after this unit is started.
PORT_POLL_S = 0.1


def answer(request: dict[str, Any]) -> dict[str, Any]:
    for name, content in request.get("files", {}).items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
    try:
        done = subprocess.run(
            ["/bin/bash", "-c", request["command"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=request["timeout_s"],
            check=False,
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        status, output = 124, error.stdout or b""
    return {"id": request["id"], "status": status, "output": output.decode(errors="replace")}


def send(port: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(port, data) :]


def serve() -> None:
    while not Path(PORT).exists():
        time.sleep(PORT_POLL_S)
    port = os.open(PORT, os.O_RDWR)
    waiting = b""
    while True:
        received = os.read(port, 1 << 16)
        if not received:  # nobody holds the other end at the moment
            time.sleep(PORT_POLL_S)
            continue
        *lines, waiting = (waiting + received).split(b"\n")
        for line in lines:
            send(port, answer(json.loads(line)))


if __name__ == "__main__":
    serve()
