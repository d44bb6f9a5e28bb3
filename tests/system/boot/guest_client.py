"""Runs inside the guest: one client of the service, with the standard library only.

    guest_client.py get PATH                    the answer's body; status 0 for an answer of 200
    guest_client.py stream TOKENS               one streamed completion, as one line of JSON
    guest_client.py streams TOKENS FILE         one after the other into FILE, a line each, until FILE.stop exists

It asks on the socket that the unit of the service owns, as its admin does.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

SOCKET = "/run/magnitude/magnitude.sock"
MODEL = "long"
# Longer than anything that a test waits for: what stalls is seen by the test, not by an error here.
PATIENCE_S = 600.0
# Of the model's tokens the one that would end an answer early.
ENDLESS = {"2": -100}
PAUSE_S = 0.1
# An hour, by the clock that does not jump.
HEADERS = {"Content-Type": "application/json", "X-Magnitude-Deadline-Ms": "3600000"}


class Connection(http.client.HTTPConnection):
    def __init__(self) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(SOCKET)


def get(path: str) -> bool:
    connection = Connection()
    connection.request("GET", path)
    reply = connection.getresponse()
    print(reply.read().decode())
    return reply.status == 200


def stream(tokens: int, note: Path | None = None) -> dict[str, Any]:
    """What a client sees of one completion. Its text follows from the prompt: temperature 0. `note` is made when the
    first piece has come."""
    body = {"model": MODEL, "prompt": [3, 7, 11], "max_tokens": tokens, "temperature": 0, "logit_bias": ENDLESS}
    begun_s = last_s = time.monotonic()
    seen: dict[str, Any] = {"begun_s": begun_s, "text": "", "finish": None, "error": None, "longest_wait_s": 0.0}
    connection = Connection()
    try:
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), HEADERS)
        reply = connection.getresponse()
        if reply.status != 200:
            return seen | {"error": json.loads(reply.read())["error"], "took_s": time.monotonic() - begun_s}
        for line in reply:
            now_s = time.monotonic()
            seen["longest_wait_s"] = max(seen["longest_wait_s"], now_s - last_s)
            last_s = now_s
            if line.startswith(b"data: {"):
                take(json.loads(line[6:]), seen)
                if note and seen["text"]:
                    note.touch()
    except (OSError, http.client.HTTPException) as error:
        seen["error"] = repr(error)
    return seen | {"took_s": time.monotonic() - begun_s}


def take(event: dict[str, Any], seen: dict[str, Any]) -> None:
    seen["error"] = event.get("error", seen["error"])
    for choice in event.get("choices", ()):
        seen["text"] += choice["text"]
        seen["finish"] = choice["finish_reason"] or seen["finish"]


def streams(tokens: int, target: Path) -> None:
    stop = target.with_name(target.name + ".stop")
    with target.open("w") as file:
        while not stop.exists():
            print(json.dumps(stream(tokens)), file=file, flush=True)
            time.sleep(PAUSE_S)


def main(verb: str, *given: str) -> bool:
    if verb == "get":
        return get(given[0])
    if verb == "stream":
        print(json.dumps(stream(int(given[0]), *map(Path, given[1:]))))
    else:
        streams(int(given[0]), Path(given[1]))
    return True


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))
