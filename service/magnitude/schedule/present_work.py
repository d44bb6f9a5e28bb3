"""What the engine is at now, by what is open in it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from magnitude.governor.thermal_terms import Phase
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.open_tasks import OpenTask


class PresentWork(msgspec.Struct, frozen=True, kw_only=True):
    """`decoding` answers are being written, `entering` prompts, texts or tensors are being read. `model` is the one
    that most of them are for ("": nothing is open), `past_tokens` how long its conversations are, on average."""

    phase: Phase = "idle"
    decoding: int = 0
    entering: int = 0
    model: str = ""
    past_tokens: int = 0


IDLE = PresentWork()


def present_work(tasks: Iterable[OpenTask]) -> PresentWork:
    """An answer is being written from its first token on, also while an engine that is new to it reads it again:
    that takes less than a second, and nobody tells."""
    held = [task for task in tasks if task.in_engine]
    if not held:
        return IDLE
    names = [task.model for task in held]
    model = max(names, key=names.count)
    generations = [task for task in held if isinstance(task, OpenGeneration)]
    decoding = sum(bool(task.emitted) for task in generations)
    entering = len(held) - decoding
    lengths = [len(task.task.prompt) + len(task.emitted) for task in generations if task.model == model]
    return PresentWork(
        phase="mixed" if decoding and entering else "decode" if decoding else "prefill",
        decoding=decoding,
        entering=entering,
        model=model,
        past_tokens=sum(lengths) // len(lengths) if lengths else 0,
    )
