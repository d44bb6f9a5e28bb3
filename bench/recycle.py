"""What a client sees of an engine that is lost or replaced in the middle of its answer: how long the stream stands
still, where that time goes, and whether the text is the one that an undisturbed run gives.

The client notes when it kills; the service notes when it knows of the loss, when the next engine has said hello, when
that has its model and when it has computed something. Both read CLOCK_MONOTONIC, so that the times fit together.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import httpx
import msgspec

from bench.service_process import ServiceFailed, ServiceProcess
from bench.spread import Spread
from bench.stream_client import Stream, Streamed
from bench.streams import PROMPTS
from magnitude.supervise.recovery import Recovery

NEW_TOKENS = 64
# Tokens of each stream before the engine is lost: in mid-decode, with as many to come.
BEFORE = 20
SEED = 7
GOAL_MEDIAN_S = 0.5
GOAL_WORST_S = 1.5
# A spare is started 2 s after its engine is up; a slow card needs about 10 s for it.
SPARE_TIMEOUT_S = 60.0
POLL_S = 0.02

# How the engine is lost: killed while a spare is ready, killed while there is one that has its models
# (`engine.spare: hot`) or none, replaced on request, stopped (so that its silence is what gives it away).
WAYS = ("killed", "killed beside a hot spare", "killed without a spare", "replaced on request", "hangs")
HOT = WAYS[1]
# Those that the goal is about.
WITH_GOAL = WAYS[:2]


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """One loss. `stall_s`: how long the client that waited longest got nothing; `usual_s`: its time between two
    pieces otherwise. The parts: `detect_s` from the kill until the service knew, then the service's own, and
    `deliver_s`, which is left until the text was with the client. `later_s`: the longest time between two pieces
    afterwards, when other models and the next spare are loaded."""

    streams: int
    sampled: int
    spare: bool
    stall_s: float
    usual_s: float
    detect_s: float
    start_s: float
    load_s: float
    first_step_s: float
    deliver_s: float
    later_s: float
    equal: bool


class RecycleResult(msgspec.Struct, frozen=True, kw_only=True):
    """All losses of one way with one number of streams. `different`: answers whose text was another one."""

    way: str
    streams: int
    rounds: int
    stall_s: Spread
    usual_s: Spread
    detect_s: Spread
    start_s: Spread
    load_s: Spread
    first_step_s: Spread
    deliver_s: Spread
    later_s: Spread
    different: int
    stalls: tuple[Stall, ...]

    @classmethod
    def of(cls, way: str, stalls: Sequence[Stall]) -> RecycleResult:
        spreads = {
            name: Spread.of([getattr(stall, name) for stall in stalls])
            for name in (
                "stall_s",
                "usual_s",
                "detect_s",
                "start_s",
                "load_s",
                "first_step_s",
                "deliver_s",
                "later_s",
            )
        }
        return cls(
            way=way,
            streams=stalls[0].streams,
            rounds=len(stalls),
            different=sum(not stall.equal for stall in stalls),
            stalls=tuple(stalls),
            **spreads,
        )

    @property
    def missed(self) -> list[str]:
        """What was not reached, in words."""
        found = []
        if self.different:
            found.append(f"{self.way}, {self.streams} streams: {self.different} answers had another text")
        if self.way in WITH_GOAL:
            for word, value_s, goal_s in (
                ("median", self.stall_s.median, GOAL_MEDIAN_S),
                ("worst", self.stall_s.high, GOAL_WORST_S),
            ):
                if value_s > goal_s:
                    found.append(f"{self.way}, {self.streams} streams: {word} {value_s:.2f} s, goal {goal_s:g}")
        return found


class Losses:
    """Loses the engine of `service` again and again. `eos`: ids that would end an answer early."""

    def __init__(self, service: ServiceProcess, model: str, eos: Sequence[int]) -> None:
        self._service = service
        self._model = model
        self._endless = {str(token): -100 for token in eos}
        self._undisturbed: dict[bytes, Streamed] = {}
        self._random = random.Random(SEED)

    def measure(
        self, way: str, streams: int, rounds: int, progress: Callable[[str], None] = lambda _: None
    ) -> RecycleResult:
        """Raises `ServiceFailed`."""
        stalls = []
        for number in range(rounds):
            progress(f"{way}, {streams} streams, {number + 1} of {rounds}")
            stalls.append(self._lose(way, [self._body(number + stream) for stream in range(streams)]))
        return RecycleResult.of(way, stalls)

    def _body(self, number: int) -> dict[str, Any]:
        """Every other one is sampled."""
        sampling = {"temperature": 0.8, "seed": SEED + number % 2} if number % 2 else {"temperature": 0}
        prompt = PROMPTS[number % len(PROMPTS)]
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": NEW_TOKENS,
            "logit_bias": self._endless,
            **sampling,
        }

    def _lose(self, way: str, bodies: Sequence[dict[str, Any]]) -> Stall:
        expected = [self._reference(body) for body in bodies]
        self._wait_for_spare()
        if way == WAYS[2]:
            self._without_spare()
        engine = self._service.state().health.engine_pid
        if engine is None:
            raise ServiceFailed("there is no engine to be lost")
        streams = [Stream(self._service.port, body) for body in bodies]
        for stream in streams:
            stream.wait_first()
        while any(stream.reads < BEFORE and not stream.over for stream in streams):
            time.sleep(0.002)
        # At any moment of a step, not always just behind a token.
        time.sleep(self._random.uniform(0.0, 0.03))
        lost_s = time.monotonic()
        match way:
            case "hangs":
                os.kill(engine, signal.SIGSTOP)
            case "replaced on request":
                self._recycle()
            case _:
                os.kill(engine, signal.SIGKILL)
        answers = [stream.result() for stream in streams]
        recovery = self._service.state().engine_last_recovery
        return stall_of(bodies, answers, expected, lost_s, recovery)

    def _reference(self, body: Mapping[str, Any]) -> Streamed:
        key = json.dumps(body, sort_keys=True).encode()
        if key not in self._undisturbed:
            self._undisturbed[key] = Stream(self._service.port, dict(body)).result()
        return self._undisturbed[key]

    def _wait_for_spare(self) -> None:
        deadline = time.monotonic() + SPARE_TIMEOUT_S
        while not (self._service.state().spare_engine_ready and self._service.status_of("/readyz") == 200):
            if time.monotonic() > deadline:
                raise ServiceFailed("there is no spare engine; is there memory for one?")
            time.sleep(POLL_S)

    def _without_spare(self) -> None:
        spare = self._service.state().spare_engine_pid
        if spare is not None:
            os.kill(spare, signal.SIGKILL)
        while self._service.state().spare_engine_ready:
            time.sleep(POLL_S)

    def _recycle(self) -> None:
        transport = httpx.HTTPTransport(uds=str(self._service.home / "run/magnitude.sock"))
        with httpx.Client(transport=transport, base_url="http://magnitude", timeout=60) as client:
            client.post("/v1/magnitude/recycle", json={"reason": "measured"}).raise_for_status()


def stall_of(
    bodies: Sequence[Mapping[str, Any]],
    answers: Sequence[Streamed],
    expected: Sequence[Streamed],
    lost_s: float,
    recovery: Recovery | None,
) -> Stall:
    """What the client that waited longest saw. Raises `ServiceFailed` when the service tells nothing of a loss after
    `lost_s`, or nothing came after it."""
    if recovery is None or recovery.lost_s < lost_s or recovery.first_step_s is None:
        raise ServiceFailed(f"the service does not tell of the loss: {recovery}")
    if recovery.start_s is None or recovery.load_s is None:
        raise ServiceFailed(f"the service does not tell what replacing its engine took: {recovery}")
    # At the moment at which the service knew of the loss there was no engine: all that it had said was delivered.
    gaps = [
        next(
            ((after - before, after) for before, after in pairwise(answer.arrivals_s) if after > recovery.lost_s),
            None,
        )
        for answer in answers
    ]
    found = [gap for gap in gaps if gap is not None]
    if len(found) < len(answers):
        raise ServiceFailed("an answer was over before its engine was lost")
    stall_s, first_after_s = max(found)
    later = [
        after - before
        for answer in answers
        for before, after in pairwise(answer.arrivals_s)
        if before >= first_after_s
    ]
    usual = [after - before for answer in answers for before, after in pairwise(answer.arrivals_s) if after < lost_s]
    known_s = recovery.lost_s + recovery.total_s
    return Stall(
        streams=len(answers),
        sampled=sum(body["temperature"] > 0 for body in bodies),
        spare=recovery.spare,
        stall_s=stall_s,
        usual_s=Spread.of(usual).median,
        detect_s=recovery.lost_s - lost_s,
        start_s=recovery.start_s,
        load_s=recovery.load_s,
        first_step_s=recovery.first_step_s,
        deliver_s=first_after_s - known_s,
        later_s=max(later, default=0.0),
        equal=all(
            (answer.text, answer.tokens) == (other.text, other.tokens)
            for answer, other in zip(answers, expected, strict=True)
        ),
    )
