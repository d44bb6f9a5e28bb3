"""A booted system with the service in it, as its admin and its clients see it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
import rootfs
import yaml
from nspawn import Container, until

SERVICE, SOCKET = "magnitude.service", "magnitude.socket"
UNIX_SOCKET = "/run/magnitude/magnitude.sock"
CONFIG = "/etc/magnitude/magnitude.yaml"
STATE = "/var/lib/magnitude"
TINY = {"model": "tiny", "prompt": [3, 7, 11], "max_tokens": 8, "temperature": 0}
CHAT = "smollm2-135m-instruct"
# Ten times what a start of the embedded chat model takes on a machine that does nothing else.
READY_S = 60.0
# With a float KV cache verified drafts round differently, and many tests compare whole texts.
PLAIN = {"engine": {"speculation": "off"}}


class Board(Container):
    """A container whose service is enabled. `settings` are its configuration; `unit` is put into a drop-in of the
    service; `models` are folders on the host that are served besides the tiny model; `files` are there before it
    boots."""

    def __init__(
        self,
        root: Path,
        *,
        settings: dict[str, Any] | None = None,
        unit: str = "",
        models: Sequence[Path] = (),
        files: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        binds = [f"--bind-ro={model.resolve()}:{rootfs.MODELS}/{model.name}" for model in models]

        def write(upper: Path) -> None:
            inside = {CONFIG: yaml.safe_dump(PLAIN | (settings or {})), **(files or {})}
            if unit:
                inside[f"/etc/systemd/system/{SERVICE}.d/90-test.conf"] = unit
            for name, text in inside.items():
                path = upper / name.lstrip("/")
                _make_folder(root, upper, path.parent)
                path.write_text(text)

        super().__init__(root, options=[*binds, *options], prepare=write)

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    @property
    def main_pid(self) -> int:
        """The service's process, by its number inside."""
        return int(self.show(SERVICE, "MainPID"))

    @property
    def engine_pid(self) -> int:
        """The engine's process, by its number inside; 0 when there is none."""
        return int(self.state()["health"]["engine_pid"] or 0)

    @property
    def restarts(self) -> int:
        return int(self.show(SERVICE, "NRestarts"))

    @property
    def status_line(self) -> str:
        return self.show(SERVICE, "StatusText")

    def admin(self) -> httpx.Client:
        return self.client(UNIX_SOCKET)

    def state(self) -> dict[str, Any]:
        with self.admin() as client:
            state: dict[str, Any] = client.get("/v1/magnitude/state").json()
            return state

    def ready(self) -> bool:
        """Whether it serves, and systemd knows."""
        with contextlib.suppress(httpx.TransportError), self.client(UNIX_SOCKET, timeout_s=5) as client:
            return client.get("/readyz").status_code == 200 and self.show(SERVICE, "ActiveState") == "active"
        return False

    def wait_ready(self) -> None:
        until(self.ready, within_s=READY_S, what="the service is ready")

    def configure(self, **settings: Any) -> None:
        self.write(CONFIG, yaml.safe_dump(PLAIN | settings))

    def complete(self, **body: Any) -> str:
        """The text of a short completion by the tiny model."""
        with self.admin() as client:
            reply = client.post("/v1/completions", json=TINY | body)
        assert reply.status_code == 200, reply.text
        text: str = reply.json()["choices"][0]["text"]
        return text

    def chat(self, text: str, **body: Any) -> dict[str, Any]:
        """The answer of the embedded chat model, as it comes."""
        with self.admin() as client:
            reply = client.post("/v1/chat/completions", json=chat_body(text, **body))
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    def stream(self, text: str, **body: Any) -> Stream:
        return Stream(self.client(UNIX_SOCKET), chat_body(text, stream=True, **body))

    def kill(self, signal: str, pid: int) -> None:
        self.run("kill", f"-{signal}", str(pid))


class Stream:
    """A streamed answer of the embedded chat model that is read in a thread."""

    def __init__(self, client: httpx.Client, body: dict[str, Any]) -> None:
        self.pieces: list[str] = []
        self.error: dict[str, Any] = {}
        self.done = False
        self._client = client
        self._body = body
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def begun(self, pieces: int = 3) -> None:
        """Wait until so many pieces of text have come."""
        until(lambda: len(self.pieces) >= pieces or not self._thread.is_alive(), within_s=READY_S, what="text comes")
        assert len(self.pieces) >= pieces, self.error

    def whole(self) -> str:
        """Wait for the end; the text."""
        self._thread.join(2 * READY_S)
        assert not self.error, self.error
        assert self.done, f"the stream did not end: {self.pieces}"
        return "".join(self.pieces)

    def _read(self) -> None:
        try:
            with self._client, self._client.stream("POST", "/v1/chat/completions", json=self._body) as reply:
                for line in reply.iter_lines():
                    if line == "data: [DONE]":
                        self.done = True
                    elif line.startswith("data: "):
                        self._take(json.loads(line[6:]))
                    elif reply.status_code != 200:
                        self.error = {"status": reply.status_code, "text": line}
        except httpx.TransportError as error:
            self.error = {"lost": repr(error)}

    def _take(self, event: dict[str, Any]) -> None:
        self.error = event.get("error", self.error)
        for choice in event.get("choices", []):
            self.pieces.append(choice["delta"].get("content") or "")


def chat_body(text: str, **body: Any) -> dict[str, Any]:
    messages = body.pop("messages", [{"role": "user", "content": text}])
    return {"model": CHAT, "messages": messages, "temperature": 0, "max_tokens": 16, **body}


def _make_folder(root: Path, upper: Path, folder: Path) -> None:
    """Make `folder` in the overlay with owner and mode as in the root, which it would otherwise hide."""
    for part in reversed([folder, *folder.parents]):
        if part.is_relative_to(upper) and not part.exists():
            part.mkdir()
            below = root / part.relative_to(upper)
            if below.exists():
                stat = below.stat()
                os.chown(part, stat.st_uid, stat.st_gid)
                part.chmod(stat.st_mode & 0o7777)


def lines_of(text: str, *words: str) -> Iterator[str]:
    """The lines with all these words."""
    return (line for line in text.splitlines() if all(word in line for word in words))
