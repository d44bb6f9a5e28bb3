"""The strategy loop of one model: what was seen goes in, what is to be done comes out. Pure.

Each part of a strategy is a contest of its own (`contest.py`), looked up by the situation (`table.py`). At most one
comparison is open (`laboratory.py`); sessions that it needs are made and proven in the background
(`session_pool.py`). Tasks that fail are counted by what they ran with (`guard.py`).
"""

from __future__ import annotations

import math

import msgspec

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.candidates import challengers, session_on
from magnitude.policy.contest import REVERTED_FOR, Contest
from magnitude.policy.guard import TaskGuard
from magnitude.policy.laboratory import Laboratory, sessions_of
from magnitude.policy.learned import Binding, Choice, Learned, Verified, parts_of
from magnitude.policy.moment import Moment
from magnitude.policy.rules import ModelFacts, Rules
from magnitude.policy.session_pool import SessionPool
from magnitude.policy.situation import Part, Situation, board_part, key_of
from magnitude.policy.strategy import Strategy
from magnitude.policy.table import Table, fits
from magnitude.policy.terms import (
    BoardSeen,
    Decided,
    Effect,
    EngineChanged,
    Event,
    LoadSeen,
    MayExperiment,
    ProbeDone,
    RunsSeen,
    SessionChecked,
    SessionFailed,
    SessionReady,
    TaskSeen,
    Tick,
    Trial,
    Use,
)
from magnitude.policy.tree import BoardFacts, ModelWork, Tree, advise, default_tree, features_of

# Strategies that are remembered by id, for tasks that end after the next switch.
MOST_REMEMBERED = 64
# Runs of an engine's first seconds touch memory and caches for the first time (a decode step of 12 ms took 99, once
# 302): they say nothing of what follows.
FIRST_RUNS_S = 3.0
# Figures that change with every run are worth saving after so many of them: some minutes of a busy engine.
SAVED_RUNS = 5000


