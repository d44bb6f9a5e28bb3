"""Admission: which request waits, which one starts, and in which KV slot. A pure state machine.

Two lanes share one bounded queue. A generation needs a KV slot of its model; an encoder or tensor run needs one
of a few places in the engine, so that a flood of embeddings cannot fill the engine's inbox. Within a lane and a
model it is first come, first served; a request that cannot start does not hold up one of another lane.

`apply(event, now_s)` returns effects and does nothing else; the dispatcher carries them out.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Lane = Literal["generation", "run"]

# Encoder and tensor runs that the engine holds at once: one that runs and one that is ready to follow, so that
# the engine never waits for the service between two of them.
RUN_PLACES = 2


class Submit(msgspec.Struct, frozen=True):
    request_id: int
    lane: Lane
    model: str


class Withdraw(msgspec.Struct, frozen=True):
    """The client is gone. Waiting requests leave at once, running ones when the engine confirms."""

    request_id: int


class Ended(msgspec.Struct, frozen=True):
    """The engine is done with the request (finished, failed or cancelled)."""

    request_id: int


class EngineUp(msgspec.Struct, frozen=True):
    """`slots`: KV slots by decoder model; other models have none."""

    slots: dict[str, int]


class EngineDown(msgspec.Struct, frozen=True):
    """Nothing runs any more; what was running is lost, what waits may go on waiting."""


class SlotCleaned(msgspec.Struct, frozen=True):
    """The slot's memory is given back; it may be used again."""

    model: str
    slot: int


Event = Submit | Withdraw | Ended | EngineUp | EngineDown | SlotCleaned


class Start(msgspec.Struct, frozen=True):
    request_id: int
    slot: int | None
    waited_s: float


class Reject(msgspec.Struct, frozen=True):
    """The queue is full; `waiting` requests are ahead."""

    request_id: int
    waiting: int


class Interrupt(msgspec.Struct, frozen=True):
    """Ask the engine to stop a running request."""

    request_id: int


class Dropped(msgspec.Struct, frozen=True):
    """A waiting request left the queue."""

    request_id: int


class Lost(msgspec.Struct, frozen=True):
    """A running request was lost with the engine."""

    request_id: int


class CleanSlot(msgspec.Struct, frozen=True):
    """Nobody wants the slot now: give its memory back, then say `SlotCleaned`."""

    model: str
    slot: int


Effect = Start | Reject | Interrupt | Dropped | Lost | CleanSlot


class _Waiting(msgspec.Struct, frozen=True):
    request_id: int
    lane: Lane
    model: str
    since_s: float


class _Running(msgspec.Struct):
    lane: Lane
    model: str
    slot: int | None
    interrupted: bool = False


class Admission:
    """The queue and the slots of one engine."""

    def __init__(self, *, max_queue: int) -> None:
        self._max_queue = max_queue
        self._waiting: list[_Waiting] = []
        self._running: dict[int, _Running] = {}
        self._free: dict[str, list[int]] = {}
        # Slots whose memory is being given back. That outlives an engine, and whoever wrote into such a slot would
        # find zeros there later.
        self._cleaning: set[tuple[str, int]] = set()
        self._up = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def free_slots(self, model: str) -> int:
        return len(self._free.get(model, ()))

    def apply(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Submit():
                return self._submit(event, now_s)
            case Withdraw(request_id):
                return self._withdraw(request_id)
            case Ended(request_id):
                return self._ended(request_id, now_s)
            case EngineUp(slots):
                self._up = True
                self._free = {
                    model: [slot for slot in range(count) if (model, slot) not in self._cleaning]
                    for model, count in slots.items()
                }
                return self._start(now_s)
            case EngineDown():
                self._up = False
                lost: list[Effect] = [Lost(request_id) for request_id in self._running]
                held = [(r.model, r.slot) for r in self._running.values() if r.slot is not None]
                self._running.clear()
                self._free.clear()
                return lost + [self._clean(model, slot) for model, slot in held]
            case SlotCleaned(model, slot):
                self._cleaning.discard((model, slot))
                if model in self._free:
                    self._free[model].append(slot)
                return self._start(now_s)

    def _submit(self, event: Submit, now_s: float) -> list[Effect]:
        self._waiting.append(_Waiting(event.request_id, event.lane, event.model, now_s))
        effects = self._start(now_s)
        # Only what could not start at once counts against the queue.
        if len(self._waiting) > self._max_queue and self._waiting[-1].request_id == event.request_id:
            self._waiting.pop()
            effects.append(Reject(event.request_id, len(self._waiting)))
        return effects

    def _withdraw(self, request_id: int) -> list[Effect]:
        running = self._running.get(request_id)
        if running is not None:
            if running.interrupted:
                return []
            running.interrupted = True
            return [Interrupt(request_id)]
        remaining = [waiting for waiting in self._waiting if waiting.request_id != request_id]
        if len(remaining) == len(self._waiting):
            return []
        self._waiting = remaining
        return [Dropped(request_id)]

    def _ended(self, request_id: int, now_s: float) -> list[Effect]:
        running = self._running.pop(request_id, None)
        if running is None:
            return []
        if running.slot is None:
            return self._start(now_s)
        # Whoever waits takes the slot as it is: giving pages back only to fetch them again is work for nothing.
        free = self._free[running.model]
        free.append(running.slot)
        effects = self._start(now_s)
        if running.slot in free:
            free.remove(running.slot)
            effects.append(self._clean(running.model, running.slot))
        return effects

    def _clean(self, model: str, slot: int) -> CleanSlot:
        self._cleaning.add((model, slot))
        return CleanSlot(model, slot)

    def _start(self, now_s: float) -> list[Effect]:
        if not self._up:
            return []
        effects: list[Effect] = []
        still_waiting: list[_Waiting] = []
        runs = sum(1 for running in self._running.values() if running.lane == "run")
        for waiting in self._waiting:
            slot: int | None = None
            if waiting.lane == "generation":
                free = self._free.get(waiting.model)
                if not free:
                    still_waiting.append(waiting)
                    continue
                # The lowest number: pages that were touched last are the ones used again.
                slot = min(free)
                free.remove(slot)
            elif runs >= RUN_PLACES:
                still_waiting.append(waiting)
                continue
            else:
                runs += 1
            self._running[waiting.request_id] = _Running(waiting.lane, waiting.model, slot)
            effects.append(Start(waiting.request_id, slot, max(0.0, now_s - waiting.since_s)))
        self._waiting = still_waiting
        return effects
