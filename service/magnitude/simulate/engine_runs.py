"""Runs of a simulated engine, out of the work that a simulated board gets through: which cores the next one takes,
when the next one may take others, and what the strategy loop is told of those that are over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from magnitude.board.sim.board import SimulatedBoard
from magnitude.board.workload import ModelCost, Pool, Progress, Work
from magnitude.engine.session_spec import SessionSpec
from magnitude.governor.thermal_terms import HeatState, Phase
from magnitude.policy.situation import Heat, Part, heat_of
from magnitude.policy.terms import BoardSeen, LoadSeen
from magnitude.simulate.agents import Agents
from magnitude.simulate.engine import Errand, SimulatedEngine

# Sums of floats: a run of which less than this is missing is over.
NEXT_TO_NOTHING = 1e-6


class EngineRuns:
    """Between one engine and one board. `cost` is the model's with so many tokens before."""

    def __init__(
        self, engine: SimulatedEngine, board: SimulatedBoard, agents: Agents, cost: Callable[[int], ModelCost]
    ) -> None:
        self.engine = engine
        self.errands_s = 0.0
        self._board = board
        self._agents = agents
        self._cost = cost
        self._open: dict[Part, _Open] = {"decode": _Open(), "prefill": _Open()}
        self._errand: Errand | None = None
        self._errand_left = 0.0
        self._piece = 0.0
        self._wishes: tuple[int | None, int | None] = (None, None)
        self._heat: Heat = "cool"
        self._clock_share = 1.0
        clusters = sorted(board.profile.clusters, key=lambda cluster: -cluster.capacity)
        self._cores = tuple(cpu for cluster in clusters for cpu in cluster.cpus)
        self._big = sum(len(each.cpus) for each in clusters if each.capacity == clusters[0].capacity)

    def begin(self) -> None:
        self.engine.begin(self._seen(), self._board.now_s)

    def wish(self, prefill: int | None, decode: int | None) -> None:
        """Threads that the governor asks for; None: no wish."""
        self._wishes = prefill, decode

    def heat(self, state: HeatState) -> None:
        self._heat = heat_of(state)

    def see(self) -> None:
        """Tell the loop of the board, as the service does about once a second."""
        self.engine.see_board(self._seen(), self._board.now_s)

    @property
    def serves(self) -> bool:
        """Whether the work is the agents'."""
        return self._errand is None

    @property
    def errand_phase(self) -> Phase | None:
        """What the engine is at for itself."""
        if self._errand is None:
            return None
        return "decode" if self._errand.part == "decode" else "prefill"

    def work(self, duties: Mapping[Phase, float]) -> Work:
        """What the board has to do now: the agents' work, or the engine's own."""
        agents, engine, now_s = self._agents, self.engine, self._board.now_s
        engine.see_load(LoadSeen(decoding=agents.writing, entering=agents.reading, waiting=agents.waiting), now_s)
        if self._errand is None:
            # A run that has begun is brought to its end, whoever comes.
            self._errand, self._errand_left = engine.errand(now_s), 1.0
        if self._errand is not None:
            return self._errand_work(self._errand)
        prefill, decode = (_pool(engine.session(part)) for part in ("prefill", "decode"))
        pools: dict[Phase, Pool] = {"idle": prefill, "prefill": prefill, "decode": decode, "mixed": prefill}
        return agents.work(pools, duties, decode)

    def until_change_s(self, work: Work) -> float:
        """How long all runs go on as they do now; endless when nothing is known to change."""
        times = [self.engine.next_event_s(self._board.now_s)]
        if self._errand is not None:
            times.append(self._errand_left * self._run_s(work, self._errand.tokens))
        elif work.phase != "idle":
            decode_s, prefill_s = self._alone_s(work)
            if work.phase == "prefill":
                self._begin_piece()
                times.append((self._piece - self._open["prefill"].tokens) * prefill_s / work.duty)
            else:
                cycle_s = decode_s + (work.piece_tokens * prefill_s if work.phase == "mixed" else 0.0)
                parts: tuple[Part, ...] = ("decode", "prefill") if work.phase == "mixed" else ("decode",)
                for part in parts:
                    runs = self.engine.runs_until_change(part)
                    if runs is not None:
                        times.append(max(0.0, runs - self._open[part].runs) * cycle_s / work.duty)
        return min(times)

    def passed(self, step_s: float, work: Work, done: Progress) -> None:
        """A step is over."""
        now_s, errand = self._board.now_s, self._errand
        if errand is not None:
            run_s = self._run_s(work, errand.tokens)
            self.errands_s += step_s
            self._errand_left -= step_s / run_s
            if self._errand_left <= NEXT_TO_NOTHING:
                self._errand = None
                self.engine.errand_done(errand, run_s, now_s)
        elif work.phase != "idle":
            self._count(step_s * work.duty, work, done)
        self.engine.advance(now_s)

    def answered(self) -> None:
        """Tell of the turns that are over."""
        for turn in self._agents.take_answered():
            self.engine.task_over(turn.run_s, turn.tokens, self._board.now_s)

    # --- inside ---

    def _count(self, busy_s: float, work: Work, done: Progress) -> None:
        now_s = self._board.now_s
        reading_s = busy_s if work.phase == "prefill" else 0.0
        if work.phase == "mixed":
            decode_s, prefill_s = self._alone_s(work)
            piece_s = work.piece_tokens * prefill_s
            reading_s = busy_s * piece_s / (decode_s + piece_s)
        if done.decode_tokens:
            runs = done.decode_tokens / work.rows
            self._under_way("decode").add(runs, runs, busy_s - reading_s)
            self._tell("decode", work.rows, 1, now_s)
        if done.prefill_tokens:
            tokens = work.piece_tokens if work.phase == "mixed" else self._piece
            self._under_way("prefill").add(done.prefill_tokens / tokens, done.prefill_tokens, reading_s)
            self._tell("prefill", 1, max(1, round(tokens)), now_s)

    def _under_way(self, part: Part) -> _Open:
        """What has begun by another session than takes the next run is forgotten: it ends unseen."""
        session = self.engine.session(part)
        if self._open[part].session != session:
            self._open[part] = _Open(session=session)
        return self._open[part]

    def _tell(self, part: Part, rows: int, tokens: int, now_s: float) -> None:
        """Tell of the runs that are over by now."""
        under_way = self._open[part]
        runs, run_s = under_way.take_whole()
        if runs and under_way.session is not None:
            if part == "prefill":
                self._piece = 0.0
            session = under_way.session
            self.engine.ran(part, session, rows=rows, tokens=tokens, runs=runs, run_s=run_s, now_s=now_s)

    def _begin_piece(self) -> None:
        """A prompt enters in pieces of the strategy's chunk; its last one is what is left."""
        if not self._piece:
            self._piece = min(float(self.engine.strategy.prefill_chunk), self._agents.left_to_read)
            self._open["prefill"] = _Open(session=self.engine.session("prefill"))

    def _alone_s(self, work: Work) -> tuple[float, float]:
        """Seconds of a decode step, and of a prompt's token, each alone at the clocks of this moment."""
        board, engine = self._board, self.engine
        decode, prefill = (_pool(engine.session(part)) for part in ("decode", "prefill"))
        step = msgspec.structs.replace(work, phase="decode", threads=decode.threads, cpus=decode.cpus, answers=None)
        piece = msgspec.structs.replace(
            work, phase="prefill", threads=prefill.threads, cpus=prefill.cpus, answers=None
        )
        return board.load_now(step).inter_token_s or 0.0, 1.0 / board.load_now(piece).prefill_tokens_s

    def _errand_work(self, errand: Errand) -> Work:
        pool = _pool(errand.session)
        return Work(
            phase=self.errand_phase or "idle",
            threads=pool.threads,
            cpus=pool.cpus,
            rows=errand.rows,
            model=self._cost(128),
        )

    def _run_s(self, work: Work, tokens: int) -> float:
        load = self._board.load_now(work)
        return load.inter_token_s if load.inter_token_s is not None else tokens / load.prefill_tokens_s

    def _seen(self) -> BoardSeen:
        if not self.engine.idle:
            # Limits of rest say nothing of the work.
            self._clock_share = self._fastest_clock()
        prefill, decode = self._wishes
        return BoardSeen(
            cores=self._cores,
            usable=len(self._cores),
            big=self._big,
            heat=self._heat,
            clock_share=self._clock_share,
            prefill_threads=prefill,
            decode_threads=decode,
        )

    def _fastest_clock(self) -> float:
        """What limits that the kernel shows leave of the fastest cluster's highest clock."""
        fastest = max(self._board.snapshot().clocks, key=lambda clock: clock.max_khz or 0)
        return (fastest.cap_khz or 0) / fastest.max_khz if fastest.max_khz else 1.0


class _Open:
    """Runs of one part that are under way: how many (also parts of one), tokens of the one that is not over, and
    their seconds."""

    def __init__(self, session: SessionSpec | None = None) -> None:
        self.session = session
        self.runs = self.tokens = self.seconds = 0.0

    def add(self, runs: float, tokens: float, seconds: float) -> None:
        self.runs += runs
        self.tokens += tokens
        self.seconds += seconds

    def take_whole(self) -> tuple[int, float]:
        """Runs that are over, and the seconds of each."""
        whole = int(self.runs + NEXT_TO_NOTHING)
        if not whole:
            return 0, 0.0
        run_s = self.seconds / self.runs
        self.runs -= whole
        self.seconds = max(0.0, self.seconds - whole * run_s)
        self.tokens = 0.0
        return whole, run_s


def _pool(session: SessionSpec) -> Pool:
    return Pool(session.threads, session.cpus)
