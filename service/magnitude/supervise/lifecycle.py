"""The life of the engine as a pure state machine: when to start it, when to give it up, when to try again.

The supervisor (`supervisor.py`) feeds it events and carries out its effects.

    down ──▶ starting ──▶ loading ──▶ up
      ▲          │            │        │
      └─ back-off ◀───────────┴────────┘        failed: nothing to gain by trying again

An engine that did something for somebody before it was lost is replaced at once: its requests go on. One that did
nothing counts as a failure; failures in a row wait longer and longer, and when their budget is spent the service
leaves, for systemd to decide.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

import msgspec

from magnitude.supervise.loss import EngineLoss, LossCause

# Starting Python and ONNX Runtime takes 0.3 s from a warm page cache; an SD card that reads 20 MB/s needs about
# 10 s for the same 150 MB. Ten times the warm figure would be too tight there, a minute is not.
HELLO_DEADLINE_S = 60.0
# A start that was given up for taking too long shows a board slower than the deadlines assume, or one with other
# work; with the same deadline the next one would end at the same place, and so for ever. Three times as long the
# second time, nine times the third: a model is left out after three engines that were lost while they loaded it. The
# same holds for a model that is loaded beside those that serve.
SLOWER_FACTOR = 3.0
SLOWER_AT_MOST = 2
# Steps beside a load may be those of other requests, so they hold off its end so many deadlines at most. Golden sets
# took one and a half of them under full emulation, the slowest processor known.
BESIDE_AT_MOST = 10.0
# The engine's heartbeat comes every 0.5 s from a thread of its own; ten missed in a row are no scheduling jitter.
SILENCE_DEADLINE_S = 5.0
# How often the deadlines are looked at: as often as the engine beats.
TICK_S = 0.5
# A tick that comes later than this says more about this process than about the engine. Well below the deadline for
# silence, well above what a loaded board delays a timer.
LATE_TICK_S = 2.0
# The first retry is made at once, the second after a time that a person does not notice; from there on doubling to
# half a minute: a board must not spend its heat on a crash loop, and must still recover by itself within a minute of
# the cause going away.
BACKOFF_FIRST_S = 0.25
BACKOFF_MAX_S = 30.0
# An engine that held for a minute was healthy: its next death starts the back-off from the beginning.
STABLE_AFTER_S = 60.0
# Failures in a row until requests are refused instead of kept waiting. A crash or two, each over within a second or
# so, clients need not notice; the fifth start waits 2 s and each one after it twice as long.
STRUGGLING_AFTER = 5
# Failures in a row until the service leaves. Their waits add up to a minute and a half: what is missing that long
# (memory, a file system) does not come back by starting engines; a service that starts anew, with the longer waits
# that systemd has for it, gets the rest of the board cleaned up as well.
RESTART_BUDGET = 10
# Losses within so long are told with the health: a quarter of an hour shows a board in trouble, and is over before a
# person who looks after one crash at night finds the service degraded in the morning.
RECENT_S = 900.0
# Of which so many make it degraded: one crash, replaced within a second, is no state to alarm anybody about.
MANY_LOSSES = 3
# As many as anybody wants counted.
LOSSES_KEPT = 1000
# SIGKILL ends a process within milliseconds, unless the kernel holds it (a card that does not answer). It will not
# run its own code again, so that after a while the next one may take its place.
REAP_PATIENCE_S = 10.0


class Phase(StrEnum):
    DOWN = "down"
    STARTING = "starting"
    LOADING = "loading"
    UP = "up"
    BACKING_OFF = "backing_off"
    FAILED = "failed"
    STOPPED = "stopped"


# --- events ---


class Begin(msgspec.Struct, frozen=True):
    pass


class SaidHello(msgspec.Struct, frozen=True):
    compatible: bool
    detail: str = ""


class ModelsReady(msgspec.Struct, frozen=True):
    """Every model that can be loaded is loaded."""


class LoadFailed(msgspec.Struct, frozen=True):
    """The model without which the service is pointless could not be loaded."""

    reason: str
    permanent: bool


class Beat(msgspec.Struct, frozen=True):
    """A heartbeat: `steps` graph runs are done, `busy_s` is the age of the one under way (by the engine's clock).
    `paused`: none is, because the engine was told to compute for a share of the time only."""

    steps: int
    busy_s: float
    open_requests: int = 0
    paused: bool = False


class Exited(msgspec.Struct, frozen=True):
    """The process has ended and is reaped. `productive`: it did something for a request since it was up."""

    reason: str
    cause: LossCause = "crash"
    productive: bool = False


class Recycle(msgspec.Struct, frozen=True):
    """Replace the engine on purpose. Open requests go on with the next one."""

    reason: str


class ModelLoads(msgspec.Struct, frozen=True):
    """A model is being loaded into an engine that serves, which need do no steps meanwhile; `deadline_s` after the
    last one it hangs. What a model computes to prove itself takes a slow board longer than reading it."""

    deadline_s: float


class ModelLoadEnded(msgspec.Struct, frozen=True):
    """It is loaded, or it could not be."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class Stop(msgspec.Struct, frozen=True):
    pass


Event = (
    Begin | SaidHello | ModelsReady | LoadFailed | Beat | Exited | Recycle | ModelLoads | ModelLoadEnded | Tick | Stop
)


# --- effects ---


class Spawn(msgspec.Struct, frozen=True):
    pass


class LoadModels(msgspec.Struct, frozen=True):
    pass


class Kill(msgspec.Struct, frozen=True):
    """End the process now (SIGKILL) and reap it; `Exited` must follow. `planned`: nothing is wrong with it."""

    reason: str
    planned: bool = False


class Terminate(msgspec.Struct, frozen=True):
    """Ask the process to leave, kill it if it does not."""


class Abandon(msgspec.Struct, frozen=True):
    """The process that was killed does not go away: forget it. Its exit means nothing any more."""


class GiveUp(msgspec.Struct, frozen=True):
    """The restart budget is spent: the service should leave."""

    reason: str


class Announce(msgspec.Struct, frozen=True):
    """The phase changed; `reason` says why, for the log and for `/readyz`."""

    phase: Phase
    reason: str


Effect = Spawn | LoadModels | Kill | Terminate | Abandon | GiveUp | Announce


class EngineLifecycle:
    """One engine's life. `load_deadline_s` bounds the loading of the start's models, counted from the last graph run,
    because models that are loaded prove themselves by computing; `step_deadline_s` one graph run; `backoff_max_s` the
    wait before a start; `restart_budget` the failures in a row.

    `loss` says how the last engine was lost, `accident` how the last one was that nobody had asked to be replaced,
    `restarts` how many were started after the first.
    """

    def __init__(
        self,
        *,
        load_deadline_s: float,
        step_deadline_s: float,
        backoff_max_s: float = BACKOFF_MAX_S,
        restart_budget: int = RESTART_BUDGET,
    ) -> None:
        self._load_deadline_s = load_deadline_s
        self._step_deadline_s = step_deadline_s
        self._backoff_max_s = backoff_max_s
        self._restart_budget = restart_budget
        self.phase = Phase.DOWN
        self.reason = "not started"
        self.restarts = 0
        self.loss: EngineLoss | None = None
        self.accident: EngineLoss | None = None
        self._accidents_s: deque[float] = deque(maxlen=LOSSES_KEPT)
        self._since_s = 0.0
        self._last_beat_s = 0.0
        self._last_tick_s = 0.0
        self._steps = 0
        self._progress_s = 0.0
        self._load_until_s: float | None = None
        self._beside_deadline_s = 0.0
        self._beside_at_most_s = 0.0
        self._slow_loads = 0
        self._computed_s = 0.0
        self._slow_starts = 0
        self._retry_at_s = 0.0
        self._failures_in_row = 0
        self._killing: LossCause | None = None
        self._killed_s = 0.0

    def apply(self, event: Event, now_s: float) -> list[Effect]:
        if self.phase in {Phase.STOPPED, Phase.FAILED} and not isinstance(event, Stop):
            return []
        match event:
            case Begin():
                return self._spawn(now_s)
            case SaidHello(compatible, detail):
                self._last_beat_s = now_s
                if self.phase is not Phase.STARTING:
                    return []
                if not compatible:
                    return [*self._enter(Phase.FAILED, detail, now_s), Kill(detail)]
                return [*self._enter(Phase.LOADING, "loading models", now_s), LoadModels()]
            case ModelsReady():
                if self.phase is not Phase.LOADING:
                    return []
                self._slow_starts = 0
                return self._enter(Phase.UP, "serving", now_s)
            case LoadFailed(reason, permanent):
                if self.phase is not Phase.LOADING:
                    return []
                if permanent:
                    return [*self._enter(Phase.FAILED, reason, now_s), Terminate()]
                return self._kill(reason, "start", now_s)
            case Beat():
                return self._beat(event, now_s)
            case Exited():
                return self._exited(event, now_s)
            case Recycle(reason):
                # One that is not up yet is fresh enough.
                return self._kill(reason, "recycled", now_s) if self.phase is Phase.UP else []
            case ModelLoads(deadline_s):
                self._beside_deadline_s = _slowed(deadline_s, self._slow_loads)
                self._load_until_s = now_s + self._beside_deadline_s
                self._beside_at_most_s = now_s + self._beside_deadline_s * BESIDE_AT_MOST
                return []
            case ModelLoadEnded():
                self._load_until_s = None
                self._slow_loads = 0
                self._progress_s = now_s
                return []
            case Tick():
                return self._tick(now_s)
            case Stop():
                was_running = self.phase in {Phase.STARTING, Phase.LOADING, Phase.UP}
                effects = self._enter(Phase.STOPPED, "stopped on request", now_s)
                return [*effects, Terminate()] if was_running else effects

    @property
    def struggling(self) -> bool:
        """Not up, and it has failed so often that nobody should be kept waiting for it."""
        return self.phase is not Phase.UP and self._failures_in_row >= STRUGGLING_AFTER

    @property
    def killing(self) -> bool:
        """The engine has been given up and its exit is awaited."""
        return self._killing is not None

    def recent_losses(self, now_s: float) -> int:
        """Engines lost unasked within the last `RECENT_S`."""
        return sum(1 for at_s in self._accidents_s if now_s - at_s < RECENT_S)

    @property
    def patience_s(self) -> float | None:
        """How long nothing may change in this phase before the engine is given up; None: nothing is waited for."""
        match self.phase:
            case Phase.DOWN | Phase.STARTING:
                return _slowed(HELLO_DEADLINE_S, self._slow_starts)
            case Phase.LOADING:
                return self._load_limit_s
            case Phase.UP:
                return self._step_deadline_s
            case Phase.BACKING_OFF:
                return self._backoff_max_s
            case _:
                return None

    @property
    def load_until_s(self) -> float | None:
        """By when the model that is being loaded beside those that serve must be there; None: none is."""
        return self._load_until_s

    def next_check_s(self, now_s: float) -> float:
        """Seconds until `Tick` is worth sending again."""
        if self.phase is Phase.BACKING_OFF:
            return max(0.0, self._retry_at_s - now_s)
        return TICK_S

    def _beat(self, beat: Beat, now_s: float) -> list[Effect]:
        self._last_beat_s = now_s
        if beat.steps != self._steps:
            self._computed_s = now_s
            if self._load_until_s is not None:
                self._load_until_s = min(now_s + self._beside_deadline_s, self._beside_at_most_s)
        # A pause ends by itself (`engine.pace.MAX_PAUSE_S`), so it can hide no hang for longer than that.
        if beat.steps != self._steps or not beat.open_requests or beat.paused:
            self._steps = beat.steps
            self._progress_s = now_s
        if self.phase is not Phase.UP:
            return []
        deadline_s = self._step_deadline_s
        if beat.busy_s > deadline_s:
            reason = f"one graph run takes {beat.busy_s:.0f} s, over its deadline of {deadline_s:.0f} s"
            return self._kill(reason, "hang", now_s)
        if self._load_until_s is not None:
            if now_s <= self._load_until_s:
                return []
            effects = self._kill("loading a model takes too long", "hang", now_s)
            self._slow_loads += bool(effects)
            return effects
        # Not only a graph run can hang: whatever holds requests without a step is no progress either.
        if now_s - self._progress_s > deadline_s:
            idle_s = now_s - self._progress_s
            reason = f"{beat.open_requests} requests are open and no step was done for {idle_s:.0f} s"
            return self._kill(reason, "hang", now_s)
        return []

    def _spawn(self, now_s: float) -> list[Effect]:
        self._last_beat_s = self._last_tick_s = self._progress_s = now_s
        self._killing = None
        self._load_until_s = None
        return [*self._enter(Phase.STARTING, "starting", now_s), Spawn()]

    def _tick(self, now_s: float) -> list[Effect]:
        late_s = now_s - self._last_tick_s - self.next_check_s(self._last_tick_s)
        self._last_tick_s = now_s
        if late_s > LATE_TICK_S:
            # It was this process that did not run (stopped, frozen, a blocked disk): what the engine sent meanwhile
            # has not been read, and the engine may have been frozen, too.
            self._last_beat_s = self._progress_s = now_s
            if self._load_until_s is not None:
                self._load_until_s += late_s
                self._beside_at_most_s += late_s
            self._killed_s = now_s
        if self._killing is not None and now_s - self._killed_s > REAP_PATIENCE_S:
            return [Abandon(), *self._exited(Exited(self.reason), now_s)]
        phase_age_s = now_s - self._since_s
        silent_s = now_s - self._last_beat_s
        match self.phase:
            case Phase.STARTING if phase_age_s > _slowed(HELLO_DEADLINE_S, self._slow_starts):
                return self._too_slow(f"no word from the engine for {phase_age_s:.0f} s after its start", now_s)
            case Phase.LOADING if now_s - max(self._since_s, self._computed_s) > self._load_limit_s:
                return self._too_slow(f"loading takes longer than {self._load_limit_s:.0f} s", now_s)
            case Phase.LOADING | Phase.UP if silent_s > SILENCE_DEADLINE_S:
                return self._kill(f"the engine has been silent for {silent_s:.1f} s", "hang", now_s)
            case Phase.BACKING_OFF if now_s >= self._retry_at_s:
                return self._start_again(now_s)
            case _:
                return []

    @property
    def _load_limit_s(self) -> float:
        return _slowed(self._load_deadline_s, self._slow_starts)

    def _too_slow(self, reason: str, now_s: float) -> list[Effect]:
        effects = self._kill(reason, "start", now_s)
        # The same engine may be looked at many times until it is gone.
        self._slow_starts += bool(effects)
        return effects

    def _start_again(self, now_s: float) -> list[Effect]:
        self.restarts += 1
        return self._spawn(now_s)

    def _exited(self, exit_: Exited, now_s: float) -> list[Effect]:
        if self.phase in {Phase.DOWN, Phase.BACKING_OFF}:
            return []
        cause = self._killing or (exit_.cause if self.phase is Phase.UP else "start")
        self.loss = EngineLoss(self.reason if self._killing else exit_.reason, cause)
        if exit_.productive or (self.phase is Phase.UP and now_s - self._since_s >= STABLE_AFTER_S):
            self._failures_in_row = 0
        if cause != "recycled":
            self.accident = self.loss
            self._accidents_s.append(now_s)
        if cause == "recycled" or exit_.productive:
            return [*self._enter(Phase.BACKING_OFF, self.loss.reason, now_s), *self._start_again(now_s)]
        return self._failed_once(self.loss.reason, now_s)

    def _failed_once(self, reason: str, now_s: float) -> list[Effect]:
        """It is gone and was of no use to anybody."""
        earlier = self._failures_in_row
        self._failures_in_row += 1
        if earlier >= self._restart_budget:
            spent = f"{earlier + 1} engines in a row were lost before they did anything; the last one: {reason}"
            return [*self._enter(Phase.FAILED, spent, now_s), GiveUp(spent)]
        if not earlier:
            return [*self._enter(Phase.BACKING_OFF, reason, now_s), *self._start_again(now_s)]
        delay_s = min(BACKOFF_FIRST_S * 2 ** (earlier - 1), self._backoff_max_s)
        self._retry_at_s = now_s + delay_s
        return self._enter(Phase.BACKING_OFF, f"{reason}; next start in {delay_s:.2g} s", now_s)

    def _kill(self, reason: str, cause: LossCause, now_s: float) -> list[Effect]:
        if self._killing is not None:
            return []
        self._killing = cause
        self._killed_s = now_s
        self.reason = reason
        return [Kill(reason, planned=cause == "recycled")]

    def _enter(self, phase: Phase, reason: str, now_s: float) -> list[Effect]:
        self.phase = phase
        self.reason = reason
        self._since_s = now_s
        return [Announce(phase, reason)]


def _slowed(deadline_s: float, too_slow: int) -> float:
    """A deadline, as long as `too_slow` tries before have shown it to be needed."""
    return deadline_s * SLOWER_FACTOR ** min(too_slow, SLOWER_AT_MOST)
