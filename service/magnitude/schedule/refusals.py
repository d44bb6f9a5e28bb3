"""Tasks that are turned away before they are open: they leave a record, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from magnitude.errors import BudgetExceeded, DeadlineExceeded, EngineNotReady, Overloaded
from magnitude.feedback.records import Feedback, TaskRecord

# What the service says for want of room, time or an engine. Requests that are wrong in themselves are no tasks.
_REFUSED = (EngineNotReady, BudgetExceeded, Overloaded, DeadlineExceeded)


class Refusals:
    def __init__(self, feedback: Feedback) -> None:
        self._feedback = feedback

    @contextmanager
    def recorded(
        self,
        kind: Literal["generate", "embed", "infer"],
        model: str,
        tokens: int,
        *,
        task: str = "",
        request: str = "",
    ) -> Iterator[None]:
        """Whatever refuses the task within leaves its record. Not to be put around what closes an open task."""
        try:
            yield
        except _REFUSED as error:
            self._feedback.record(
                TaskRecord(
                    kind=kind,
                    model=model,
                    outcome="failed",
                    code=error.code,
                    prompt_tokens=tokens,
                    task=task,
                    request=request,
                )
            )
            raise
