"""What the schedule says of itself, for `/metrics`, `/v1/magnitude/state` and `magnitude ps`."""

from __future__ import annotations

import msgspec


class KvFigures(msgspec.Struct, frozen=True, kw_only=True):
    """KV slots and prefixes of one model; counts since the start. `reused_tokens` were not computed again; of those,
    some were copied from another slot and some read from disk. Misses by reason."""

    hits: int
    misses: dict[str, int]
    reused_tokens: int
    copied_tokens: int
    restored_tokens: int
    evictions: int
    resident_tokens: int
    resident_bytes: int
    budget_bytes: int
    running_slots: int
    idle_slots: int
    free_slots: int
    cleaning_slots: int
    saved_copies: int


class SegmentFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Means of one kind of task: a model call computes, and a conversation waits until its next one."""

    task: str
    compute_s: float
    compute_samples: int
    wait_s: float
    wait_samples: int


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """`conversations` would keep `compute_slots` busy; up to `limit` are taken in freely; `alive` are there now."""

    compute_slots: int
    conversations: float
    limit: float
    alive: int


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
