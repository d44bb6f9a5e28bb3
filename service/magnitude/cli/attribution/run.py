"""Replays work on a running service with the strategy loop off and on in turn, and measures both."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from magnitude.cli.attribution.work import Ask, Work
from magnitude.cli.client import ServiceClient, ServiceRefused, ServiceUnreachable
from magnitude.cli.strategy_source import PATH
from magnitude.policy.attribution import Answer, Block, Mode, another_round_fits, order

if TYPE_CHECKING:
    from magnitude.board.energy_meter import EnergyMeter
    from magnitude.board.profile import BoardProfile

# Nothing of the work may be found in the cache by the next block.
HEADERS = {"X-Magnitude-Keep": "no", "X-Magnitude-Task": "attribute"}
# The loop goes on by itself so long after this process has died. It is held again well before.
HOLD_S, HOLD_AGAIN_S = 30.0, 10.0
METER_EVERY_S = 0.2
# The engine's own count of its memory comes once a second.
STATE_EVERY_S = 1.0
# While it learns, work and rest take turns: the loop tries things in both, and does not take a pause of less than two
# seconds for rest.
REST_S = 5.0
# The engine tells what its runs took twice a second; what a block took is complete a little later.
REPORTED_S = 0.7


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known besides the blocks. `energy` names where its figure is from, "": nowhere. `on_delay_s` from the
    first sample to a decision, on average; `loop_cpu_share` of the time in which the loop was on."""

    energy: str
    strategies_off: tuple[str, ...]
    strategies_on: tuple[str, ...]
    on_delay_s: float | None
    loop_cpu_share: float


