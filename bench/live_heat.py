"""The real service under load on a simulated board that gets hot: with the thermal governor and without it.

Clients have prompts read and answers written without a break, so that the board warms up until its firmware, or our
governor before it, does something. Temperatures and clocks are the simulated board's; so is the time in which it
warms up, where `speed` is not 1. Tokens and their rate are the real engine's, paced to the simulated clock.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import msgspec

from bench.service_process import SERVE, ServiceFailed, ServiceProcess, post
from bench.stream_client import PATH
from magnitude.board.sim.told import SimulatedState

# Two agents: one prompt enters while the other's answer is written, which is what warms a board most.
CLIENTS = 2
SENTENCE = "The {number}. fox jumps over the lazy dog near the river bank. "
SENTENCES = 16
NEW_TOKENS = 24
# As often as the simulated board moves.
LOOK_S = 0.1


class HeatPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`start_c`: how warm the chip is at first. Heat passes `speed` times faster than the service's time."""

    board: str
    ambient_c: float
    start_c: float
    speed: float
    seconds: float

    def command(self) -> tuple[str, ...]:
        options = {
            "--simulate": self.board,
            "--ambient": f"{self.ambient_c:g}",
            "--simulate-start": f"{self.start_c:g}",
            "--simulate-speed": f"{self.speed:g}",
        }
        return (*SERVE, *(word for pair in options.items() for word in pair))


class HeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `above_soft_share`: of the time, that with a chip at or above the firmware's soft limit, `soft_c`.
    `clock_share` is the mean of the simulated clock of the fastest cores, of their highest. Tokens count prompts and
    answers."""

    governed: bool
    soft_c: float
    highest_c: float
    last_c: float
    above_soft_share: float
    clock_share: float
    prompt_tokens: int
    new_tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return (self.prompt_tokens + self.new_tokens) / self.seconds


def measure_heat(
    service: ServiceProcess,
    plan: HeatPlan,
    *,
    governed: bool,
    model: str,
    soft_c: float,
    full_khz: int,
    policy: str,
    progress: Callable[[str], None] = lambda _: None,
) -> HeatResult:
    """`full_khz` is the highest clock of `policy`, the fastest cores'. Raises `ServiceFailed`."""
    load = _Load(service.port, model)
    looks: list[SimulatedState] = []
    begin = time.monotonic()
    load.start()
    try:
        while (passed_s := time.monotonic() - begin) < plan.seconds:
            board = service.state().simulated_board
            if board is None:
                raise ServiceFailed("the service says nothing of a simulated board")
            looks.append(board)
            progress(f"{'governed' if governed else 'firmware alone'}: {passed_s:.0f} s, {board.temp_c:.1f} °C")
            time.sleep(LOOK_S)
    finally:
        load.stop()
    return HeatResult(
        governed=governed,
        soft_c=soft_c,
        highest_c=max(look.temp_c for look in looks),
        last_c=looks[-1].temp_c,
        above_soft_share=sum(look.temp_c >= soft_c for look in looks) / len(looks),
        clock_share=sum(look.khz[policy] for look in looks) / len(looks) / full_khz,
        prompt_tokens=load.prompt_tokens,
        new_tokens=load.new_tokens,
        seconds=time.monotonic() - begin,
    )


class _Load:
    """Clients that ask one thing after the other until `stop`."""

    def __init__(self, port: int, model: str) -> None:
        self._port = port
        self._model = model
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._error = ""
        self.prompt_tokens = 0
        self.new_tokens = 0
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(CLIENTS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Returns when the last answers are there. Raises `ServiceFailed` when one failed."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._error:
            raise ServiceFailed(self._error)

    def _run(self, client: int) -> None:
        asked = 0
        while not self._over.is_set():
            asked += 1
            first = (client * 1_000_000) + asked * SENTENCES
            prompt = "".join(SENTENCE.format(number=number) for number in range(first, first + SENTENCES))
            body = {"model": self._model, "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0}
            try:
                status, answer = post(self._port, PATH, json.dumps(body).encode())
            except OSError as error:
                self._error = f"a request broke: {error}"
                return
            if status != 200:
                self._error = f"{PATH} answers {status}: {answer[:500]!r}"
                return
            usage = json.loads(answer)["usage"]
            with self._lock:
                self.prompt_tokens += int(usage["prompt_tokens"])
                self.new_tokens += int(usage["completion_tokens"])
