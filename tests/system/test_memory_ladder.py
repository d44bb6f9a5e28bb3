"""A real service and engine on a board whose control group is a tree of files that a test fills and empties."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from started_service import GOLDEN, free_port

from kernel_trees import write_tree
from magnitude.supervise.exit_status import EXIT_MEMORY

FOREIGN = GOLDEN / "genai_tiny_llama"
PATIENCE_S = 60.0
LIMIT = 1_000_000_000
G = "sys/fs/cgroup/magnitude.service"
# The service as `magnitude serve` runs it, but for the roots of its board.
ON_A_BOARD = """
import sys
from pathlib import Path
from magnitude.board import HostRoots
from magnitude.config.load import load
from magnitude.log import setup
from magnitude.service_loop import run_service
settings = load().settings
setup(settings.log)
sys.exit(run_service(settings, roots=HostRoots.under(Path(sys.argv[1]))))
"""


class BoardedService:
    def __init__(self, home: Path, **memory: object) -> None:
        self.board = home / "board"
        home.mkdir()
        write_tree(
            self.board,
            {
                "proc/meminfo": "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\nSwapFree: 0 kB",
                "proc/self/cgroup": "0::/magnitude.service",
                f"{G}/memory.max": LIMIT,
                f"{G}/memory.current": LIMIT // 4,
            },
        )
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        settings = {
            "engine": {"model_path": str(FOREIGN)},
            "server": {"listen": f"127.0.0.1:{port}"},
            "memory": {"check_every_s": 0.2, "cool_down_s": 0.5, "long_prompt_tokens": 16, **memory},
        }
        (home / "magnitude.yaml").write_text(yaml.safe_dump(settings))
        self.log = home / "service.log"
        self.admin = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(home / "run/magnitude.sock")),
            base_url="http://localhost",
            timeout=30,
        )
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", ON_A_BOARD, str(self.board)],
                env={**os.environ, "MAGNITUDE_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def use(self, percent: int) -> None:
        write_tree(self.board, {f"{G}/memory.current": LIMIT * percent // 100})

    def state(self) -> dict[str, Any]:
        return self.admin.get("/v1/magnitude/state").json()  # type: ignore[no-any-return]

    def memory(self) -> dict[str, Any]:
        return self.state()["memory"]  # type: ignore[no-any-return]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if condition():
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        pytest.fail(f"{what} did not come about:\n{self.log.read_text()[-6000:]}", pytrace=False)

    def ready(self) -> bool:
        return httpx.get(f"{self.url}/readyz").status_code == 200

    def complete(self, tokens: int, first: int) -> httpx.Response:
        """`first` is the prompt's first token: nothing of one with another beginning is known."""
        body = {"model": FOREIGN.name, "prompt": [first, *range(4, 3 + tokens)], "max_tokens": 4}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[BoardedService]:
    running = BoardedService(tmp_path / "home")
    yield running
    running.process.kill()
    running.process.wait()
    running.admin.close()


def test_a_group_that_fills_up_leads_step_by_step_to_a_new_engine_and_back(board: BoardedService) -> None:
    board.until(board.ready, "readiness")
    memory = board.memory()
    assert (memory["step"], memory["limit_bytes"], memory["pressure_bytes"]) == ("normal", LIMIT, LIMIT // 4)
    assert memory["psi"] == "unavailable"
    assert any("psi=1" in hint for hint in memory["hints"])
    assert board.complete(40, 3).status_code == 200

    board.use(76)
    board.until(lambda: board.memory()["step"] == "shrink_kv", "the step shrink_kv")
    assert board.complete(40, 50).status_code == 200
    board.use(86)
    board.until(lambda: board.memory()["step"] == "refuse_long", "the step refuse_long")
    refused = board.complete(40, 51)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "memory_pressure")
    assert int(refused.headers["Retry-After"]) > 0
    assert board.complete(10, 52).status_code == 200
    engine = board.state()["health"]["engine_pid"]

    board.use(91)
    board.until(lambda: board.memory()["step"] == "recycle", "the step recycle")
    board.until(lambda: board.state()["health"]["engine_pid"] not in (None, engine), "another engine")
    board.until(board.ready, "readiness of the new engine")
    memory = board.memory()
    taken = [step["step"] for step in reversed(memory["last_steps"])]
    assert list(dict.fromkeys(taken)) == ["trim", "shrink_kv", "unload_idle", "refuse_long", "recycle"]
    assert all("%" in step["reason"] for step in memory["last_steps"])
    metrics = board.admin.get("/metrics").text
    assert "magnitude_memory_step 5.0" in metrics
    assert 'magnitude_memory_steps_total{step="recycle"} 1.0' in metrics
    assert board.complete(10, 53).status_code == 200

    board.use(30)
    board.until(lambda: board.memory()["step"] == "normal", "the step normal")
    assert board.complete(40, 54).status_code == 200
    assert board.stop() == 0


def test_a_group_that_stays_full_with_a_new_engine_ends_the_service_with_the_status_for_memory(
    board: BoardedService,
) -> None:
    board.until(board.ready, "readiness")
    board.use(97)
    assert board.process.wait(PATIENCE_S) == EXIT_MEMORY
    log = board.log.read_text()
    steps = [words for words in ("memory: engine replaced", "memory: service restarted") if words in log]
    assert len(steps) == 2
    assert log.index(steps[0]) < log.index(steps[1])
    assert "replacing the engine did not help" in log


def test_an_engine_that_holds_more_than_was_planned_is_replaced_though_there_is_memory(board: BoardedService) -> None:
    board.until(board.ready, "readiness")
    engine = board.state()["health"]["engine_pid"]
    held_kb = 700_000
    write_tree(
        board.board,
        {
            f"proc/{engine}/status": f"State: S\nVmRSS: {held_kb} kB\nRssAnon: {held_kb} kB\nVmSwap: 0 kB",
            f"proc/{engine}/stat": f"{engine} (python) S {' '.join(['1'] * 20)}",
        },
    )
    board.until(lambda: board.state()["health"]["engine_pid"] not in (None, engine), "another engine")
    memory = board.memory()
    assert memory["step"] == "normal"
    assert [step["step"] for step in memory["last_steps"]] == ["recycle", "trim"]
    assert "717 MB of its own" in memory["last_steps"][0]["reason"]
    board.until(board.ready, "readiness of the new engine")
    assert board.complete(10, 3).status_code == 200
