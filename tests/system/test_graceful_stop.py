"""A stop as systemd does it: SIGTERM to every process of the control group at once."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from started_service import RunningService

pytestmark = pytest.mark.models

# Without the ids that would end it, an answer goes on until its limit.
ENDLESS = {"0": -100, "2": -100}


class Stream:
    """One streamed answer, read to its end in a thread."""

    def __init__(self, url: str, max_tokens: int) -> None:
        self.begun = threading.Event()
        self.events: list[dict[str, Any]] = []
        self.done = False
        self._body = {
            "messages": [{"role": "user", "content": "Count."}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "logit_bias": ENDLESS,
            "stream": True,
        }
        self._url = f"{url}/v1/chat/completions"
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as reply:
            for line in reply.iter_lines():
                if line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    self.events.append(json.loads(line[6:]))
                    if len(self.events) > 2:
                        self.begun.set()


def test_open_answers_may_end_and_those_that_take_too_long_are_told(magnitude_home: Path, tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(magnitude_home / "models")
    service = RunningService(tmp_path)
    try:
        service.wait_ready()
        short, long = Stream(service.url, 60), Stream(service.url, 8000)
        assert short.begun.wait(60) and long.begun.wait(60)
        for pid in (service.state()["health"]["engine_pid"], service.process.pid):
            os.kill(pid, signal.SIGTERM)
        for stream in (short, long):
            stream.thread.join(60)
        assert short.done
        assert short.events[-1]["choices"][0]["finish_reason"] == "length"
        assert not long.done
        assert long.events[-1]["error"]["code"] == "engine_not_ready"
        assert "stopped" in long.events[-1]["error"]["message"]
        assert service.process.wait(60) == 0
        assert not service.socket.exists()
        assert "Unknown child process" not in service.log.read_text()
    finally:
        service.stop()
