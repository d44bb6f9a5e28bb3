"""A restart of the service keeps conversations in memory: asked for, or by a kill in the middle of everything."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fd_store import FdStore
from started_service import GOLDEN

FOREIGN = GOLDEN / "genai_tiny_llama"
PATIENCE_S = 60.0
KV, TABLE = f"magnitude-kv-{FOREIGN.name}", f"magnitude-table-{FOREIGN.name}"


class Unit:
    """A service under a manager that keeps its descriptors: `start` it again after each end. Its sockets stay."""

    def __init__(self, home: Path, store: FdStore, settings: dict[str, Any], *, model: str = FOREIGN.name) -> None:
        self.home = home
        self.model = model
        self.store = store
        self.log = home / "service.log"
        self.configure(settings)
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._admin = socket.socket(socket.AF_UNIX)
        self._admin.bind(str(home / "admin.sock"))
        self._admin.listen()
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, settings: dict[str, Any]) -> None:
        (self.home / "magnitude.yaml").write_text(yaml.safe_dump(settings))

    def start(self) -> None:
        ready = len(self.store.told("READY"))
        with self.log.open("ab") as log:
            self.process = self.store.start(
                [sys.executable, "-m", "magnitude.cli.main", "serve"],
                environ={**os.environ, "MAGNITUDE_HOME": str(self.home)},
                sockets=[("tcp", self._sock), ("admin", self._admin)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.store.until(lambda: len(self.store.told("READY")) > ready or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()[-3000:]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def complete(
        self, prompt: list[int] | str, *, headers: dict[str, str] | None = None, **fields: Any
    ) -> dict[str, Any]:
        body = {"model": self.model, "prompt": prompt, "max_tokens": 4, "temperature": 0, **fields}
        reply = httpx.post(f"{self.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE_S)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def cached(self, prompt: list[int] | str, **fields: Any) -> int:
        return self.complete(prompt, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def admin(self, path: str) -> Any:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.home / "admin.sock"))) as client:
            return client.get(f"http://localhost{path}", timeout=PATIENCE_S).json()

    def freeze_in_mid_answer(self, prompt: str, *, pieces: int, **fields: Any) -> str:
        """Ask for a stream and stop the service when so many pieces of it have come; the text so far."""
        assert self.process is not None
        body = {"model": self.model, "prompt": prompt, "temperature": 0, "stream": True, **fields}
        read: list[str] = []
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    read += [choice["text"] for choice in json.loads(line[6:])["choices"]]
                if len(read) >= pieces:
                    self.process.send_signal(signal.SIGSTOP)
                    return "".join(read)
        raise AssertionError(f"the stream ended after {len(read)} pieces")

    def revived(self) -> int:
        return sum(model["revived_conversations"] for model in self.admin("/v1/magnitude/state")["models"])

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._sock.close()
        self._admin.close()


SETTINGS = {"engine": {"model_path": str(FOREIGN)}, "kv": {"saved_min_tokens": 16}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FdStore]:
    with FdStore(tmp_path) as made:
        yield made


@pytest.fixture
def unit(tmp_path: Path, store: FdStore) -> Iterator[Unit]:
    made = Unit(tmp_path, store, SETTINGS)
    made.start()
    yield made
    made.close()


def text(start: int) -> list[int]:
    return [3 + (start + 7 * number) % 70 for number in range(30)]


def test_a_restart_keeps_conversations_in_memory(unit: Unit, store: FdStore) -> None:
    assert store.names() == []
    first = unit.complete(text(0), max_tokens=8)
    unit.complete(text(1), store=False)
    unit.complete(text(2), headers={"X-Magnitude-Keep": "no"})
    assert store.names() == [KV, TABLE]
    assert unit.end() == 0
    assert store.names() == [KV, TABLE]
    # What the disk has must not be needed.
    saved = list((unit.home / "state" / "kv").iterdir())
    for file in saved:
        file.unlink()
    unit.start()
    assert unit.revived() == 1
    (kept,) = unit.admin("/v1/magnitude/kv")["data"]
    assert kept["where"] == "memory"
    assert kept["tokens"] == 30 + 8 - 1  # the last one was drawn and never went in
    assert unit.cached([*text(0), 5, 5, 5]) == 30
    assert unit.cached(text(1)) == unit.cached(text(2)) == 0
    again = unit.complete(text(0), max_tokens=8)
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert "conversations kept over the restart" in unit.log.read_text()


def test_a_kill_keeps_them_as_well_each_time(unit: Unit, store: FdStore) -> None:
    answer = unit.complete(text(0), max_tokens=8)["choices"][0]["text"]
    for _ in range(3):
        assert unit.end(signal.SIGKILL) == -signal.SIGKILL
        unit.start()
        assert store.names() == [KV, TABLE]
        again = unit.complete(text(0), max_tokens=8)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 28
        assert again["choices"][0]["text"] == answer


def test_what_does_not_fit_any_more_is_given_up_and_the_service_starts(unit: Unit, store: FdStore) -> None:
    unit.complete(text(0))
    store.put("magnitude-kv-something", (reader := os.pipe()[0]))
    store.put("from-another-version", reader)
    assert unit.end() == 0
    unit.configure({**SETTINGS, "kv": {**SETTINGS["kv"], "slots": 3}})
    unit.start()
    assert unit.revived() == 0
    assert store.names() == []
    # The copy on the disk fits still.
    assert unit.cached([*text(0), 5, 5, 5]) == 30


@pytest.mark.models
def test_a_generation_cut_by_a_kill_is_warm_and_goes_on_as_if_nothing_had_been(
    magnitude_home: Path, tmp_path: Path, store: FdStore
) -> None:
    (tmp_path / "models").symlink_to(magnitude_home / "models")
    settings = {"engine": {"speculation": "off", "context_length": 2048}, "models": {"load": []}}
    unit = Unit(tmp_path, store, settings, model="smollm2-135m-instruct")
    prompt = "The most important rule for a machine that nobody looks after is this: " * 8
    endless = {"logit_bias": {"0": -100, "2": -100}}
    try:
        unit.start()
        cold = unit.complete(prompt, headers={"X-Magnitude-Keep": "no"}, max_tokens=64, **endless)
        prompt_tokens, whole = cold["usage"]["prompt_tokens"], cold["choices"][0]["text"]
        begun = unit.freeze_in_mid_answer(prompt, pieces=10, max_tokens=1000, **endless)
        assert whole.startswith(begun)
        unit.end(signal.SIGKILL)

        unit.start()
        (kept,) = unit.admin("/v1/magnitude/kv")["data"]
        assert (kept["where"], kept["owner"]) == ("memory", "")
        assert kept["tokens"] >= prompt_tokens + 10 - 1
        warm = unit.complete(prompt, max_tokens=64, **endless)
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= prompt_tokens - 2
        assert warm["choices"][0]["text"] == whole
        assert unit.cached(prompt + begun) > prompt_tokens
    finally:
        unit.close()
