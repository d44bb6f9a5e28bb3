"""Carries out what `quarantine.py` finds: who is suspected of having ended the engine, and who is refused for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from magnitude.errors import Quarantined
from magnitude.schedule.open_tasks import OpenTask, fingerprint
from magnitude.schedule.quarantine import Progress, Quarantine
from magnitude.supervise.loss import EngineLoss

HINT = "Change the request, or try another model; 'magnitude failures' shows what happened"


class Lost(msgspec.Struct, frozen=True):
    """What an engine took along: the tasks that it held, which of them are suspects, and which one is the reason."""

    held: list[OpenTask]
    suspects: frozenset[int]
    refused: OpenTask | None


class Suspicion:
    """Knows the open tasks that are suspects, by how far they were when their engine was lost."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._quarantine = Quarantine()
        self._suspects: dict[int, Progress] = {}
        self._clock = clock

    def check(self, task: OpenTask) -> None:
        """Raise `Quarantined`, and end the new task with it, when one like it ended the engine before."""
        if self._quarantine.active and self._quarantine.knows(fingerprint(task.first_message()), self._clock()):
            error = Quarantined("this request has ended the engine before, twice; it is not tried again", hint=HINT)
            task.fail(error)
            raise error

    def lost(self, loss: EngineLoss, tasks: Iterable[OpenTask]) -> Lost:
        """The engine is gone."""
        held = {task.request_id: task for task in tasks if task.in_engine}
        progress = {request_id: task.progress for request_id, task in held.items()}
        verdict = self._quarantine.lost(loss, progress)
        self._suspects |= {request_id: progress[request_id] for request_id in verdict.suspects}
        refused = held[verdict.refused] if verdict.refused is not None else None
        return Lost(list(held.values()), verdict.suspects, refused)

    def refuse(self, task: OpenTask, loss: EngineLoss) -> None:
        """End the task for good; the like of it is not tried again."""
        self._quarantine.remember(fingerprint(task.first_message()), self._clock())
        task.fail(Quarantined(f"this request has ended the engine twice: {loss.reason}", hint=HINT))
        task.withdraw()

    def proved(self, task: OpenTask) -> bool:
        """Whether the task, which the engine has just told of, was a suspect and is none any more."""
        before = self._suspects.get(task.request_id)
        if before is None or task.progress <= before:
            return False
        del self._suspects[task.request_id]
        return True

    def over(self, request_id: int) -> None:
        """The task has ended."""
        self._quarantine.over(request_id)
        self._suspects.pop(request_id, None)
