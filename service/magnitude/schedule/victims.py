"""What is told of the requests that an engine held when it was lost."""

from __future__ import annotations

from collections.abc import Iterable

from magnitude.engine.message import Message
from magnitude.engine.protocol import Embed, EmbedAndRank, InferTensors
from magnitude.feedback.bundles import Victim
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.open_tasks import OpenTask


def victims_of(tasks: Iterable[OpenTask], refused: int | None) -> list[Victim]:
    """`refused`: the one that is not tried again."""
    return [_victim(task, refused=task.request_id == refused) for task in tasks]


def _victim(task: OpenTask, *, refused: bool) -> Victim:
    message = task.first_message()
    if isinstance(task, OpenGeneration):
        return Victim(
            request_id=task.request_id,
            model=task.model,
            kind="generate",
            prompt_tokens=len(task.task.prompt),
            emitted_tokens=len(task.emitted),
            cached_tokens=task.placement.valid_tokens if task.placement is not None else 0,
            message=message,
            strikes=task.recoveries,
            refused=refused,
        )
    return Victim(
        request_id=task.request_id,
        model=task.model,
        kind="infer" if isinstance(message, InferTensors) else "embed",
        prompt_tokens=_tokens(message),
        emitted_tokens=0,
        message=message,
        strikes=task.recoveries,
        refused=refused,
    )


def _tokens(message: Message) -> int:
    match message:
        case Embed(inputs=inputs):
            return sum(map(len, inputs))
        case EmbedAndRank(query=query, documents=documents):
            return len(query) + sum(map(len, documents))
        case _:
            return 0
