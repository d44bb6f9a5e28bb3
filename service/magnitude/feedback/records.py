"""What is kept of each task, and the running picture that is made of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.feedback.run_series import RunSeries
from magnitude.feedback.running import RunningFigures

Outcome = Literal["ok", "cancelled", "failed", "rejected"]


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
        self.queue = RunningFigures()
        self.run = RunningFigures()
        self.prefill_rate = RunningFigures()
        self.decode_rate = RunningFigures()
        self.cached = RunningFigures()
        self.accepted = RunningFigures()
        self.batch = RunningFigures()
        self.count = self.failed = self.cancelled = 0


class Feedback:
    """Collects task records into running figures by (kind, model)."""

    def __init__(self) -> None:
        self.runs = RunSeries()
        self.generated_tokens = 0  # by all answers together, as they come
        self._series: dict[tuple[str, str], _Series] = {}

    def record(self, task: TaskRecord) -> None:
        series = self._series.setdefault((task.kind, task.model), _Series())
        series.count += 1
        series.failed += task.outcome in {"failed", "rejected"}
        series.cancelled += task.outcome == "cancelled"
        if task.outcome != "ok":
            return
        series.queue.add(task.queue_s)
        series.run.add(task.prefill_s + task.decode_s)
        computed_tokens = task.prompt_tokens - task.cached_tokens
        if task.prefill_s > 0 and computed_tokens > 0:
            series.prefill_rate.add(computed_tokens / task.prefill_s)
        if task.prompt_tokens:
            series.cached.add(task.cached_tokens / task.prompt_tokens)
        if task.drafted_tokens:
            series.accepted.add(task.accepted_tokens / task.drafted_tokens)
        if task.batch:
            series.batch.add(task.batch)
        # The first token is the prefill's; a rate needs the steps after it.
        if task.decode_s > 0 and task.new_tokens > 1:
            series.decode_rate.add((task.new_tokens - 1) / task.decode_s)

    def figures(self) -> dict[str, TaskFigures]:
        """Figures by "kind model"."""
        return {
            f"{kind} {model}": TaskFigures(
                count=series.count,
                failed=series.failed,
                cancelled=series.cancelled,
                queue_p95_s=series.queue.quantile(0.95),
                prefill_tokens_per_s=series.prefill_rate.mean,
                decode_tokens_per_s=series.decode_rate.mean,
                run_p50_s=series.run.quantile(0.5),
                run_p95_s=series.run.quantile(0.95),
                queue_p50_s=series.queue.quantile(0.5),
                queue_p99_s=series.queue.quantile(0.99),
                run_p99_s=series.run.quantile(0.99),
                cached_share=series.cached.mean,
                accepted_share=series.accepted.mean,
                batch=series.batch.mean,
            )
            for (kind, model), series in self._series.items()
        }
