"""The real service and the embedded model on a simulated board: its clock decides how fast the engine may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import yaml
from agent_client import link_models
from started_service import RunningService

from magnitude.board.profiles import load_profile
from magnitude.feedback.run_series import RunTimes
from magnitude.schedule.inference import ServiceState

PATIENCE_S = 60
LOWEST_KHZ = 408_000
TOKENS = 60
# Of the board's time: what a bare Raspberry Pi 5 needs to get too hot, twice.
LONG_S = 240.0


def started(home: Path, magnitude_home: Path, *options: str, governed: bool) -> RunningService:
    link_models(home, magnitude_home)
    settings = {"engine": {"speculation": "off"}, "thermal": {"enabled": governed}}
    (home / "magnitude.yaml").write_text(yaml.safe_dump(settings))
    running = RunningService(home, *options)
    running.wait_ready()
    return running


@pytest.fixture(scope="module")
def simulated(magnitude_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A board that is only watched: these tests are the ones who set its clocks."""
    home = tmp_path_factory.mktemp("simulated")
    running = started(home, magnitude_home, "--simulate", "rock5b", "--ambient", "20", governed=False)
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


def test_the_governor_keeps_a_chip_below_the_firmwares_limit_that_its_load_would_take_beyond(
    magnitude_home: Path, tmp_path: Path
) -> None:
    """Heat passes eight times faster, so that the load lasts for minutes of the board's time."""
    options = ("--simulate", "pi5-bare", "--simulate-start", "72", "--simulate-speed", "8")
    service = started(tmp_path, magnitude_home, *options, governed=True)
    over = threading.Event()
    asking = [threading.Thread(target=ask_on_and_on, args=(service, number, over)) for number in range(2)]
    try:
        for thread in asking:
            thread.start()
        looks = [state_of(service)]
        while (board := looks[-1].simulated_board) is not None and board.passed_s < LONG_S:
            time.sleep(0.1)
            looks.append(state_of(service))
    finally:
        over.set()
        for thread in asking:
            thread.join()
        service.stop()
    temps_c = [look.simulated_board.temp_c for look in looks if look.simulated_board is not None]
    soft_c = load_profile("pi5-bare").trips.soft_c
    assert len(temps_c) == len(looks)
    assert max(temps_c) < soft_c
    # It was warm enough for something to be done, and what was done slowed the engine down.
    assert max(temps_c) > soft_c - 6
    assert any("board" in look.pace for look in looks)


def ask_on_and_on(service: RunningService, client: int, over: threading.Event) -> None:
    """Prompts nobody has asked before, which is what warms a board most."""
    asked = 0
    while not over.is_set():
        asked += 1
        lines = (f"{client}-{asked}-{line}: the fox jumps over the dog near the river bank. " for line in range(20))
        body = {"prompt": "".join(lines), "max_tokens": 8, "temperature": 0}
        httpx.post(f"{service.url}/v1/completions", json=body, timeout=PATIENCE_S)