class StrategyView(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of the loop of a model: what is in force and for how long, further sessions and their state, the
    open experiment in words, and what trials have cost of the time that was computed."""

    model: str
    strategy: Strategy
    strategy_id: str
    in_words: str
    for_s: float
    sessions: dict[str, str] = {}
    session_bytes: int = 0
    experiment: str = ""
    situations: int = 0
    switches: int = 0
    lost_s: float = 0.0
    busy_s: float = 0.0


class Optimizer:
    """`apply` every event; `wake_s` says when the next `Tick` is due (None: not before another event). `changed`
    grows when what was learned is worth saving. `ceilings` are the board's, None: not known."""

    def __init__(
        self,
        model: ModelFacts,
        rules: Rules,
        learned: Learned | None = None,
        *,
        tree: Tree | None = None,
        ceilings: BoardFacts | None = None,
    ) -> None:
        self.wake_s: float | None = None
        self._facts = model
        self._rules = rules
        self._tree = tree or default_tree(rules.bandwidth_threshold)
        self._ceilings = ceilings
        self._pool = SessionPool(model.own, rules.most_sessions)
        self._guard = TaskGuard(rules.half_life_s)
        self._left_until_s: dict[str, float] = {}  # variants that tasks failed with
        self._board = BoardSeen(cores=tuple(range(model.own.threads)), usable=model.own.threads)
        self._load = LoadSeen()
        self._idle_since_s: float | None = None
        self._now_s = -math.inf
        self._changed_before = 0
        self._up = False
        self._up_s = -math.inf
        self._first_up_s: float | None = None
        self._may = True
        self._pinned: dict[Part, Choice] = {}
        self._strategies: dict[str, Strategy] = {}
        self._keys: dict[Part, str] = {}
        self._since_s = -math.inf
        self._samples = 0
        self._checks = 0
        self._in_force = self._remember(self._strategy({}))
        self._told: tuple[Strategy, Trial | None] | None = None
        self._begin(rules, learned)

    def _begin(self, rules: Rules, learned: Learned | None) -> None:
        self._rules = rules
        self._table = Table(self._facts, rules)
        if learned is not None:
            self._samples = learned.samples
            self._table.restore(learned.entries, learned.rejected)
            self._pool.restore(learned.verified)
        self._lab = Laboratory(rules, self._table, self._pool, self._challengers)

    # --- asked ---

    @property
    def strategy(self) -> Strategy:
        """What runs now."""
        return self._in_force

    @property
    def changed(self) -> int:
        return self._changed_before + self._lab.changed + self._checks + self._samples // SAVED_RUNS

    @property
    def switches(self) -> int:
        """Learned ones, and those that were taken back."""
        return self._lab.switches

    @property
    def experimenting(self) -> bool:
        return self._lab.experiment is not None

    def strategy_for(self, at: Situation) -> Strategy:
        """For one request: sessions are what runs now, the piece of a prompt and the weights are its own."""
        whole = msgspec.structs.replace(at, tokens=self._facts.chunk)  # beside answers a time limit cuts pieces
        contest = self._table.get("prefill", key_of("prefill", whole))
        chosen = self._pinned.get("prefill") or (contest.chosen if contest is not None else None)
        chunk = chosen.chunk if chosen is not None and chosen.chunk else self._in_force.prefill_chunk
        variant = self.variant_for(at)
        if (chunk, variant) == (self._in_force.prefill_chunk, self._in_force.variant):
            return self._in_force
        by_own = self._remember(msgspec.structs.replace(self._in_force, prefill_chunk=chunk, variant=""))
        # Where the variant cannot compute (yet), the request is run by the model's own weights.
        return self._remember(msgspec.structs.replace(by_own, variant=variant)) if variant else by_own

    def variant_for(self, at: Situation) -> str:
        """The weights for a request, of those that stay within the model's tolerance: the model's own, unless heat,
        supply or memory ask for less, tasks take longer than they may, or speed comes first. The smallest one that
        tasks do not fail with."""
        if "variant" in self._pinned:
            return self._pinned["variant"].variant
        late = (
            self._rules.latency_limit_s is not None
            and self._guard.p95_s("", self._now_s) > self._rules.latency_limit_s
        )
        short = late or self._board.smaller or at.supply != "full" or at.memory == "short"
        if not self._facts.variants or (not short and self._rules.prefer == "quality"):
            return ""
        usable = (name for name in self._facts.variants if self._now_s >= self._left_until_s.get(name, -math.inf))
        return next(usable, "")

    def learned(self, binding: Binding, now_s: float, wall_s: float = 0.0) -> Learned:
        """What is to be dumped."""
        return Learned(
            binding=binding,
            entries=self._table.entries(now_s),
            rejected=self._table.rejected(now_s),
            verified=tuple(self._pool.verified.values()),
            samples=self._samples,
            saved_at_s=wall_s,
        )

    def view(self, now_s: float) -> StrategyView:
        pool, lab = self._pool, self._lab
        return StrategyView(
            model=self._facts.name,
            strategy=self._in_force,
            strategy_id=self._in_force.strategy_id,
            in_words=self._in_force.in_words,
            for_s=max(0.0, now_s - self._since_s) if math.isfinite(self._since_s) else 0.0,
            sessions={one.session_id: pool.state(one) for one in pool.present},
            session_bytes=sum(pool.bytes.values()),
            experiment=lab.experiment.in_words if lab.experiment is not None else "",
            situations=sum(1 for _ in self._table),
            switches=lab.switches,
            lost_s=lab.budget.lost_s,
            busy_s=lab.budget.busy_s,
        )

    # --- told ---

    def reload(self, rules: Rules, learned: Learned) -> None:
        """Begin anew with that dump, by these rules. Sessions that are there stay."""
        self._changed_before = self.changed + 1
        self._checks = self._samples = 0
        if not (learned.entries or learned.verified):  # a reset; else what was proven meanwhile stays so
            self._pool.begin_anew()
            self._left_until_s.clear()
        self._begin(rules, learned)

    def pin(self, choices: dict[Part, Choice]) -> None:
        """Hold these parts as they are given, until they are given otherwise; nothing is tried in them."""
        self._pinned = dict(choices)
        self._lab.experiment = None

    def apply(self, event: Event, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        self._now_s = now_s
        match event:
            case RunsSeen():
                self._runs(event, now_s, effects)
            case TaskSeen():
                self._task(event, now_s, effects)
            case BoardSeen():
                self._board = event
            case LoadSeen():
                self._load = event
            case SessionReady(session, added_bytes):
                self._pool.made(session, added_bytes)
                took = f"takes {added_bytes / 1e6:.0f} MB"
                effects.append(Decided("prepared", "", "", "", session.session_id, took))
            case SessionFailed(session, reason, lasting):
                self._pool.failed(session, reason, lasting=lasting, now_s=now_s)
                effects.append(Decided("rejected", "", "", "", session.session_id, reason))
            case SessionChecked(verdict):
                self._checked(verdict, effects)
            case ProbeDone():
                self._lab.probed(event, now_s)
            case EngineChanged(up):
                self._engine_changed(up, now_s)
            case MayExperiment(allowed):
                self._may = allowed
            case Tick():
                pass
        if self._up:
            self._decide(now_s, effects)
        else:
            self.wake_s = None
        return effects

    # --- what was seen ---

    def _runs(self, event: RunsSeen, now_s: float, effects: list[Effect]) -> None:
        if event.runs <= 0 or not event.total_s > 0 or now_s < self._up_s + FIRST_RUNS_S:
            return
        self._samples += event.runs
        prompt = event.part == "prefill"
        positions = {"decode": 1, "prefill": event.tokens, "encode": event.rows * event.tokens}.get(event.part, 1)
        cost_s = event.total_s / (event.runs * max(1, positions))
        choice = Choice(session=event.session, chunk=(event.chunk or self._in_force.prefill_chunk) if prompt else 0)
        moment = self._moment(now_s)
        key = moment.key(event.part, rows=event.rows, tokens=moment.tokens_of(event.part, event.tokens))
        contest = self._contest(event.part, key, moment)
        if contest.observe(choice, cost_s, event.runs, event.total_s, now_s):
            reason = f"now takes {cost_s * 1e3:.2f} ms: what was compared before says nothing of that"
            effects.append(Decided("retired", event.part, key, contest.chosen.choice_id, "", reason))
        self._lab.saw(contest, choice, event, cost_s, now_s)

    def _task(self, event: TaskSeen, now_s: float, effects: list[Effect]) -> None:
        strategy = self._strategies.get(event.strategy_id)
        if strategy is None:
            return
        ran = parts_of(strategy)
        if strategy.variant:
            ran = {"variant": ran["variant"]}  # sessions of the variant are its own loop's
        if not event.failed:
            self._guard.took(strategy.variant, event.run_s, now_s)
        for part, choice in ran.items():
            self._guard.add(_guarded(part, choice), failed=event.failed, now_s=now_s)
        if not event.failed:
            return
        if strategy.variant:
            self._doubt_variant(strategy.variant, now_s, effects)
        for contest in self._table:
            if contest.previous is None or contest.part in self._pinned:
                continue
            now_id, before_id = (_guarded(contest.part, one) for one in (contest.chosen, contest.previous))
            if why := self._guard.worse(now_id, before_id, now_s):
                effects.append(self._lab.revert(contest, why, now_s))

    def _doubt_variant(self, name: str, now_s: float, effects: list[Effect]) -> None:
        """Leave weights that more tasks fail with for as long as a choice that was taken back: once its failures have
        aged, nothing else would speak against them."""
        variant, own = (_guarded("variant", Choice(variant=each)) for each in (name, ""))
        if now_s >= self._left_until_s.get(name, -math.inf) and (why := self._guard.worse(variant, own, now_s)):
            self._left_until_s[name] = now_s + REVERTED_FOR * self._rules.half_life_s
            effects.append(Decided("rejected", "variant", "", "", name, why))

    def _checked(self, verdict: Verified, effects: list[Effect]) -> None:
        self._pool.checked(verdict)
        self._checks += 1
        if verdict.passed:
            return
        if verdict.session in self._pool.present:
            effects.append(self._pool.drop(verdict.session))
        self._lab.forget_session(verdict.session)
        reason = verdict.reason or "it does not compute what the model's own session does"
        effects.append(Decided("rejected", "", "", "", verdict.session.session_id, reason))

    def _engine_changed(self, up: bool, now_s: float) -> None:
        self._up, self._told, self._load = up, None, LoadSeen()
        self._pool.engine_gone()
        self._lab.engine_gone()
        if up:
            self._up_s = now_s
            self._first_up_s = now_s if self._first_up_s is None else self._first_up_s

    # --- what follows ---

    def _decide(self, now_s: float, effects: list[Effect]) -> None:
        moment = self._moment(now_s)
        wanted = self._wanted(moment, effects)
        if self._rules.on:
            allowed = self._may and self._rules.explore != "off"
            effects += self._lab.go_on(wanted, moment, allowed=allowed, fixed=self._pinned.keys())
            wanted = self._wanted(moment, effects)
        sessions = sessions_of(wanted)
        for session in sessions:
            if session != self._pool.own:
                effects += self._pool.want(session, sessions, now_s, idle=True)
        strategy = self._strategy(wanted)
        if strategy != self._in_force or not math.isfinite(self._since_s):
            if not math.isfinite(self._since_s):
                effects.append(Decided("start", "", "", "", strategy.strategy_id, strategy.in_words))
            self._in_force, self._since_s = self._remember(strategy), now_s
        trial = self._lab.trial(moment)
        if (strategy, trial) != self._told:
            self._told = (strategy, trial)
            effects.append(Use(strategy, trial))
        self.wake_s = self._next_wake_s(moment)

    def _wanted(self, moment: Moment, effects: list[Effect]) -> dict[Part, Choice]:
        """What the table says of this moment, by part."""
        wanted: dict[Part, Choice] = {}
        parts: tuple[Part, ...] = ("decode", "prefill") if self._facts.kind == "decoder" else ("encode",)
        for part in parts:
            key = moment.key_now(part)
            contest = self._contest(part, key, moment)
            if not self._usable(contest.chosen):
                self._table.forget(part, key)
                contest = self._contest(part, key, moment)
            wanted[part] = self._pinned.get(part, contest.chosen)
            before = self._keys.get(part, key)
            self._keys[part] = key
            if board_part(before) != board_part(key):
                self._tell_situation(part, before, key, wanted[part], effects)
        return wanted

    def _tell_situation(self, part: Part, before: str, key: str, choice: Choice, effects: list[Effect]) -> None:
        """A line for the timeline where another choice follows from another board (not merely another batch)."""
        old = self._table.get(part, before)
        if old is not None and old.chosen != choice:
            reason = f"the board has {board_part(key)}, before {board_part(before)}"
            effects.append(Decided("situation", part, key, old.chosen.choice_id, choice.choice_id, reason))

    def _strategy(self, wanted: dict[Part, Choice]) -> Strategy:
        """`wanted`, as far as its sessions are there."""
        facts = self._facts
        decoder = facts.kind == "decoder"
        prefill = wanted.get("prefill" if decoder else "encode")
        return Strategy(
            prefill=self._stand_in(prefill),
            decode=self._stand_in(wanted.get("decode")) if decoder else facts.own,
            kv_type=facts.kv_type,
            prefill_chunk=(prefill.chunk if prefill is not None else 0) or facts.chunk,
            max_batch=facts.max_batch if decoder else 0,
            max_draft=facts.max_draft,
            kv_budget_bytes=facts.kv_budget_bytes,
        )

    def _stand_in(self, choice: Choice | None) -> SessionSpec:
        """The chosen session, or while it is not there yet what is nearest to it: no more threads than may run."""
        own = self._facts.own
        if choice is None or choice.session is None:
            return own
        if self._pool.ready(choice.session):
            return choice.session
        there = [own, *(one for one in self._pool.present if self._pool.ready(one))]
        wanted = choice.session.threads
        return min(there, key=lambda one: (one.threads > self._board.usable, abs(one.threads - wanted)))

    # --- what the laboratory asks ---

    def _challengers(self, contest: Contest, moment: Moment) -> list[Choice]:
        board = moment.board
        wish = board.decode_threads if contest.part == "decode" else board.prefill_threads
        first = (wish, self._advised_threads(contest.part, contest.key, moment))
        counts = tuple(count for count in first if count is not None)
        return challengers(contest.part, contest.chosen, self._facts, board, first=counts)

    def _advised(self, part: Part, key: str, moment: Moment) -> Choice | None:
        """What a tree that was trained says; the shipped one only says what to try first."""
        threads = None if self._tree.name == "shipped" else self._advised_threads(part, key, moment)
        if threads is None:
            return None
        session = session_on(moment.board, threads, self._facts.own)
        return Choice(session=session, chunk=self._facts.chunk if part == "prefill" else 0)

    def _advised_threads(self, part: Part, key: str, moment: Moment) -> int | None:
        ceilings = self._ceilings
        if part == "variant" or ceilings is None:
            return None
        seen_bytes_s: float | None = None
        if part == "decode" and moment.board.bandwidth_use is not None and ceilings.read_bytes_s:
            seen_bytes_s = moment.board.bandwidth_use * ceilings.read_bytes_s
        work = ModelWork(weight_bytes=self._facts.weight_bytes)
        features = features_of(part, moment.same_work(key), ceilings, work, read_bytes_s=seen_bytes_s)
        return min(moment.board.usable, advise(self._tree, part, features).threads(ceilings))

    # --- small things ---

    def _moment(self, now_s: float) -> Moment:
        load = self._load
        if load.decoding or load.entering or load.waiting or not self._up:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        return Moment(
            now_s=now_s,
            board=self._board,
            load=load,
            chunk=self._facts.chunk,
            idle_s=now_s - self._idle_since_s if self._idle_since_s is not None else 0.0,
            cold=self._first_up_s is None or now_s < self._first_up_s + self._rules.cold_start_s,
        )

    def _contest(self, part: Part, key: str, moment: Moment) -> Contest:
        return self._table.contest(
            part,
            key,
            moment.board,
            moment.now_s,
            usable=self._usable,
            advised=lambda: self._advised(part, key, moment),
        )

    def _usable(self, choice: Choice) -> bool:
        """Whether it can be had on the board as it is now, if not at once."""
        return fits(choice, self._board) and (choice.session is None or not self._pool.lost(choice.session))

    def _next_wake_s(self, moment: Moment) -> float | None:
        if not self._rules.on:
            return None
        if moment.cold and self._first_up_s is not None:
            return self._first_up_s + self._rules.cold_start_s
        return self._lab.next_wake_s(moment)

    def _remember(self, strategy: Strategy) -> Strategy:
        self._strategies.pop(strategy.strategy_id, None)
        self._strategies[strategy.strategy_id] = strategy
        while len(self._strategies) > MOST_REMEMBERED:
            del self._strategies[next(iter(self._strategies))]
        return strategy


def _guarded(part: Part, choice: Choice) -> str:
    return f"{part} {choice.choice_id}"
