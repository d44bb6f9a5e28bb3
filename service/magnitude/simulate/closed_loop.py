"""Agents, a simulated board, and what decides about heat and about the engine's sessions, in one loop: hours of it in
seconds.

Nothing here knows the real clock. The controller sees snapshots as a sampler would give them, and its effects are
carried out as the service would: clock limits on the board, pauses and threads in the engine, a limit on what runs at
once in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import policy_name
from magnitude.board.sim.board import SimulatedBoard
from magnitude.board.workload import IDLE, Pool, Progress, Work
from magnitude.governor.thermal_terms import (
    PHASES,
    Announce,
    Effect,
    LoadSight,
    Phase,
    SetCaps,
    SetConcurrency,
    SetDuty,
    SetThreads,
)
from magnitude.simulate.agents import Agents
from magnitude.simulate.controllers import STOCK_THREADS, Controller
from magnitude.simulate.engine import SimulatedEngine, in_words
from magnitude.simulate.engine_runs import EngineRuns
from magnitude.simulate.load import Load
from magnitude.simulate.trace import Latencies, Rows, Summary, Trace, most_within, percentile, ratio

# Shortest step of time: the rest of a step of two that end nearly at once.
LEAST_STEP_S = 1e-3
# Decisions kept of a run, the first ones: enough to see how it settled.
DECISIONS = 1000


def simulate(
    profile: BoardProfile,
    load: Load,
    controller: Controller,
    *,
    hours: float,
    ambient_c: float = 25.0,
    seed: int | None = None,
    follow_threads: bool = True,
    threads: int | None = None,
    engine: SimulatedEngine | None = None,
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """Run `load` on the board of `profile` for so many hours of its time.

    `seed` replaces the load's own. `follow_threads` False: the engine has one thread pool of fixed size, whatever the
    controller asks for. `threads`: as many as the engine is started with (None: as llama.cpp). `engine`: sessions are
    chosen by its strategy loop instead, to which the controller's wish for threads is a wish. `progress` is told the
    share that is done, about every simulated minute.
    """
    if seed is not None:
        load = msgspec.structs.replace(load, seed=seed)
    run = _Run(
        profile,
        load,
        controller,
        ambient_c=ambient_c,
        follow_threads=follow_threads,
        threads=threads or STOCK_THREADS,
        engine=engine,
    )
    end_s = hours * 3600.0
    told_s = 0.0
    while run.board.now_s < end_s - 1e-6:
        run.step(end_s)
        if progress is not None and run.board.now_s - told_s >= 60.0:
            told_s = run.board.now_s
            progress(told_s / end_s)
    return run.trace()


class _Run:
    """One run under way."""

    def __init__(
        self,
        profile: BoardProfile,
        load: Load,
        controller: Controller,
        *,
        ambient_c: float,
        follow_threads: bool,
        threads: int,
        engine: SimulatedEngine | None,
    ) -> None:
        self.board = SimulatedBoard(profile, ambient_c=ambient_c)
        self._profile = profile
        self._load = load
        self._controller = controller
        self._follow_threads = follow_threads
        self._agents = Agents(load)
        cpus = sum(len(cluster.cpus) for cluster in profile.clusters)
        self._planned = min(threads, cpus)
        self._pools: dict[Phase, Pool] = dict.fromkeys(PHASES, Pool(self._planned))
        self._duties: dict[Phase, float] = dict.fromkeys(PHASES, 1.0)
        self._phase: Phase = "idle"
        # The controller is asked at each full second, as often as the service asks its own, and when a phase begins.
        self._ask_s = 0.0
        self._spent: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._since_look: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._recorder = _Recorder(self.board, profile)
        self._caps_s: list[float] = []
        self._decisions: list[tuple[float, str]] = []
        self._engine = EngineRuns(engine, self.board, self._agents, load.model.cost) if engine is not None else None
        if self._engine is not None:
            self._engine.begin()

    def step(self, end_s: float) -> None:
        """Up to the next event, at most to the controller's next turn."""
        board, agents = self.board, self._agents
        agents.wake(board.now_s)
        # Errands of the engine are work to whoever governs clocks, as they are to the board.
        phase = (self._engine.errand_phase if self._engine is not None else None) or agents.phase()
        if phase != self._phase or board.now_s >= self._ask_s - 1e-9:
            self._phase = phase
            self._control()
        engine = self._engine
        work = agents.work(self._pools, self._duties) if engine is None else engine.work(self._duties)
        serves = engine is None or engine.serves
        served = board.load_now(work) if serves else IDLE
        event_s = agents.next_event_s(board.now_s, served, work.duty)
        if engine is not None:
            event_s = min(event_s, engine.until_change_s(work))
        until_s = min(self._recorder.second_ends_s, end_s)
        step_s = max(LEAST_STEP_S, min(event_s, until_s - board.now_s))
        done = board.advance(step_s, work)
        if not serves:
            done = msgspec.structs.replace(done, prefill_tokens=0.0, decode_tokens=0.0, inter_token_s=None)
        if engine is not None:
            engine.passed(step_s, work, done)
        agents.advance(board.now_s, done)
        if engine is not None:
            engine.answered()
        self._spent[work.phase if serves else "idle"] += step_s
        self._since_look[work.phase] += step_s
        self._recorder.add(step_s, work, done, serves=serves)

    def trace(self) -> Trace:
        recorder, hours = self._recorder, self.board.now_s / 3600.0
        decoding_s = self._spent["decode"] + self._spent["mixed"]
        p50, p95 = (recorder.latencies.percentile(share) for share in (0.5, 0.95))
        summary = Summary(
            board=self._profile.name,
            load=self._load.name,
            governor=self._controller.name,
            hours=hours,
            ambient_c=self.board.ambient_c,
            tokens=recorder.tokens,
            prompt_tokens=recorder.prompt_tokens,
            tokens_s=recorder.tokens / self.board.now_s,
            decode_tokens_s=ratio(recorder.tokens, decoding_s),
            busy_tokens_s=ratio(recorder.tokens, recorder.busy_s),
            board_j_per_token=ratio(recorder.board_j, recorder.tokens),
            chip_j_per_token=ratio(recorder.chip_j, recorder.tokens),
            inter_token_p50_s=p50,
            inter_token_p95_s=p95,
            inter_token_p95_over_p50=ratio(p95, p50),
            ttft_p50_s=percentile(self._agents.ttft_s, 0.5),
            ttft_p95_s=percentile(self._agents.ttft_s, 0.95),
            peak_c=recorder.peak_c,
            mean_c=recorder.temp_s / self.board.now_s,
            soft_s=sum(temp_c >= self._profile.trips.soft_c for temp_c in recorder.rows.temp_c),
            hard_s=sum(temp_c >= self._profile.trips.hard_c for temp_c in recorder.rows.temp_c),
            mean_busy_khz=ratio(recorder.busy_khz_s, recorder.busy_s),
            cap_changes=len(self._caps_s),
            most_cap_changes_a_minute=most_within(self._caps_s, 60.0),
            phase_shares={phase: spent / self.board.now_s for phase, spent in self._spent.items()},
            strategy=self._engine.engine.strategy.in_words if self._engine is not None else "",
            switches=self._engine.engine.switches if self._engine is not None else 0,
            errands_s=self._engine.errands_s if self._engine is not None else 0.0,
        )
        decisions = list(self._decisions)
        if self._engine is not None:
            decisions += [(at_s, in_words(decided)) for at_s, decided in self._engine.engine.decided]
        return Trace(summary=summary, rows=recorder.rows, decisions=tuple(sorted(decisions)))

    def _control(self) -> None:
        now_s = self.board.now_s
        effects = self._controller.step(self.board.snapshot(), self._sight(), now_s)
        self._ask_s = self._recorder.second_ends_s
        self._since_look = dict.fromkeys(PHASES, 0.0)
        self._carry_out(effects, now_s)
        if self._engine is not None:
            self._engine.see()

    def _sight(self) -> LoadSight:
        seconds = sum(self._since_look.values())
        prefill, decode, mixed = (
            self._since_look[phase] / seconds if seconds else 0.0 for phase in ("prefill", "decode", "mixed")
        )
        return LoadSight(
            phase=self._phase,
            prefill_share=prefill,
            decode_share=decode,
            mixed_share=mixed,
            running=self._agents.running,
            waiting=self._agents.waiting,
            rows=self._agents.writing,
        )

    def _carry_out(self, effects: Sequence[Effect], now_s: float) -> None:
        for effect in effects:
            match effect:
                case SetCaps(caps_khz, reason):
                    for policy, khz in caps_khz.items():
                        self.board.set_cap(policy, khz)
                    self._caps_s.append(now_s)
                    self._note(now_s, f"clocks {caps_khz}: {reason}")
                case SetDuty(share, reason):
                    self._duties = dict.fromkeys(PHASES, share)
                    self._note(now_s, f"computes {share:.0%} of the time: {reason}")
                case SetThreads(prefill, decode, reason):
                    if self._engine is not None:
                        self._engine.wish(prefill, decode)
                    elif self._follow_threads:
                        self._pools["prefill"] = self._pools["mixed"] = Pool(prefill or self._planned)
                        self._pools["decode"] = Pool(decode or self._planned)
                    self._note(now_s, f"threads {prefill} and {decode}: {reason}")
                case SetConcurrency(limit, reason):
                    self._agents.limit = limit
                    self._note(now_s, f"at most {limit} at once: {reason}")
                case Announce(state, before, reason):
                    if self._engine is not None:
                        self._engine.heat(state)
                    self._note(now_s, f"{before} to {state}: {reason}")
                case _:
                    # A smaller variant: the load has one model.
                    self._note(now_s, f"smaller variant {effect.on}: {effect.reason}")

    def _note(self, now_s: float, text: str) -> None:
        if len(self._decisions) < DECISIONS:
            self._decisions.append((now_s, text))


