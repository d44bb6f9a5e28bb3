"""The real engine's speed on a simulated board: does it follow the simulated clock?

Each round asks the same at the highest clock and at a capped one, one after the other, and compares the two. The cap
is written where an admin would write it; what it should lead to is what the board's model says of those clocks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import msgspec

from bench.service_process import SERVE, ServiceFailed, ServiceProcess, post
from bench.spread import Spread, paired_ratio
from bench.stream_client import PATH, Stream

# The engine's own share: the last run of a prompt, whose pause comes after its token, is not made up for in it.
SHARE_TOLERANCE = 0.15
# A ratio of two speeds, one after the other, on a machine that does other things as well. What is neither a run nor a
# pause (messages, waiting for a core) is not slowed down with the clock.
RATIO_TOLERANCE = 0.35
SETTLE_TIMEOUT_S = 30.0
# The engine reports at once when it has nothing more to do; a loaded machine takes its time to hear of it.
REPORT_S = 0.5
NEW_TOKENS = 96
SENTENCE = "The {number}. fox jumps over the lazy dog near the river bank. "
SENTENCES = 60


class ClockResult(msgspec.Struct, frozen=True, kw_only=True):
    """Rates at `khz` (a cap for every policy of the simulated board) over those at the highest clock: as the board's
    model predicts them, and as clients saw them, in pairs. `held_*` is the share that the engine computed, by its own
    report: of its runs and pauses together, the runs. What else the machine does is not in that."""

    khz: int
    predicted_prefill: float
    predicted_decode: float
    prefill: Spread
    decode: Spread
    held_prefill: Spread
    held_decode: Spread
    full_prefill_tokens_s: Spread
    full_decode_tokens_s: Spread

    @property
    def missed(self) -> list[str]:
        """What was not reached, in words."""
        judged = (
            ("prefill", "the engine", self.held_prefill, self.predicted_prefill, SHARE_TOLERANCE),
            ("decode", "the engine", self.held_decode, self.predicted_decode, SHARE_TOLERANCE),
            ("prefill", "a client", self.prefill, self.predicted_prefill, RATIO_TOLERANCE),
            ("decode", "a client", self.decode, self.predicted_decode, RATIO_TOLERANCE),
        )
        return [
            f"{phase} at {self.khz / 1000:.0f} MHz, as {who} sees it: {found.median:.2f} of full speed, "
            f"predicted {predicted:.2f}"
            for phase, who, found, predicted, tolerance in judged
            if abs(found.median / predicted - 1) > tolerance
        ]


class _Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens a second of a prompt that nobody asked before, and of an answer, by the client's clock."""

    prefill: float
    decode: float
    held_prefill: float
    held_decode: float


def command(board: str, ambient_c: float) -> tuple[str, ...]:
    return (*SERVE, "--simulate", board, "--ambient", f"{ambient_c:g}")


class LiveBoardBench:
    """Asks a service that `command` started."""

    def __init__(self, service: ServiceProcess, model: str, eos: tuple[int, ...]) -> None:
        """`eos`: ids that would end an answer early."""
        self._service = service
        self._model = model
        self._eos = eos
        self._number = 0

    def measure(self, khz: int, rounds: int, progress: Callable[[str], None] = lambda _: None) -> ClockResult:
        """Raises `ServiceFailed`."""
        full: list[_Rates] = []
        capped: list[_Rates] = []
        prefill = decode = 1.0
        for number in range(rounds):
            progress(f"{khz / 1000:.0f} MHz, round {number + 1} of {rounds}")
            self._limit(None)
            full.append(self._rates())
            prefill, decode = self._limit(khz)
            capped.append(self._rates())
        self._limit(None)
        return ClockResult(
            khz=khz,
            predicted_prefill=prefill,
            predicted_decode=decode,
            prefill=paired_ratio([rates.prefill for rates in capped], [rates.prefill for rates in full]),
            decode=paired_ratio([rates.decode for rates in capped], [rates.decode for rates in full]),
            held_prefill=Spread.of([rates.held_prefill for rates in capped]),
            held_decode=Spread.of([rates.held_decode for rates in capped]),
            full_prefill_tokens_s=Spread.of([rates.prefill for rates in full]),
            full_decode_tokens_s=Spread.of([rates.decode for rates in full]),
        )

    def _limit(self, khz: int | None) -> tuple[float, float]:
        """Cap every policy; the shares that the engine is held to then."""
        tree = self._service.home / "run/simulated-board/tree/sys/devices/system/cpu/cpufreq"
        for folder in tree.iterdir():
            limit = (folder / "cpuinfo_max_freq").read_text() if khz is None else f"{khz}\n"
            (folder / "scaling_max_freq").write_text(limit)
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < deadline:
            time.sleep(0.3)  # three looks of the board
            shares = self._service.state().pace.get("board")
            if (shares is None) == (khz is None):
                return (shares.prefill, shares.decode) if shares is not None else (1.0, 1.0)
        raise ServiceFailed(f"the engine does not follow a clock of {khz} kHz")

    def _rates(self) -> _Rates:
        self._number += 1
        # In this order: what is owed for the last piece of a long prompt holds up the answers that follow it.
        decode, held_decode = self._with_share(self._decode_rate)
        prefill, held_prefill = self._with_share(self._prefill_rate)
        return _Rates(prefill=prefill, decode=decode, held_prefill=held_prefill, held_decode=held_decode)

    def _with_share(self, measure: Callable[[], float]) -> tuple[float, float]:
        """A rate, and the share of runs in the engine's runs and pauses meanwhile."""
        before = self._service.state().run_times
        rate = measure()
        time.sleep(REPORT_S)
        after = self._service.state().run_times
        ran_s = after.prefill_s + after.decode_s - before.prefill_s - before.decode_s
        paused_s = after.paused_s - before.paused_s
        if not ran_s:
            raise ServiceFailed("the engine does not report what its runs took")
        return rate, ran_s / (ran_s + paused_s)

    def _prefill_rate(self) -> float:
        first = self._number * SENTENCES
        prompt = "".join(SENTENCE.format(number=number) for number in range(first, first + SENTENCES))
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        begin = time.monotonic()
        status, answer = post(self._service.port, PATH, json.dumps(body).encode())
        took_s = time.monotonic() - begin
        if status != 200:
            raise ServiceFailed(f"{PATH} answers {status}: {answer[:500]!r}")
        return int(json.loads(answer)["usage"]["prompt_tokens"]) / took_s

    def _decode_rate(self) -> float:
        body = {
            "model": self._model,
            "prompt": f"{self._number}. Once upon a time",
            "max_tokens": NEW_TOKENS,
            "temperature": 0,
            "logit_bias": {str(token): -100 for token in self._eos},
        }
        answer = Stream(self._service.port, body).result()
        return (answer.tokens - 1) / (answer.last_s - answer.first_s)
