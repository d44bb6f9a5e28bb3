"""Flash that wears out: an idle service leaves it alone, and whatever it did to the state, the service starts."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import httpx
import pytest
from started_service import free_port
from tiny_service import TinyService

# An hour of a probe that comes every six seconds.
PROBES = 600
BROKEN = [b"", b'{"a":1,', b"\0" * 4096, b"[]", b'{"a":NaN}', b'{"schema":99,"sha256":"","value":{}}']
EVERYTHING = (
    *("golden.json", "golden.json.bak", "throughput.json", "throughput.json.bak", "records.db"),
    *("kv/0123456789abcdef.kv", "failures/000001-hang.json"),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def start(home: Path, services: list[TinyService]) -> tuple[TinyService, str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    service = TinyService(home, listen=f"127.0.0.1:{port}")
    services.append(service)
    service.wait_ready(url)
    return service, url


def answers(url: str) -> bool:
    body = {"prompt": [3, 7, 11], "max_tokens": 4, "temperature": 0}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    return reply.status_code == 200 and reply.json()["usage"]["completion_tokens"] == 4


def written_bytes(pid: int) -> int:
    """What a process has sent towards the storage (proc(5))."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["write_bytes"])


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_an_idle_service_writes_nothing_however_often_it_is_probed(home: Path, services: list[TinyService]) -> None:
    service, url = start(home, services)
    with httpx.Client(base_url=url) as client:
        engine = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
        processes = [service.process.pid, *map(int, engine)]
        before = files(home), [written_bytes(pid) for pid in processes]
        for _ in range(PROBES):
            assert client.get("/healthz").status_code == 200
            assert client.get("/readyz").status_code == 200
    # The log is one of the files.
    assert (files(home), [written_bytes(pid) for pid in processes]) == before


def test_a_state_folder_that_cannot_be_used_costs_no_answer(home: Path, services: list[TinyService]) -> None:
    home.mkdir()
    (home / "state").write_text("a file where the folder should be")
    _, url = start(home, services)
    assert answers(url)
    health = httpx.get(f"{url}/readyz").json()
    assert (health["ready"], health["persistence"]) == (True, "off")
    for lost in ("records of tasks are not kept", "what is learned of strategies is not kept"):
        assert any(lost in reason for reason in health["reasons"]), lost


def test_whatever_a_power_cut_left_of_the_state_the_service_starts_and_answers(
    home: Path, services: list[TinyService]
) -> None:
    service, url = start(home, services)
    assert answers(url)
    assert service.stop() == 0
    state = home / "state"
    for folder in ("kv", "failures"):
        (state / folder).mkdir(exist_ok=True)
    for start_number in range(3):
        contents = itertools.cycle(BROKEN[start_number:] + BROKEN[:start_number])
        for name in EVERYTHING:
            (state / name).write_bytes(next(contents))
        service, url = start(home, services)
        assert answers(url)
        health = httpx.get(f"{url}/readyz").json()
        assert (health["ready"], health["persistence"]) == (True, "on")
        assert service.stop() == 0
    for name in ("golden.json", "throughput.json", "records.db"):
        assert len(list(state.glob(f"{name}.broken-*"))) == 2, name


def test_a_service_that_is_killed_while_it_writes_finds_its_state_again(
    home: Path, services: list[TinyService]
) -> None:
    for _ in range(2):
        service, url = start(home, services)
        assert answers(url)
        assert service.stop(signal.SIGKILL) != 0
    _, url = start(home, services)
    assert httpx.get(f"{url}/readyz").json()["persistence"] == "on"
    assert not list((home / "state").glob("*.broken-*"))
