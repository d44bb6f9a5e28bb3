"""What was decided when, and what ran meanwhile: for people, plots and pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from magnitude.board.boot import EARLIEST_S, Stamp, age_s
from magnitude.feedback.decisions import DecisionRow
from magnitude.feedback.history import History
from magnitude.feedback.records import TaskRow
from magnitude.policy.learned import parts_of
from magnitude.policy.situation import PARTS, Part
from magnitude.policy.strategy import Strategy

# Decisions that put another choice of their part in force.
_CHANGES = frozenset({"start", "situation", "switch", "revert", "pinned"})
# Several parts may change at once: all of it is told before any of it is in force.
TOGETHER_S = 0.1


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of `ago_s` ago, as `feedback.decisions.DecisionRow` explains it. `wall_s` is None while the board's
    clock was not set; `strategy` is the id of the one in force at that moment."""

    ago_s: float
    wall_s: float | None
    source: str
    kind: str
    model: str
    part: str
    key: str
    from_id: str
    to_id: str
    what: str
    reason: str
    delay_s: float
    gain: float
    repeats: int
    strategy: str


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """From `begin_ago_s` to `end_ago_s` the choice of that name was in force."""

    begin_ago_s: float
    end_ago_s: float
    choice: str


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """How one part of a model's work was run: `spans` follow each other, the oldest first."""

    model: str
    part: Part
    spans: list[Span]


class TaskPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A task that ended `ago_s` ago."""

    ago_s: float
    model: str
    kind: str
    outcome: str
    queue_s: float
    run_s: float
    temperature_c: float | None
    throttled: bool | None
    strategy: str


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The last `since_s`, everything the oldest first. `cut_off`: there was more than was asked for, and the oldest
    are left out."""

    since_s: float
    decisions: list[Moment]
    lanes: list[Lane]
    tasks: list[TaskPoint]
    cut_off: bool = False


def timeline_of(history: History, since_s: float) -> Timeline:
    """Of the last `since_s`, for which `history` was asked."""
    decisions, tasks = history.decisions[::-1], history.tasks[::-1]
    return Timeline(
        since_s=since_s,
        decisions=[_moment(row, history.now) for row in decisions],
        lanes=_lanes(decisions, tasks, history.now),
        tasks=[_point(row, history.now) for row in tasks],
        cut_off=history.cut_off,
    )


def choices_of(strategy: Strategy) -> dict[Part, str]:
    """What is in force for each part, by the names that decisions give them."""
    return {part: choice.choice_id for part, choice in parts_of(strategy).items()}


def _lanes(decisions: Sequence[DecisionRow], tasks: Sequence[TaskRow], now: Stamp) -> list[Lane]:
    changes: dict[tuple[str, Part], list[tuple[float, str]]] = {key: [] for key in _parts_seen(decisions, tasks)}
    events: list[DecisionRow | TaskRow] = [*tasks, *(row for row in decisions if row.source == "strategy")]
    for row in sorted(events, key=lambda row: -_ago_s(row.stamp, now)):
        ago_s = _ago_s(row.stamp, now)
        if isinstance(row, DecisionRow):
            model, began_ago_s, told = row.model, ago_s, choices_of(row.strategy) if row.strategy is not None else {}
            decided = _decided(row)
        else:
            strategy = row.circumstances.strategy
            model, told, decided = row.task.model, choices_of(strategy) if strategy is not None else {}, {}
            began_ago_s = ago_s + row.task.prefill_s + row.task.decode_s
        for part in PARTS:
            found = changes.get((model, part))
            if found is None:
                continue
            if part in decided:
                found.append((ago_s, decided[part]))
            elif part in told and _is_news(found, began_ago_s, told[part]):
                found.append((ago_s, told[part]))
    lanes = [Lane(model=model, part=part, spans=_spans(found)) for (model, part), found in changes.items() if found]
    return sorted(lanes, key=lambda lane: (lane.model, PARTS.index(lane.part)))


def _is_news(found: Sequence[tuple[float, str]], began_ago_s: float, choice: str) -> bool:
    """Whether what was in force for a task, or while something else was decided, changes a lane. Not if it began
    before the lane's last change; and not by the size of a prompt's pieces, which goes by each prompt's length."""
    if not found:
        return True
    changed_ago_s, present = found[-1]
    return began_ago_s < changed_ago_s - TOGETHER_S and _session(choice) != _session(present)


def _session(choice: str) -> str:
    """A choice's name without the pieces of prompts, which `Choice.choice_id` puts last."""
    return choice.partition(", pieces of ")[0]


def _decided(row: DecisionRow) -> dict[Part, str]:
    """What a decision puts in force."""
    if row.kind == "start" and row.strategy is not None:
        return choices_of(row.strategy)
    return {row.part: row.to_id} if row.part and row.kind in _CHANGES and row.to_id else {}


def _parts_seen(decisions: Iterable[DecisionRow], tasks: Iterable[TaskRow]) -> set[tuple[str, Part]]:
    """Parts that mean something for a model: an encoder decodes nothing."""
    seen: set[tuple[str, Part]] = {(row.model, row.part) for row in decisions if row.part}
    for row in tasks:
        if row.circumstances.strategy is not None:
            parts: tuple[Part, ...] = ("decode", "prefill") if row.task.kind == "generate" else ("encode",)
            seen.update((row.task.model, part) for part in parts)
    return seen


def _spans(changes: Sequence[tuple[float, str]]) -> list[Span]:
    spans: list[Span] = []
    begin_ago_s, choice = changes[0]
    for ago_s, other in changes[1:]:
        if other != choice:
            spans.append(Span(begin_ago_s=begin_ago_s, end_ago_s=ago_s, choice=choice))
            begin_ago_s, choice = ago_s, other
    return [*spans, Span(begin_ago_s=begin_ago_s, end_ago_s=0.0, choice=choice)]


def _moment(row: DecisionRow, now: Stamp) -> Moment:
    return Moment(
        ago_s=_ago_s(row.stamp, now),
        wall_s=row.stamp.wall_s if row.stamp.wall_s >= EARLIEST_S else None,
        source=row.source,
        kind=row.kind,
        model=row.model,
        part=row.part,
        key=row.key,
        from_id=row.from_id,
        to_id=row.to_id,
        what=row.what,
        reason=row.reason,
        delay_s=row.delay_s,
        gain=row.gain,
        repeats=row.repeats,
        strategy=row.strategy.strategy_id if row.strategy is not None else "",
    )


def _point(row: TaskRow, now: Stamp) -> TaskPoint:
    task, met = row.task, row.circumstances
    return TaskPoint(
        ago_s=_ago_s(row.stamp, now),
        model=task.model,
        kind=task.kind,
        outcome=task.outcome,
        queue_s=task.queue_s,
        run_s=task.prefill_s + task.decode_s,
        temperature_c=met.temperature_c,
        throttled=met.throttled,
        strategy=task.strategy or (met.strategy.strategy_id if met.strategy is not None else ""),
    )


def _ago_s(stamp: Stamp, now: Stamp) -> float:
    """Only what can be dated is in a `History`."""
    return round(age_s(stamp, now) or 0.0, 3)