class Proof:
    """One comparison. `connect` makes a further connection to the same service; `model` is the one whose loop is
    told of. `meter` measures, else `profile` models the energy; with neither there is none."""

    def __init__(
        self,
        connect: Callable[[], ServiceClient],
        work: Work,
        model: str,
        *,
        meter: EnergyMeter | None,
        profile: BoardProfile | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.blocks: list[Block] = []
        self.rounds_took_s: list[float] = []
        self._connect = connect
        self._work = work
        self._model = model
        self._meter = meter
        self._profile = profile
        self._clock = clock
        self._sleep = sleep
        self._strategies: dict[Mode, dict[str, None]] = {"off": {}, "on": {}}  # ordered sets
        self._on_s = self._loop_cpu_s = 0.0
        self._delay_s: float | None = None
        self._switches: int | None = None  # the service's count when the last block was over

    def run(
        self, for_s: float, learn_s: float = 0.0, told: Callable[[Mode, Block], None] = lambda mode, block: None
    ) -> None:
        """Let the loop learn the work for `learn_s`, warm up, then run whole rounds until `for_s` is over, one at
        least. `told` hears of each block that counts. The loop is on again afterwards, however this ends."""
        end_s = self._clock() + for_s
        with contextlib.ExitStack() as stack:
            control = stack.enter_context(self._connect())
            stack.callback(_let_go, control)
            widest = max(map(len, self._work))
            pool = stack.enter_context(ThreadPoolExecutor(widest))
            clients = [stack.enter_context(self._connect()) for _ in range(widest)]
            watcher = stack.enter_context(self._connect())
            while self._clock() < end_s - for_s + learn_s:
                self._replay(pool, clients)
                self._sleep(REST_S)
            for mode in ("off", "on"):
                self._block(mode, control, watcher, pool, clients)
            while another_round_fits(self.rounds_took_s, end_s - self._clock()):
                began_s, round_ = self._clock(), []
                for mode in order(len(self.rounds_took_s)):
                    round_.append(self._block(mode, control, watcher, pool, clients))
                    told(mode, round_[-1])
                self.blocks += round_
                self.rounds_took_s.append(self._clock() - began_s)

    def seen(self) -> Seen:
        if self._meter is not None:
            energy = f"measured: {self._meter.name}"
        else:
            energy = f"modelled by the profile {self._profile.name}" if self._profile is not None else ""
        return Seen(
            energy=energy,
            strategies_off=tuple(self._strategies["off"]),
            strategies_on=tuple(self._strategies["on"]),
            on_delay_s=self._delay_s,
            loop_cpu_share=self._loop_cpu_s / self._on_s if self._on_s else 0.0,
        )

    # --- one block ---

    def _block(
        self,
        mode: Mode,
        control: ServiceClient,
        watcher: ServiceClient,
        pool: ThreadPoolExecutor,
        clients: list[ServiceClient],
    ) -> Block:
        control.post(PATH, {"hold": HOLD_S if mode == "off" else 0})
        # The sessions of this mode run once before anything counts.
        for ask in {ask.route: ask for step in self._work for ask in step}.values():
            self._ask(clients[0], ask, 0)
        self._sleep(REPORTED_S)
        state, running = control.get("/v1/magnitude/state"), _running(control, self._model)
        watch = _Watch(watcher, mode, self._meter, state, self._clock)
        with watch:
            began_s = self._clock()
            answers = self._replay(pool, clients)
            took_s = self._clock() - began_s
        self._sleep(REPORTED_S)
        after, then = control.get("/v1/magnitude/state"), _running(control, self._model)
        self._strategies[mode][then["in_words"]] = None
        # One may come between two blocks as well, when the loop is let go.
        before = running["switches"] if self._switches is None else self._switches
        self._switches = then["switches"]
        if mode == "on":
            self._on_s += took_s
            self._loop_cpu_s += max(0.0, then["cpu_s"] - running["cpu_s"])
            self._delay_s = then["delay_s"]
        return Block(
            mode=mode,
            answers=answers,
            took_s=took_s,
            energy_j=watch.joules if self._meter is not None else self._modelled_j(took_s, state, after, then),
            peak_rss_bytes=watch.peak_rss_bytes,
            switches=max(0, then["switches"] - before),
        )

    def _replay(self, pool: ThreadPoolExecutor, clients: list[ServiceClient]) -> tuple[Answer, ...]:
        """The whole work, once."""
        answers: list[Answer] = []
        for step in self._work:
            answers += pool.map(self._ask, clients, step, range(len(answers), len(answers) + len(step)))
        return tuple(answers)

    def _ask(self, client: ServiceClient, ask: Ask, index: int) -> Answer:
        """Ask and time it. A refusal is a failed answer; a service that has gone ends the comparison."""
        began_s = self._clock()
        first_s: float | None = None
        last_s = began_s
        new_tokens = 0
        try:
            if ask.route == "embeddings":
                client.post("/v1/embeddings", ask.body)
            else:
                for delta in client.chat(ask.body, HEADERS):
                    if delta.text:
                        last_s = self._clock()
                        first_s = first_s if first_s is not None else last_s
                    if delta.usage:
                        new_tokens = int(delta.usage.get("completion_tokens", 0))
        except ServiceRefused:
            return Answer(index=index, total_s=self._clock() - began_s, failed=True)
        return Answer(
            index=index,
            total_s=self._clock() - began_s,
            ttft_s=first_s - began_s if first_s is not None else None,
            inter_token_s=(last_s - first_s) / (new_tokens - 1) if first_s is not None and new_tokens > 1 else None,
        )

    def _modelled_j(
        self, took_s: float, before: dict[str, Any], after: dict[str, Any], running: dict[str, Any]
    ) -> float | None:
        """By what the engine did meanwhile, on the threads of the strategy at the end of the block."""
        from magnitude.board.energy_model import modelled_j

        if self._profile is None:
            return None
        strategy = running["strategy"]
        spent = {name: after["run_times"][name] - before["run_times"][name] for name in ("prefill_s", "decode_s")}
        return modelled_j(
            self._profile,
            took_s=took_s,
            prefill_s=spent["prefill_s"],
            prefill_threads=strategy["prefill"]["threads"],
            decode_s=spent["decode_s"],
            decode_threads=strategy["decode"]["threads"],
        )


class _Watch:
    """Beside a block: its energy, the engine's memory, and the hold that must not run out."""

    def __init__(
        self,
        client: ServiceClient,
        mode: Mode,
        meter: EnergyMeter | None,
        state: dict[str, Any],
        clock: Callable[[], float],
    ) -> None:
        self.peak_rss_bytes: int = state["engine_rss_bytes"]
        self.joules: float | None = None
        self._client = client
        self._mode = mode
        self._meter = meter
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Watch:
        if self._meter is not None:
            self._meter.begin(self._clock())
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        if self._meter is not None:
            self.joules = self._meter.end(self._clock())
        self._look()

    def _watch(self) -> None:
        # A service that has gone is told of by the requests of the work.
        with contextlib.suppress(ServiceRefused, ServiceUnreachable):
            self._look_again_and_again()

    def _look_again_and_again(self) -> None:
        looked_s = held_s = self._clock()
        while not self._over.wait(METER_EVERY_S):
            now_s = self._clock()
            if self._meter is not None:
                self._meter.sample(now_s)
            if now_s - looked_s >= STATE_EVERY_S:
                looked_s = now_s
                self._look()
            if self._mode == "off" and now_s - held_s >= HOLD_AGAIN_S:
                held_s = now_s
                self._client.post(PATH, {"hold": HOLD_S})

    def _look(self) -> None:
        state = self._client.get("/v1/magnitude/state")
        self.peak_rss_bytes = max(self.peak_rss_bytes, state["engine_rss_bytes"])


def _running(client: ServiceClient, model: str) -> dict[str, Any]:
    """What the service does with the model now."""
    for one in client.get(PATH)["data"]:
        if one["model"] == model and one["running"] is not None:
            running: dict[str, Any] = one["running"]
            return running
    raise ServiceRefused(
        404, f"the strategy loop of {model} has gone", hint="See the service's log, or `magnitude ps`"
    )


def _let_go(client: ServiceClient) -> None:
    """The hold runs out by itself where the service does not answer any more."""
    from magnitude.errors import MagnitudeError

    with contextlib.suppress(MagnitudeError):
        client.post(PATH, {"hold": 0})
