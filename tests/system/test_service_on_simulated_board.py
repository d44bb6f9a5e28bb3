"""The real service and the embedded model on a simulated board: its clock decides how fast the engine may be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from agent_client import link_models
from started_service import RunningService

from magnitude.feedback.run_series import RunTimes
from magnitude.schedule.inference import ServiceState

PATIENCE_S = 60
LOWEST_KHZ = 408_000
TOKENS = 60


@pytest.fixture(scope="module")
def simulated(magnitude_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("simulated")
    link_models(home, magnitude_home)
    (home / "magnitude.yaml").write_text("engine: {speculation: off}\n")
    running = RunningService(home, "--simulate", "rock5b", "--ambient", "20")
    running.wait_ready()
    yield running
    running.stop()


def state_of(service: RunningService) -> ServiceState:
    return msgspec.convert(service.state(), ServiceState)


def limit_clocks(service: RunningService, khz: int) -> None:
    """As an admin does with a real board."""
    for file in (service.home / "run/simulated-board/tree").glob("sys/devices/system/cpu/cpufreq/*/scaling_max_freq"):
        file.write_text(f"{khz}\n")


def until_paced(service: RunningService, *, slow: bool) -> ServiceState:
    deadline = time.monotonic() + PATIENCE_S
    while ("board" in (state := state_of(service)).pace) != slow:
        assert time.monotonic() < deadline, state.simulated_board
        time.sleep(0.05)
    return state


def answer(service: RunningService) -> RunTimes:
    """Where the engine's time went while it answered."""
    before = state_of(service).run_times
    body = {"prompt": "Once upon a time", "max_tokens": TOKENS, "temperature": 0}
    reply = httpx.post(f"{service.url}/v1/completions", json=body, timeout=PATIENCE_S)
    assert reply.status_code == 200, reply.text
    deadline = time.monotonic() + PATIENCE_S
    # The engine's last report comes after the answer.
    while (after := state_of(service).run_times).decode_s == before.decode_s and time.monotonic() < deadline:
        time.sleep(0.05)
    return RunTimes(
        prefill_s=after.prefill_s - before.prefill_s,
        decode_s=after.decode_s - before.decode_s,
        paused_s=after.paused_s - before.paused_s,
    )


def test_everybody_is_told_that_the_board_is_simulated(simulated: RunningService) -> None:
    board = state_of(simulated).simulated_board
    assert board is not None
    assert (board.board, board.ambient_c) == ("rock5b", 20.0)
    assert board.passed_s > 0
    assert "THE BOARD IS SIMULATED" in simulated.log.read_text()


def test_the_engine_is_as_fast_as_the_simulated_clock_lets_it(simulated: RunningService) -> None:
    limit_clocks(simulated, 9_999_999)
    until_paced(simulated, slow=False)
    assert answer(simulated).paused_s == 0
    limit_clocks(simulated, LOWEST_KHZ)
    state = until_paced(simulated, slow=True)
    board = state.simulated_board
    assert board is not None
    shares = state.pace["board"]
    assert (shares.prefill, shares.decode) == (board.prefill_share, board.decode_share)
    assert shares.prefill < shares.decode < 0.9  # decoding waits for memory, which has its own clock
    times = answer(simulated)
    expected_s = times.prefill_s * (1 / shares.prefill - 1) + times.decode_s * (1 / shares.decode - 1)
    assert 0.5 < times.paused_s / expected_s < 2
    limit_clocks(simulated, 9_999_999)
    until_paced(simulated, slow=False)
    assert answer(simulated).paused_s == 0


def test_the_next_engine_is_as_slow_as_the_last(simulated: RunningService) -> None:
    limit_clocks(simulated, LOWEST_KHZ)
    until_paced(simulated, slow=True)
    with simulated.admin() as admin:
        assert admin.post("/v1/magnitude/recycle", json={"reason": "test"}).status_code == 200
    assert answer(simulated).paused_s > 0
