"""What strategy loops have learned, read when a model is first loaded and written now and then."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from magnitude.policy.dumps import Dumps
from magnitude.policy.learned import Binding, Learned
from magnitude.policy.pinned import Pinned
from magnitude.schedule.strategy_loop import Chooser

log = logging.getLogger("magnitude.policy")


class _Kept:
    """One model's loop, and what of it is saved."""

    def __init__(self, binding: Binding, chooser: Chooser, now_s: float) -> None:
        self.tried_s = now_s  # when it was last written, or could not be
        self._binding = binding
        self._chooser = chooser
        self._saved = chooser.changed

    @property
    def changed(self) -> bool:
        """Since it was last saved."""
        return self._chooser.changed != self._saved

    @property
    def mark(self) -> int:
        """For `saved`, with what is learned by now."""
        return self._chooser.changed

    def learned(self, now_s: float, wall_s: float) -> Learned:
        return self._chooser.learned(self._binding, now_s, wall_s)

    def saved(self, mark: int) -> None:
        self._saved = mark


class DumpKeeper:
    """Saves what has changed, at most every `every_s` a model, and all of it at the end. `wall` is the wall clock: a
    date for people."""

    def __init__(
        self,
        store: Dumps,
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.every_s = every_s
        self.store = store
        self._clock = clock
        self._wall = wall
        self._unwritable = ""  # as seen when it was read, until something was written
        self._kept: dict[str, _Kept] = {}  # by model
        self._writing: dict[str, asyncio.Future[bool]] = {}

    @property
    def off(self) -> str:
        """Why nothing is kept; empty while it is."""
        return self.store.off or self._unwritable

    async def learned(self, binding: Binding) -> tuple[Learned, str]:
        """With what a model's loop begins, and where that is from in words. Raises nothing: a service that has lost
        what it knew learns again."""
        fresh = Learned(binding=binding)
        try:
            found = await asyncio.to_thread(self.store.load, binding)
            self._unwritable = await asyncio.to_thread(_unwritable, self.store.folder)
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
            return found.prior, found.why
        log.info("nothing is known of strategies yet", extra={"fields": fields})
        return fresh, found.why

    async def pinned(self, binding: Binding) -> Pinned | None:
        """What a person has fixed. Raises nothing."""
        try:
            return await asyncio.to_thread(self.store.pinned, binding)
        except Exception:
            log.exception("what was pinned cannot be read")
            return None

    def keep(self, binding: Binding, chooser: Chooser) -> None:
        """From now on what it learns is saved."""
        self._kept[binding.model] = _Kept(binding, chooser, self._clock())

    def learned_now(self) -> dict[str, Learned]:
        """By model all that is known, saved or not."""
        return {model: kept.learned(self._clock(), self._wall()) for model, kept in self._kept.items()}

    def look(self) -> None:
        """Begin to save what is due. Cheap; called with every look at the board."""
        now_s = self._clock()
        for model, kept in self._kept.items():
            if kept.changed and now_s - kept.tried_s >= self.every_s and model not in self._writing:
                self._begin(model)

    async def close(self) -> None:
        """Save all that has changed. Returns when it is written, or cannot be."""
        if self._writing:
            await asyncio.wait(list(self._writing.values()))
        for model, kept in self._kept.items():
            if kept.changed:
                self._begin(model)
        if self._writing:
            await asyncio.wait(list(self._writing.values()))

    def _begin(self, model: str) -> None:
        kept = self._kept[model]
        learned = kept.learned(self._clock(), self._wall())
        kept.tried_s, mark = self._clock(), kept.mark

        def written(writing: asyncio.Future[bool]) -> None:
            del self._writing[model]
            if not writing.cancelled() and writing.result():
                kept.saved(mark)  # else it is tried again when it is due

        writing = asyncio.get_running_loop().run_in_executor(None, self._save, learned)
        self._writing[model] = writing
        writing.add_done_callback(written)

    def _save(self, learned: Learned) -> bool:
        try:
            saved = self.store.save(learned)
            if saved:
                self._unwritable = ""
            return saved
        except Exception:  # nothing about a file may reach the loop
            log.exception("what was learned could not be saved")
            return False


def _unwritable(folder: Path) -> str:
    """Why nothing can be kept below `folder`, which need not exist; "" where it can be. The first save may be hours
    away, and whoever looks after the board should know before."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    writable = there.is_dir() and os.access(there, os.W_OK)
    return "" if writable else f"{there} cannot be written: what is learned of strategies is not kept"
