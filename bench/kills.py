"""Requests of every kind while their engine is killed again and again, in each phase of its work; each answer is
compared with the one that an undisturbed engine gives.

The engine is killed with SIGKILL while it starts, while it loads, and while some request is in its prefill, in
mid-decode, or at its last tokens, as far as their clients can tell. What else is open at that moment is struck as
well, in whatever phase it is.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

import msgspec

from bench.kill_client import Answer, Ask, Watch
from bench.kill_requests import KillRequest
from bench.service_process import ServiceFailed, ServiceProcess

_T = TypeVar("_T")

CONCURRENCY = 4
RIGHT_GOAL = 0.999
# Kills of a phase that does not come about within so long are left out: prompts may all be cached just then.
PATIENCE_S = 5.0
POLL_S = 0.002
# A wrong answer and what it should have been are shown this often.
SHOWN = 10

Strike = Literal["start", "load", "prefill", "decode", "last token"]
# Of ten kills: most where answers can be spoilt.
STRIKES: tuple[Strike, ...] = (
    "decode", "prefill", "last token", "load", "decode", "prefill", "start", "decode", "prefill", "last token",
)  # fmt: skip


class PhaseCount(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were open at a kill, by the phase that they (or the engine) were in. One that was struck in
    several phases counts in each."""

    phase: str
    kills: int
    requests: int
    right: int
    errors: int
    wrong: int


class KillsResult(msgspec.Struct, frozen=True, kw_only=True):
    """`right`: as undisturbed; `errors`: the service said that the request failed; `wrong`: another answer, or one
    cut off without a word. `recovered`: answers whose engine was replaced under way; `recomputed_tokens`: positions
    that were not in the KV any more afterwards. `left_out`: kills that found nothing in their phase."""

    requests: int
    kills: int
    left_out: int
    right: int
    errors: int
    wrong: int
    recovered: int
    recomputed_tokens: int
    wall_s: float
    phases: tuple[PhaseCount, ...]
    kinds: dict[str, dict[str, int]]
    shown: tuple[str, ...]

    @property
    def missed(self) -> list[str]:
        """What was not reached, in words."""
        found = [f"{self.wrong} wrong answers"] if self.wrong else []
        if self.right < RIGHT_GOAL * self.requests:
            found.append(f"{self.right} of {self.requests} answers were right, goal {RIGHT_GOAL:.1%}")
        return [*found, *self.shown]


def undisturbed(
    port: int, requests: Iterable[KillRequest], progress: Callable[[str], None] = lambda _: None
) -> dict[bytes, Answer]:
    """What each request is answered, one after the other. Raises `ServiceFailed` when one fails."""
    answers: dict[bytes, Answer] = {}
    for request in requests:
        key = key_of(request)
        if key in answers:
            continue
        progress(f"undisturbed, {len(answers) + 1}")
        answer = Ask(port, request).run()
        if answer.error or answer.broken:
            raise ServiceFailed(f"{request.kind} fails undisturbed: {answer.error or answer.broken}")
        answers[key] = answer
    return answers


def key_of(request: KillRequest) -> bytes:
    return msgspec.json.encode(request)


