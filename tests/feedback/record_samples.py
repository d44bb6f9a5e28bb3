"""Rows for tests of what is kept."""

from __future__ import annotations

from typing import Any

from magnitude.board.boot import EARLIEST_S, Clocks, Stamp
from magnitude.engine.session_spec import SessionSpec
from magnitude.feedback.circumstances import Circumstances, PlanFacts
from magnitude.feedback.decisions import DecisionRow
from magnitude.feedback.records import TaskRecord, TaskRow
from magnitude.policy.situation import Situation
from magnitude.policy.strategy import Strategy

NOW_S = EARLIEST_S + 100 * 86400.0
PLAN = PlanFacts(model="m", model_hash="ab" * 32, graph_file="model.onnx", threads=4, max_batch=4, kv_type="int8")


STRATEGY = Strategy(prefill=SessionSpec(threads=4), decode=SessionSpec(threads=2, cpus=(2, 3)), max_batch=4)
HOT = Situation(tokens=33, rows=2, queue=1, cores=2, heat="hot", clock_share=0.7, memory="short", prefix="part")


def stamp(wall_s: float = NOW_S, at_s: float = 100.0, boot_id: str = "boot-1") -> Stamp:
    return Stamp(wall_s=wall_s, at_s=at_s, boot_id=boot_id)


def row(number: int = 0, *, when: Stamp | None = None, plan: PlanFacts | None = PLAN, **task: Any) -> TaskRow:
    fields: dict[str, Any] = {"kind": "generate", "model": "m", "outcome": "ok", **task}
    return TaskRow(
        stamp=when or stamp(),
        task=TaskRecord(prompt_tokens=number, queue_s=0.25, prefill_s=1.5, decode_s=2.5, batch=1.5, **fields),
        circumstances=Circumstances(queue_depth=3, running=2, memory_headroom_bytes=1 << 40, plan=plan),
    )


def decision(number: int = 0, *, when: Stamp | None = None, **fields: Any) -> DecisionRow:
    values: dict[str, Any] = {"source": "strategy", "kind": "switch", "model": "m", "part": "decode", **fields}
    return DecisionRow(stamp=when or stamp(), reason=str(number), **values)


def numbers(rows: list[TaskRow]) -> list[int]:
    """The numbers that `row` was called with."""
    return [kept.task.prompt_tokens for kept in rows]


class MovingClocks(Clocks):
    """Clocks that a test sets."""

    def __init__(self, wall_s: float = NOW_S, at_s: float = 100.0, boot_id: str = "boot-1") -> None:
        super().__init__(boot_id, monotonic=lambda: self.at_s, wall=lambda: self.wall_s)
        self.wall_s = wall_s
        self.at_s = at_s

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.at_s += seconds
