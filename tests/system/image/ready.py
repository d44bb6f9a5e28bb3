"""Runs inside the guest: does the service really infer?

    boot_check.py --ready             status 0 when it answers one completion
    boot_check.py --confirm LIMIT_S   waits for that so long, then confirms the slot that runs, or reboots

`--confirm` stands in for the unit that images bring, where a test is about boot loader, RAUC and partitions.
Only the standard library is needed.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time

SOCKET = "/run/magnitude/magnitude.sock"
MODEL = "tiny"
POLL_S = 1.0


class Connection(http.client.HTTPConnection):
    def __init__(self) -> None:
        super().__init__("localhost", timeout=600)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(SOCKET)


def infers() -> bool:
    try:
        connection = Connection()
        # The socket takes connections before the service is there: ask first whether it is, or this would wait.
        state = subprocess.run(["systemctl", "is-active", "--quiet", "magnitude.service"], check=False)
        if state.returncode:
            return False
        body = {"model": MODEL, "prompt": [3, 7, 11], "max_tokens": 4, "temperature": 0}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status == 200 and bool(json.loads(reply.read())["choices"])
    except (OSError, http.client.HTTPException):
        return False


def main(action: str, limit_s: str = "0") -> int:
    deadline = time.monotonic() + float(limit_s)
    while not infers():
        if time.monotonic() >= deadline:
            if action == "--confirm":
                print("the service does not infer: rebooting", flush=True)
                subprocess.run(["systemctl", "--no-block", "reboot"], check=True)
            return 1
        time.sleep(POLL_S)
    if action == "--confirm":
        subprocess.run(["rauc", "status", "mark-good"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