class Campaign:
    """`kills` over all of `requests`, which run `CONCURRENCY` at a time. A kill waits for its phase at most
    `patience_s`."""

    def __init__(
        self,
        service: ServiceProcess,
        requests: Sequence[KillRequest],
        expected: dict[bytes, Answer],
        *,
        kills: int,
        seed: int,
        strikes: Sequence[Strike] = STRIKES,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._service = service
        self._requests = requests
        self._expected = expected
        self._kills = kills
        self._strikes = strikes
        self._patience_s = patience_s
        self._dice = random.Random(seed)
        self._watch = Watch()
        self._over = threading.Event()
        self._by_phase: Counter[str] = Counter()
        self._left_out = 0

    def run(self, progress: Callable[[str], None] = lambda _: None) -> KillsResult:
        """Raises `ServiceFailed` when the service itself leaves."""
        begin_s = time.monotonic()
        killer = threading.Thread(target=self._kill_all, args=(progress,), daemon=True)
        killer.start()
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            asked = list(pool.map(lambda request: self._watch.ask(self._service.port, request), self._requests))
        self._over.set()
        killer.join()
        if not self._service.alive:
            raise ServiceFailed(f"the service left:\n{self._service.log_tail()}")
        return self._result(asked, time.monotonic() - begin_s)

    # --- who kills ---

    def _kill_all(self, progress: Callable[[str], None]) -> None:
        for number in range(self._kills):
            due = len(self._requests) * number // self._kills
            while self._watch.done < due and not self._over.wait(0.01):
                pass
            if self._over.is_set():
                return
            progress(f"{self._watch.done} of {len(self._requests)} answered, kill {number + 1} of {self._kills}")
            strike = self._strikes[number % len(self._strikes)]
            if not self._strike(strike):
                self._left_out += 1

    def _strike(self, strike: Strike) -> bool:
        """Kill the engine in that phase; False when it does not come about."""
        if strike in ("start", "load"):
            # The next one is struck on its way up.
            if strike == "start":
                self._kill_spare()
            first = self._wait_for(lambda: self._engine_in("up"))
            if first is None:
                return False
            self._kill(first, "decode", of_engine=False)
            phase = "starting" if strike == "start" else "loading"
            pid = self._wait_for(lambda: self._engine_in(phase, beside=first))
        else:
            if self._wait_for(lambda: self._engine_in("up")) is None:
                return False
            found = self._wait_for(lambda: self._someone_in(strike))
            if found is None:
                return False
            if strike == "prefill":
                # Anywhere in it: a piece takes a tenth of a second, a long prompt a few.
                time.sleep(self._dice.expovariate(8.0))
            elif strike == "decode":
                time.sleep(self._dice.uniform(0.0, 0.05))
            pid = self._engine_in("up")
        if pid is None:
            return False
        self._kill(pid, strike, of_engine=strike in ("start", "load"))
        return True

    def _kill(self, pid: int, strike: str, *, of_engine: bool) -> None:
        struck = [(ask, strike if of_engine else ask.phase) for ask in self._watch.open() if ask.sent_s is not None]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._by_phase[strike] += 1
            for ask, phase in struck:
                ask.struck.append(phase)

    def _kill_spare(self) -> None:
        spare = self._service.state().spare_engine_pid
        if spare is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(spare, signal.SIGKILL)

    def _engine_in(self, phase: str, beside: int | None = None) -> int | None:
        state = self._service.state()
        pid = state.health.engine_pid
        return pid if state.engine_phase == phase and pid != beside else None

    def _someone_in(self, phase: str) -> Ask | None:
        asks = [ask for ask in self._watch.open() if ask.sent_s is not None and ask.phase == phase]
        if phase == "prefill":
            asks = [ask for ask in asks if ask.request.kind == "long"] or asks
        return self._dice.choice(asks) if asks else None

    def _wait_for(self, find: Callable[[], _T | None]) -> _T | None:
        until_s = time.monotonic() + self._patience_s
        while not self._over.is_set() and time.monotonic() < until_s:
            if (found := find()) is not None:
                return found
            time.sleep(POLL_S)
        return None

    # --- what came of it ---

    def _result(self, asked: Sequence[tuple[Ask, Answer]], wall_s: float) -> KillsResult:
        verdicts = [self._verdict(ask, answer) for ask, answer in asked]
        total = Counter(verdicts)
        phases: dict[str, Counter[str]] = {}
        kinds: dict[str, Counter[str]] = {}
        shown: list[str] = []
        for (ask, answer), verdict in zip(asked, verdicts, strict=True):
            kinds.setdefault(ask.request.kind, Counter())[verdict] += 1
            for phase in {*ask.struck}:
                phases.setdefault(phase, Counter())[verdict] += 1
            if verdict != "right" and len(shown) < SHOWN:
                shown.append(self._shown(ask, answer, verdict))
        return KillsResult(
            requests=len(asked),
            kills=sum(self._by_phase.values()),
            left_out=self._left_out,
            right=total["right"],
            errors=total["errors"],
            wrong=total["wrong"],
            recovered=sum(answer.recoveries > 0 for _, answer in asked),
            recomputed_tokens=sum(answer.recomputed_tokens for _, answer in asked),
            wall_s=wall_s,
            phases=tuple(
                PhaseCount(
                    phase=phase,
                    kills=self._by_phase[phase],
                    requests=counts.total(),
                    right=counts["right"],
                    errors=counts["errors"],
                    wrong=counts["wrong"],
                )
                for phase, counts in sorted(phases.items())
            ),
            kinds={kind: dict(counts) for kind, counts in sorted(kinds.items())},
            shown=tuple(shown),
        )

    def _verdict(self, ask: Ask, answer: Answer) -> str:
        if answer.same(self._expected[key_of(ask.request)]):
            return "right"
        return "errors" if answer.error else "wrong"

    def _shown(self, ask: Ask, answer: Answer, verdict: str) -> str:
        expected = self._expected[key_of(ask.request)]
        body = msgspec.json.encode(ask.request.body).decode()
        said = answer.error or answer.broken or repr(answer.text)
        return (
            f"{verdict}: {ask.request.kind}, struck in {ask.struck}: {said} ({answer.new_tokens} tokens, "
            f"{answer.recoveries} engines lost, {answer.recomputed_tokens} recomputed); undisturbed "
            f"{expected.text!r} ({expected.new_tokens} tokens); request {body[:300]} ... {body[-200:]}"
        )
