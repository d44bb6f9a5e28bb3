"""What is kept of each task, and the running picture that is made of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

import msgspec

from magnitude.board.boot import Clocks, Stamp
from magnitude.feedback.circumstances import Circumstances
from magnitude.feedback.run_series import RunSeries
from magnitude.feedback.running import HALF_LIFE_S
from magnitude.policy.ageing import AgedAverage, AgedQuantiles, joined, mean_of
from magnitude.policy.situation import Heat, Situation
from magnitude.policy.strategy import Strategy

Outcome = Literal["ok", "cancelled", "timed_out", "killed", "out_of_memory", "refused", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FAILURES: tuple[Outcome, ...] = ("timed_out", "killed", "out_of_memory", "refused", "failed")
"""`timed_out`: not complete at its deadline; `killed`: lost with its engine; `refused`: nothing was computed, for
want of room or because it brought engines down; `failed`: everything else that went wrong."""

# Which error codes say more than that a task failed.
_BY_CODE: dict[str, Outcome] = {
    "deadline_exceeded": "timed_out",
    "engine_gone": "killed",
    "out_of_memory": "out_of_memory",
    "memory_budget_exceeded": "out_of_memory",
    "memory_pressure": "out_of_memory",
    "queue_full": "refused",
    "engine_not_ready": "refused",
    "request_quarantined": "refused",
}
# Old tasks of each series that the picture starts with: ten new tasks weigh as much as all of them.
RESTORED_TASKS = 10
# Strategies that are remembered until their tasks end: some pieces of prompts by some sessions of some models.
MAX_STRATEGIES = 256


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One task, also when it failed. `task` is what it was for, as intake or the client names it; of the prompt,
    `cached_tokens` were not computed; `batch` tasks ran together, this one included, on average."""

    kind: Literal["generate", "embed", "infer"]
    model: str
    outcome: Outcome
    code: str = ""  # error code where `outcome` is not ok
    prompt_tokens: int = 0
    new_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    task: str = ""
    cached_tokens: int = 0
    batch: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    request: str = ""  # the id that the client and the log know it by
    strategy: str = ""  # id of the strategy that it ran with; "": that in force when it ended
    peak_rss_bytes: int | None = None  # the engine's highest while it ran, as far as its heartbeats tell


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """A task's record as it is kept: when it ended, and what it met."""

    stamp: Stamp
    task: TaskRecord
    circumstances: Circumstances = Circumstances()


def outcome_of(task: TaskRecord) -> Outcome:
    """What became of a task, told apart by its error code where it only says that it failed."""
    return _BY_CODE.get(task.code, "failed") if task.outcome == "failed" else task.outcome


def situation_of(task: TaskRecord, moment: Situation) -> Situation:
    """What `task` itself was to its strategy; the board and the queue are those of the `moment` at which it ended."""
    computed_tokens = task.prompt_tokens - task.cached_tokens
    cached_share = task.cached_tokens / task.prompt_tokens if task.prompt_tokens else 0.0
    return msgspec.structs.replace(
        moment,
        task=task.kind,
        tokens=max(1, computed_tokens),
        rows=max(1, round(task.batch)),
        prefix="none" if not task.cached_tokens else "most" if cached_share > 0.5 else "part",
    )


class TaskFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The running picture of one kind of task on one model. Rates are those of what was computed: cached tokens of
    a prompt count in `cached_share` only. Shares are 0..1, recent tasks weighing more."""

    count: int
    failed: int
    cancelled: int
    queue_p95_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    run_p50_s: float
    run_p95_s: float
    queue_p50_s: float = 0.0
    queue_p99_s: float = 0.0
    run_p99_s: float = 0.0
    cached_share: float = 0.0
    accepted_share: float = 0.0  # of the tokens that were drafted
    batch: float = 0.0


class _Series:
    def __init__(self) -> None:
        # Only what is shown is computed: this is done for every task.
        self.queue_s = AgedQuantiles(HALF_LIFE_S)
        self.run_s = AgedQuantiles(HALF_LIFE_S)
        self.prefill_rate = AgedAverage(HALF_LIFE_S)
        self.decode_rate = AgedAverage(HALF_LIFE_S)
        self.cached = AgedAverage(HALF_LIFE_S)
        self.accepted = AgedAverage(HALF_LIFE_S)
        self.batch = AgedAverage(HALF_LIFE_S)
        self.count = self.failed = self.cancelled = 0

    def count_in(self, task: TaskRecord, now_s: float) -> None:
        self.count += 1
        self.failed += task.outcome in FAILURES
        self.cancelled += task.outcome == "cancelled"
        if task.outcome == "ok":
            self.add(task, now_s)

    def add(self, task: TaskRecord, now_s: float) -> None:
        """A task that went well."""
        self.queue_s.add(task.queue_s, 1.0, now_s)
        self.run_s.add(task.prefill_s + task.decode_s, 1.0, now_s)
        computed_tokens = task.prompt_tokens - task.cached_tokens
        if task.prefill_s > 0 and computed_tokens > 0:
            self.prefill_rate.add(computed_tokens / task.prefill_s, 1.0, now_s)
        if task.prompt_tokens:
            self.cached.add(task.cached_tokens / task.prompt_tokens, 1.0, now_s)
        if task.drafted_tokens:
            self.accepted.add(task.accepted_tokens / task.drafted_tokens, 1.0, now_s)
        if task.batch:
            self.batch.add(task.batch, 1.0, now_s)
        # The first token is the prefill's; a rate needs the steps after it.
        if task.decode_s > 0 and task.new_tokens > 1:
            self.decode_rate.add((task.new_tokens - 1) / task.decode_s, 1.0, now_s)


def _figures(parts: Sequence[_Series]) -> TaskFigures:
    """Of all their tasks together."""
    queue_s = joined([part.queue_s for part in parts])
    run_s = joined([part.run_s for part in parts])
    return TaskFigures(
        count=sum(part.count for part in parts),
        failed=sum(part.failed for part in parts),
        cancelled=sum(part.cancelled for part in parts),
        queue_p95_s=queue_s.quantile(0.95),
        prefill_tokens_per_s=mean_of([part.prefill_rate for part in parts]),
        decode_tokens_per_s=mean_of([part.decode_rate for part in parts]),
        run_p50_s=run_s.quantile(0.5),
        run_p95_s=run_s.quantile(0.95),
        queue_p50_s=queue_s.quantile(0.5),
        queue_p99_s=queue_s.quantile(0.99),
        run_p99_s=run_s.quantile(0.99),
        cached_share=mean_of([part.cached for part in parts]),
        accepted_share=mean_of([part.accepted for part in parts]),
        batch=mean_of([part.batch for part in parts]),
    )


class Feedback:
    """Collects task records: into running figures by (kind, model), and to where they are kept.

    `circumstances` tells what a task of that model met that ran for the last seconds, `peak_rss_bytes` the engine's
    highest memory in them, `heat` how warm the board is; `keep` takes each finished row, and must not block.
    """

    def __init__(
        self,
        *,
        circumstances: Callable[[str, float], Circumstances] | None = None,
        peak_rss_bytes: Callable[[float], int | None] = lambda ran_s: None,
        heat: Callable[[], Heat | None] = lambda: None,
        keep: Callable[[TaskRow], None] | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self._clocks = clocks or Clocks()
        self.runs = RunSeries(self._clocks.monotonic)
        self.generated_tokens = 0  # by all answers together, as they come
        # By kind, model and heat (None: not known); what holds for all heats is put together when it is asked for.
        self._series = defaultdict[tuple[str, str, Heat | None], _Series](_Series)
        self._strategies: dict[str, Strategy] = {}
        self._circumstances = circumstances
        self._peak_rss_bytes = peak_rss_bytes
        self._heat = heat
        self._keep = keep

    def known(self, strategy: Strategy) -> str:
        """A task will be run by `strategy`: the id by which its record is to name it."""
        if strategy.strategy_id not in self._strategies:
            if len(self._strategies) >= MAX_STRATEGIES:
                del self._strategies[next(iter(self._strategies))]
            self._strategies[strategy.strategy_id] = strategy
        return strategy.strategy_id

    def record(self, task: TaskRecord) -> None:
        task = msgspec.structs.replace(task, outcome=outcome_of(task))
        now_s = self._clocks.monotonic()
        self._series[task.kind, task.model, self._heat()].count_in(task, now_s)
        if self._keep is not None:
            ran_s = task.prefill_s + task.decode_s
            met = self._circumstances(task.model, ran_s) if self._circumstances is not None else Circumstances()
            if met.chosen is not None:
                met = msgspec.structs.replace(met, chosen=situation_of(task, met.chosen))
            if (ran_by := self._strategies.get(task.strategy)) is not None:
                met = msgspec.structs.replace(met, strategy=ran_by)
            task = msgspec.structs.replace(task, peak_rss_bytes=self._peak_rss_bytes(ran_s))
            self._keep(TaskRow(stamp=self._clocks.now(), task=task, circumstances=met))

    def restore(self, rows: Iterable[TaskRow], plan_of: Callable[[str], str]) -> int:
        """Start the picture with what went well before, as far as it was computed in the same way; the number of
        tasks taken. `rows`: the newest first; `plan_of`: the id of a model's plan, "" for a model that is not served.

        Series that have begun are left alone, and counters count this run only.
        """
        begun = {(kind, model) for kind, model, _ in self._series}
        taken: dict[tuple[str, str], list[TaskRecord]] = {}
        counts: Counter[tuple[str, str]] = Counter()
        for row in rows:
            key, plan = (row.task.kind, row.task.model), row.circumstances.plan
            if row.task.outcome != "ok" or plan is None or plan.plan_id != plan_of(row.task.model):
                continue
            if counts[key] < RESTORED_TASKS and key not in begun:
                counts[key] += 1
                taken.setdefault(key, []).append(row.task)
        for (kind, model), tasks in taken.items():
            for task in reversed(tasks):
                self._series[kind, model, None].add(task, self._clocks.monotonic())
        return counts.total()

    def figures(self) -> dict[str, TaskFigures]:
        """Figures by "kind model"."""
        found: dict[str, list[_Series]] = {}
        for (kind, model, _), series in self._series.items():
            found.setdefault(f"{kind} {model}", []).append(series)
        return {name: _figures(parts) for name, parts in found.items()}

    def figures_by_heat(self) -> dict[str, TaskFigures]:
        """The same by "kind model heat", where heat is known: what a cool board does says little of a hot one."""
        known = {
            f"{kind} {model} {heat}": one for (kind, model, heat), one in self._series.items() if heat is not None
        }
        return {name: _figures([series]) for name, series in sorted(known.items())}
