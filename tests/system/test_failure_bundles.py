"""What a lost engine leaves behind, from the stream that it cut to the archive that somebody is sent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from started_service import free_port
from tiny_service import FOREIGN, TinyService

# Ids that stand nowhere else: what must be in a bundle with content, and in nothing that leaves the machine.
PROMPT = [31, 17, 29, 23, 19, 13]
PLANTED = "31,17,29,23,19,13"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def served(home: Path) -> Iterator[tuple[TinyService, str]]:
    sections = {"engine": {"model_path": str(FOREIGN)}, "records": {"keep_content": True}}
    port = free_port()
    started = TinyService(home, sections=sections, listen=f"127.0.0.1:{port}")
    yield started, f"http://127.0.0.1:{port}"
    started.process.kill()
    started.process.wait()


def verb(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "magnitude.cli.main", *arguments],
        env={**os.environ, "MAGNITUDE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def state(home: Path) -> dict:
    """What the service says of its health, to an admin."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(home / "run/magnitude.sock"))) as admin:
        return admin.get("http://localhost/v1/magnitude/state").json()["health"]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_crash_leaves_a_bundle_that_can_be_tried_again_and_shared(
    home: Path, served: tuple[TinyService, str], tmp_path: Path
) -> None:
    service, url = served
    service.wait_ready(url)
    body = {"prompt": PROMPT, "max_tokens": 40, "stream": True, "temperature": 0}
    engine = state(home)["engine_pid"]
    os.kill(engine, signal.SIGSTOP)  # the tiny model would be done before the engine can be ended
    with ThreadPoolExecutor(max_workers=1) as client:
        reply = client.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=60)
        wait_for(lambda: state(home)["running"] == 1)
        os.kill(engine, signal.SIGSEGV)
        os.kill(engine, signal.SIGCONT)
        rest = reply.result().text.splitlines()
    # The client never notices; the records do.
    assert rest[-2:] == ["data: [DONE]", ""]
    wait_for((home / "state/failures/000001-crash.json").exists)
    bundle = json.loads((home / "state/failures/000001-crash.json").read_text())["value"]
    assert bundle["loss"]["cause"] == "crash"
    (request,) = bundle["requests"]
    assert request["content"]["prompt"] == PROMPT
    assert (request["shape"]["prompt_tokens"], request["shape"]["max_new_tokens"]) == (len(PROMPT), 40)
    assert any("Segmentation fault" in line for line in bundle["last_lines"])
    assert bundle["models"][0]["facts"]["model"] == FOREIGN.name
    assert service.stop() == 0

    listed = verb(home, "failures")
    assert "000001-crash" in listed.stdout, listed.stderr
    replayed = verb(home, "replay", "1", "--times", "2")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert replayed.stdout.count("the engine lived, 40 tokens were generated") == 2
    records = json.loads(verb(home, "records", "--json").stdout)
    assert records["counts"] == {"ok": 1}
    assert records["data"][0]["circumstances"]["engine_restarts"] == 1

    archive_path = tmp_path / "support.tar.gz"
    assert verb(home, "support", "--output", str(archive_path)).returncode == 0
    with tarfile.open(archive_path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            assert PLANTED not in "".join(file.read().decode().split()), member.name
        assert "magnitude-support/failures/000001-crash.json" in archive.getnames()
