"""What strategy loops have learned, read when a model is first loaded and written now and then."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from magnitude.policy.learned import Binding, Learned
from magnitude.schedule.strategy_loop import Chooser

log = logging.getLogger("magnitude.policy")


class FoundDump(Protocol):
    """What there is for a binding: `learned` under the very same, `prior` by another one, where that is safe, and
    `why` in words."""

    @property
    def learned(self) -> Learned | None: ...

    @property
    def prior(self) -> Learned | None: ...

    @property
    def why(self) -> str: ...


class DumpStore(Protocol):
    """Where dumps are kept (`policy.dumps.Dumps`). Both methods block."""

    def load(self, binding: Binding) -> FoundDump: ...

    def save(self, learned: Learned) -> bool: ...

    @property
    def off(self) -> str: ...


class DumpKeeper:
    """Saves what has changed, at most every `every_s` a model, and all of it at the end. `wall` is the wall clock: a
    date for people."""

    def __init__(
        self,
        store: DumpStore,
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.every_s = every_s
        self._store = store
        self._clock = clock
        self._wall = wall
        self._kept: dict[str, tuple[Chooser, int, float]] = {}  # by model; what is saved, and since when
        self._writing: dict[str, asyncio.Future[bool]] = {}

    @property
    def off(self) -> str:
        """Why nothing is kept; empty while it is."""
        return self._store.off

    async def learned(self, binding: Binding) -> tuple[Learned, str]:
        """With what a model's loop begins, and where that is from in words. Raises nothing: a service that has lost
        what it knew learns again."""
        fresh = Learned(binding=binding)
        try:
            found = await asyncio.to_thread(self._store.load, binding)
        except Exception:
            log.exception("what was learned before cannot be read")
            return fresh, "what was learned before cannot be read"
        fields = {"model": binding.model, "board": binding.board, "why": found.why}
        if found.learned is not None:
            log.info(
                "strategies of before are in force again",
                extra={"fields": fields | {"entries": len(found.learned.entries), "samples": found.learned.samples}},
            )
            return found.learned, found.why
        if found.prior is not None:
            log.info("strategies of another binding are tried first", extra={"fields": fields})
            # Verdicts hold for what they were given for only.
            return msgspec.structs.replace(found.prior, binding=binding, verified=()), found.why
        log.info("nothing is known of strategies yet", extra={"fields": fields})
        return fresh, found.why

    def keep(self, model: str, chooser: Chooser) -> None:
        """From now on what it learns is saved."""
        self._kept[model] = (chooser, chooser.changed, self._clock())

    def look(self) -> None:
        """Begin to save what is due. Cheap; called with every look at the board."""
        now_s = self._clock()
        for model, (chooser, saved, at_s) in self._kept.items():
            if chooser.changed != saved and now_s - at_s >= self.every_s and model not in self._writing:
                self._begin(model)

    async def close(self) -> None:
        """Save all that has changed. Returns when it is written, or cannot be."""
        if self._writing:
            await asyncio.wait(list(self._writing.values()))
        for model, (chooser, saved, _) in list(self._kept.items()):
            if chooser.changed != saved:
                self._begin(model)
        if self._writing:
            await asyncio.wait(list(self._writing.values()))

    def _begin(self, model: str) -> None:
        chooser, _, _ = self._kept[model]
        changed = chooser.changed
        learned = msgspec.structs.replace(chooser.learned(), saved_at_s=self._wall())
        self._kept[model] = (chooser, changed, self._clock())
        writing = asyncio.get_running_loop().run_in_executor(None, self._save, learned)
        self._writing[model] = writing
        writing.add_done_callback(lambda _: self._writing.pop(model, None))

    def _save(self, learned: Learned) -> bool:
        try:
            return self._store.save(learned)
        except Exception:  # nothing about a file may reach the loop
            log.exception("what was learned could not be saved")
            return False
