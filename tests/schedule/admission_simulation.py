"""An engine in simulated time behind admission: each compute slot works off one request at a constant speed."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from admission_bench import Slots

from magnitude.schedule.admission import Admission
from magnitude.schedule.events import (
    Dropped,
    Effect,
    Ended,
    EngineUp,
    Event,
    Expire,
    Interrupt,
    Lost,
    Pause,
    Paused,
    Reject,
    Start,
    Submit,
    Tick,
)

# Seconds until the engine answers a request to pause or to stop: one decode step.
STEP_S = 0.05


@dataclass
class Job:
    """What became of one request. `left_s` is the work that remains."""

    submit: Submit
    left_s: float
    arrived_s: float
    waited_s: float = 0.0
    runs: list[float] = field(default_factory=list)  # when it started or went on
    ended_s: float | None = None
    rejected: bool = False
    since_s: float | None = None  # when its present run began


class Simulation:
    """`at(time, call)` plans something; `run()` goes on until nothing is planned and nobody runs or waits."""

    def __init__(self, *, slots: int, kv_slots: int = 10_000, max_queue: int = 10_000, aging_s: float = 10.0) -> None:
        self.places = Slots(kv_slots)
        self.admission = Admission(max_queue=max_queue, places=self.places, aging_s=aging_s)
        self.now_s = 0.0
        self.jobs: dict[int, Job] = {}
        self.busy_s = 0.0  # compute slots in use, over time
        self.ended: Callable[[Job], None] = lambda job: None
        self._ids = itertools.count(1)
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.apply(EngineUp({"m": slots}))

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._plan, (time_s, next(self._order), call))

    def submit(self, work_s: float, **fields: object) -> int:
        request_id = next(self._ids)
        event = Submit(request_id, "generation", "m", **fields)  # type: ignore[arg-type]
        self.jobs[request_id] = Job(event, work_s, self.now_s)
        self.apply(event)
        return request_id

    def run(self, until_s: float = float("inf")) -> None:
        while True:
            wake_s = self.admission.next_wake_s(self.now_s)
            assert wake_s is None or wake_s > self.now_s, "a tick that is due has been given"
            plan_s = self._plan[0][0] if self._plan else float("inf")
            next_s = min(plan_s, wake_s if wake_s is not None else float("inf"))
            if next_s >= until_s or next_s == float("inf"):
                return
            self._pass(next_s)
            if plan_s <= next_s:
                heapq.heappop(self._plan)[2]()
            else:
                self.apply(Tick())

    def apply(self, event: Event) -> None:
        for effect in self.admission.apply(event, self.now_s):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        job = self.jobs[effect.request_id]
        match effect:
            case Start(request_id, _, waited_s):
                assert job.since_s is None and job.ended_s is None
                job.since_s, job.waited_s = self.now_s, waited_s
                job.runs.append(self.now_s)
                run = len(job.runs)
                self.at(self.now_s + job.left_s, lambda: self._finish(request_id, run))
            case Pause(request_id):
                self.at(self.now_s + STEP_S, lambda: self._pause(request_id))
            case Reject():
                job.rejected = True
                job.ended_s = self.now_s
            case Interrupt() | Dropped() | Lost() | Expire():
                raise AssertionError(f"{effect} in a simulation where nobody withdraws and nothing dies")

    def _finish(self, request_id: int, run: int) -> None:
        job = self.jobs[request_id]
        if job.since_s is None or run != len(job.runs):
            return  # it was paused meanwhile
        job.ended_s, job.since_s = self.now_s, None
        self.places.free(request_id)
        tokens = job.submit.max_new_tokens
        self.apply(Ended(request_id, new_tokens=tokens))
        self.ended(job)

    def _pause(self, request_id: int) -> None:
        job = self.jobs[request_id]
        if job.since_s is not None:
            job.left_s -= self.now_s - job.since_s
            job.since_s = None
            self.apply(Paused(request_id))

    def _pass(self, time_s: float) -> None:
        self.busy_s += (time_s - self.now_s) * self.admission.running
        self.now_s = time_s