class _Recorder:
    """Sums over the run, and a row for each second of it."""

    def __init__(self, board: SimulatedBoard, profile: BoardProfile) -> None:
        fastest = max(range(len(profile.clusters)), key=lambda index: profile.clusters[index].capacity)
        self.latencies = Latencies()
        self.rows = Rows()
        self.tokens = self.prompt_tokens = self.board_j = self.chip_j = 0.0
        self.temp_s = self.busy_s = self.busy_khz_s = 0.0
        self.peak_c = board.temp_c
        self.second_ends_s = 1.0
        self._board = board
        self._policy = policy_name(profile, fastest)
        # Of the second that is under way.
        self._peak_c = board.temp_c
        self._tokens = self._board_j = self._chip_j = self._gap_s = 0.0

    def add(self, step_s: float, work: Work, done: Progress, *, serves: bool) -> None:
        """A step that has just ended. `serves` False: it was the engine's own errand."""
        board = self._board
        self.tokens += done.decode_tokens
        self.prompt_tokens += done.prefill_tokens
        self.board_j += done.energy_j
        self.chip_j += done.chip_energy_j
        self.temp_s += board.temp_c * step_s
        self.peak_c = max(self.peak_c, done.peak_c)
        if done.inter_token_s is not None:
            self.latencies.add(done.inter_token_s, done.decode_tokens)
            self._gap_s = max(self._gap_s, done.inter_token_s)
        if work.phase != "idle" and serves:
            self.busy_s += step_s
            self.busy_khz_s += board.effective_khz[self._policy] * step_s
        self._peak_c = max(self._peak_c, done.peak_c)
        self._tokens += done.decode_tokens
        self._board_j += done.energy_j
        self._chip_j += done.chip_energy_j
        if board.now_s >= self.second_ends_s - 1e-9:
            self._end_second()

    def _end_second(self) -> None:
        rows, board = self.rows, self._board
        rows.temp_c.append(self._peak_c)
        rows.asked_khz.append(board.asked_khz[self._policy])
        rows.effective_khz.append(board.effective_khz[self._policy])
        rows.tokens_s.append(self._tokens)
        rows.inter_token_s.append(self._gap_s)
        rows.chip_w.append(self._chip_j)
        rows.board_w.append(self._board_j)
        self.second_ends_s += 1.0
        self._peak_c = board.temp_c
        self._tokens = self._board_j = self._chip_j = self._gap_s = 0.0
