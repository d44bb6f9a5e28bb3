"""What the service sees, in the terms of a model's strategy loop. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from magnitude.board.snapshot import ClockPolicy
from magnitude.engine.protocol import StepGroup, StepKind
from magnitude.engine.session_spec import SessionSpec
from magnitude.feedback.records import Outcome, TaskRecord, outcome_of
from magnitude.policy.situation import Part
from magnitude.policy.terms import LoadSeen, RunsSeen, TaskSeen
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.open_tasks import OpenTask

# A verification takes as long as its drafts are many, and moving a window is no run of a graph: neither says which
# session is quick.
_PARTS: Mapping[StepKind, Part] = {
    "decode": "decode",
    "prefill": "prefill",
    "encode": "encode",
    "tensors": "encode",
}

# Outcomes that tell of how a task was run. One that its client gave up, or that was wrong itself, does not.
_OUTCOMES: Mapping[Outcome, bool] = {"ok": False, "timed_out": True, "killed": True, "out_of_memory": True}
# … and what was refused, only where the reason was that there was no room.
_NO_ROOM = frozenset({"queue_full"})


def runs_seen(
    groups: Iterable[StepGroup], own: Mapping[str, tuple[SessionSpec, int]]
) -> Iterator[tuple[str, RunsSeen]]:
    """By model what its runs took. `own` has each model's own session and the piece of a prompt in force; runs of
    others are left out."""
    for group in groups:
        part, known = _PARTS.get(group.kind), own.get(group.model)
        if part is None or known is None or group.runs <= 0:
            continue
        session, chunk = known
        yield (
            group.model,
            RunsSeen(
                part=part,
                session=group.session or session,
                rows=group.rows,
                tokens=_mean_tokens(group),
                runs=group.runs,
                total_s=group.total_s,
                chunk=chunk if part == "prefill" else 0,
            ),
        )


def _mean_tokens(group: StepGroup) -> int:
    """New positions of a sequence in one run; where they were not counted, as the shape says (rounded up)."""
    return round(group.positions / (group.runs * max(1, group.rows))) or group.tokens


def task_seen(task: TaskRecord, strategy_id: str) -> TaskSeen | None:
    """What a task that is over says of the strategy that ran it; None: nothing."""
    outcome = outcome_of(task)
    if outcome == "refused" and task.code in _NO_ROOM:
        failed = True
    elif outcome in _OUTCOMES:
        failed = _OUTCOMES[outcome]
    else:
        return None
    return TaskSeen(
        strategy_id=strategy_id,
        run_s=task.prefill_s + task.decode_s,
        units=max(0, task.prompt_tokens - task.cached_tokens) + task.new_tokens,
        failed=failed,
    )


def load_seen(tasks: Iterable[OpenTask]) -> dict[str, LoadSeen]:
    """What is open, by model; models that nothing is open for are left out."""
    counts: dict[str, list[int]] = {}
    for task in tasks:
        decoding, entering, waiting = counts.setdefault(task.model, [0, 0, 0])
        if not task.in_engine:
            waiting += 1
        elif isinstance(task, OpenGeneration) and task.emitted:
            decoding += 1
        else:
            entering += 1
        counts[task.model] = [decoding, entering, waiting]
    return {model: LoadSeen(*count) for model, count in counts.items()}


def clock_share(
    clocks: Sequence[ClockPolicy],
    cpus: Sequence[int],
    *,
    working_khz: Mapping[str, int | None],
    asked_khz: Mapping[str, int | None],
) -> float:
    """What limits leave of the highest clock of `cpus`, on average; 1 where nothing is told.

    `asked_khz` are the limits that we have set, which may be those of rest; `working_khz` those that we set while
    something runs. A limit that is read back lower than what was asked is somebody else's, and holds as well.
    """
    shares = []
    for clock in clocks:
        members = len(set(clock.cpus) & set(cpus))
        if not members or not clock.max_khz:
            continue
        limits = [clock.max_khz]
        ours, working = asked_khz.get(clock.name), working_khz.get(clock.name)
        if working is not None:
            limits.append(working)
        if clock.cap_khz is not None and (ours is None or clock.cap_khz < ours):
            limits.append(clock.cap_khz)
        shares += [min(limits) / clock.max_khz] * members
    return sum(shares) / len(shares) if shares else 1.0
