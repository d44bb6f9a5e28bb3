"""What the schedule says of itself, for `/metrics`, `/v1/magnitude/state` and `magnitude ps`."""

from __future__ import annotations

import msgspec

from magnitude.schedule.segments import Capacity, SegmentFigures
from magnitude.schedule.slot_terms import KvFigures


class ModelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One model that generates: its KV slots and prefixes, its compute slots and who waits for them, and the
    conversations that they carry. Counts run since the start of the service."""

    kv: KvFigures
    capacity: Capacity
    segments: tuple[SegmentFigures, ...]
    running: int
    waiting: dict[str, int]  # by priority, paused ones included
    paused: int
    reserved: int  # requests that compute slots are held for
    preemptions: int  # times that a running generation was paused for another one
    saved_bytes: int  # on disk


class ScheduleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`models` by name, those that generate; the others only run and wait together."""

    models: dict[str, ModelFigures] = {}
    runs_running: int = 0
    runs_waiting: int = 0
