"""Figures of a busy schedule, for whoever shows them."""

from __future__ import annotations

from magnitude.schedule.figures import Capacity, KvFigures, ModelFigures, ScheduleFigures, SegmentFigures

BUSY = ScheduleFigures(
    models={
        "tiny-chat": ModelFigures(
            kv=KvFigures(
                hits=120,
                misses={"differs": 9, "evicted": 5, "cold": 0},
                reused_tokens=41_200,
                copied_tokens=1_200,
                restored_tokens=800,
                evictions=6,
                resident_tokens=9_000,
                resident_bytes=90_000_000,
                budget_bytes=400_000_000,
                running_slots=3,
                idle_slots=7,
                free_slots=5,
                cleaning_slots=1,
                saved_copies=4,
            ),
            capacity=Capacity(compute_slots=4, conversations=16.0, limit=11.2, alive=9),
            segments=(
                SegmentFigures(task="chat", compute_s=1.25, compute_samples=31, wait_s=3.75, wait_samples=28),
                SegmentFigures(task="tool", compute_s=0.5, compute_samples=2, wait_s=0.0, wait_samples=0),
            ),
            running=3,
            waiting={"interactive": 1, "normal": 0, "background": 2},
            paused=1,
            reserved=2,
            preemptions=8,
            saved_bytes=12_000_000,
        )
    },
    runs_running=1,
    runs_waiting=3,
)
