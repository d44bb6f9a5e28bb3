"""Which models the open requests need: what the dispatcher tells the one who loads and unloads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from magnitude.schedule.open_tasks import OpenTask


class Demand(msgspec.Struct, frozen=True):
    """A model's requests: `begun` are with the engine or hold a KV slot, and whether any waits to go there."""

    begun: int = 0
    waits: bool = False


NONE = Demand()


def waits(task: OpenTask) -> bool:
    return not task.has_started or task.paused


def demands(tasks: Iterable[OpenTask], held: Collection[str]) -> dict[str, Demand]:
    """By model; `held` are models that work waits for which is no task yet."""
    found = {model: Demand(0, True) for model in held}
    for task in tasks:
        before = found.get(task.model, NONE)
        found[task.model] = Demand(before.begun + task.has_started, before.waits or waits(task))
    return found


class DemandTeller:
    """Tells every change once, the latest last, also when telling it brings the next one about."""

    def __init__(
        self, models: Iterable[str], read: Callable[[], Mapping[str, Demand]], tell: Callable[[str, Demand], None]
    ) -> None:
        self._told = dict.fromkeys(models, NONE)
        self._read = read
        self._tell = tell
        self._telling = False

    def changed(self) -> None:
        """Something about the requests may have changed."""
        if self._telling:
            return  # whoever is at it looks again
        self._telling = True
        try:
            while (news := self._news()) is not None:
                model, demand = news
                self._told[model] = demand
                self._tell(model, demand)
        finally:
            self._telling = False

    def forget(self) -> None:
        """Whoever was told has lost it: tell everything again."""
        for model in self._told:
            self._told[model] = Demand(-1)
        self.changed()

    def _news(self) -> tuple[str, Demand] | None:
        now = self._read()
        return next(
            ((model, now.get(model, NONE)) for model, told in self._told.items() if told != now.get(model, NONE)),
            None,
        )
