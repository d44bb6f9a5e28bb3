"""Keeps rows of tasks and decisions: takes them on the event loop, writes them in a thread of its own, together with
all others of a minute.

Flash wears out by the erase block, not by the byte: a row written alone costs as much as five hundred together. So
an idle service writes nothing, a busy one once a minute, and one that stops once more. Decisions wait for the tasks
that they were made for, at most ten minutes. What a power cut may cost is the last minute's rows; what an engine's
death leaves behind is written at once, elsewhere (`failures.py`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from magnitude.board.boot import Clocks
from magnitude.errors import MagnitudeError
from magnitude.feedback import record_table
from magnitude.feedback.decisions import DecisionRow, Repeats
from magnitude.feedback.history import History, lately
from magnitude.feedback.record_file import FileBroken, RecordFile, RecordLimits, reading
from magnitude.feedback.record_table import DATED, LAST_ID
from magnitude.feedback.records import Outcome, TaskRow

log = logging.getLogger(__name__)


FLUSH_S = 60.0
# Decisions without a task, of a board that is hot while nobody asks anything: not lost, and no writing all day.
FLUSH_DECISIONS_S = 600.0
# So many rows are worth a transaction of their own (about 200 KiB): a burst of small tasks must not pile up.
FLUSH_ROWS = 1000
# Kept in memory while the storage refuses, about 4 MiB; the oldest go.
MAX_WAITING = 4000
# Refused once, the storage is asked again after a minute, then after twice as long each time: a card that has turned
# read-only stays so, a full one is cleaned by somebody sooner or later.
RETRY_FIRST_S = 60.0
RETRY_MAX_S = 3600.0
PRUNE_S = 3600.0
# How long a stop waits for the last rows. A card that takes longer has hung.
STOP_S = 5.0


class Pace:
    """When to write. Pure: `now_s` is the monotonic clock."""

    def __init__(self) -> None:
        self._due_at_s: float | None = None
        self._retry_at_s: float | None = None
        self._refusals = 0

    def waiting(self, now_s: float, within_s: float = FLUSH_S) -> bool:
        """There are rows to write within that time. True: earlier than was known."""
        due_at_s = now_s + within_s
        if self._due_at_s is not None and self._due_at_s <= due_at_s:
            return False
        self._due_at_s = due_at_s
        return True

    def written(self) -> None:
        self._due_at_s = self._retry_at_s = None
        self._refusals = 0

    def refused(self, now_s: float) -> None:
        self._retry_at_s = now_s + min(RETRY_FIRST_S * 2 ** min(self._refusals, 16), RETRY_MAX_S)
        self._refusals += 1

    def due_s(self, now_s: float, rows: int) -> float | None:
        """Seconds until it is time; None: nothing is to be done."""
        if self._retry_at_s is not None:
            return max(0.0, self._retry_at_s - now_s)
        if self._due_at_s is None:
            return None
        if rows >= FLUSH_ROWS:
            return 0.0
        return max(0.0, self._due_at_s - now_s)


class RecordStore:
    """The rows of all tasks and decisions. `off` is empty while they are kept, otherwise the reason.

    `add` and `add_decision` never block; everything that touches the storage happens in one thread. `transactions`
    and `committed` (rows) count what was written since the start.
    """

    def __init__(self, path: Path, limits: RecordLimits | None = None, *, clocks: Clocks | None = None) -> None:
        self.path = path
        self.off = ""
        self.transactions = 0
        self.committed = 0
        self._limits = limits or RecordLimits()
        self._clocks = clocks or Clocks()
        self._changed = threading.Condition()  # guards everything below
        self._waiting: deque[TaskRow | DecisionRow] = deque()
        self._writing: list[TaskRow | DecisionRow] = []
        # The newest rows of the file that are neither waiting nor being written: what is read beside those ends here.
        self._written_to = dict.fromkeys(DATED, LAST_ID)
        self._repeats = Repeats()
        self._dropped = 0
        self._pace = Pace()
        self._flush = self._stop = False
        self._thread: threading.Thread | None = None
        self._opened = threading.Event()
        self._file: RecordFile | None = None  # the thread's own from here on
        self._pruned_s: float | None = None

    # --- on the event loop ---

    def start(self) -> None:
        """Open the file and begin to write, in a thread."""
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)
        self._thread.start()

    def add(self, row: TaskRow) -> None:
        self._add(row, FLUSH_S)

    def add_decision(self, row: DecisionRow) -> None:
        """Of one that flaps, a row a minute is kept."""
        passed = self._repeats.pass_on(row)
        if passed is not None:
            self._add(passed, FLUSH_DECISIONS_S)

    def _add(self, row: TaskRow | DecisionRow, within_s: float) -> None:
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(row)
            sooner = self._pace.waiting(self._clocks.monotonic(), within_s)
            if sooner or len(self._waiting) == FLUSH_ROWS:
                self._changed.notify_all()

    def flush(self, timeout_s: float = STOP_S) -> bool:
        """Write what waits now. Blocks; whether everything is written."""
        with self._changed:
            self._flush = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._flush, timeout_s)
            return not self._waiting and not self._writing

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Write what waits, and end. Blocks for at most `timeout_s`."""
        if self._thread is None:
            return
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("the last records were not written: the storage does not answer")
        self._thread = None

    async def opened(self) -> None:
        """Returns when the file is open, or refused."""
        await asyncio.to_thread(self._opened.wait)

    async def recent(self, limit: int, outcomes: Sequence[Outcome] = ()) -> list[TaskRow]:
        """The newest rows first, those not written yet included. Raises `MagnitudeError` when none can be read."""
        unwritten, written_to = self._unwritten()
        rows = [row for row in _tasks(unwritten) if not outcomes or row.task.outcome in outcomes][:limit]
        if len(rows) < limit:
            rows += await asyncio.to_thread(self._kept, limit - len(rows), outcomes, written_to["tasks"])
        return rows

    async def counts(self) -> dict[str, int]:
        """Tasks by outcome, of all that are kept or will be. Raises `MagnitudeError`."""
        unwritten, written_to = self._unwritten()
        counted = Counter[str](row.task.outcome for row in _tasks(unwritten))
        counted.update(await asyncio.to_thread(self._kept_counts, written_to["tasks"]))
        return dict(counted)

    async def history(self, since_s: float, limit: int, model: str = "") -> History:
        """What happened in the last `since_s`: at most `limit` decisions and as many tasks, those not written yet
        included; with `model` only what concerned it. Raises `MagnitudeError`."""
        return await asyncio.to_thread(self._history, *self._unwritten(), since_s, limit, model)

    def _unwritten(self) -> tuple[list[TaskRow | DecisionRow], dict[str, int]]:
        """What is not in the file yet, the newest first, and up to which rows of the file there is more."""
        with self._changed:
            return [*reversed(self._waiting), *reversed(self._writing)], self._written_to

    # --- in threads of readers ---

    def _kept(self, limit: int, outcomes: Sequence[Outcome], up_to: int) -> list[TaskRow]:
        if not self.path.exists():
            return []
        with reading(self.path) as connection:
            return record_table.recent(connection, limit, outcomes, up_to)

    def _kept_counts(self, up_to: int) -> dict[str, int]:
        if not self.path.exists():
            return {}
        with reading(self.path) as connection:
            return record_table.counts(connection, up_to)

    def _history(
        self,
        unwritten: list[TaskRow | DecisionRow],
        written_to: dict[str, int],
        since_s: float,
        limit: int,
        model: str,
    ) -> History:
        now = self._clocks.now()
        tasks = [row for row in _tasks(unwritten) if not model or row.task.model == model]
        decisions = (
            row for row in unwritten if isinstance(row, DecisionRow) and (not model or row.model in ("", model))
        )
        if not self.path.exists():
            return lately(decisions, tasks, now, since_s, limit)
        with reading(self.path) as connection:
            return lately(
                chain(decisions, record_table.decisions(connection, written_to["decisions"], model)),
                chain(tasks, record_table.each(connection, written_to["tasks"], model)),
                now,
                since_s,
                limit,
            )

    # --- in the thread ---

    def _run(self) -> None:
        opened = self._write([])
        with self._changed:
            if opened is None:
                self._pace.refused(self._clocks.monotonic())
            else:
                self._written_to = opened
        self._opened.set()
        while True:
            with self._changed:
                while not (self._stop or self._flush):
                    due_s = self._pace.due_s(self._clocks.monotonic(), len(self._waiting))
                    if due_s is not None and due_s <= 0:
                        break
                    self._changed.wait(due_s)
                stop = self._stop
                self._writing = list(self._waiting)
                self._waiting.clear()
                dropped, self._dropped = self._dropped, 0
            if dropped:
                log.warning(
                    "records were dropped while they could not be written", extra={"fields": {"rows": dropped}}
                )
            written = self._write(self._writing)
            with self._changed:
                if written is not None:
                    self._written_to = written
                    self.committed += len(self._writing)
                    self._pace.written()
                    if self._waiting:
                        tasks = any(isinstance(row, TaskRow) for row in self._waiting)
                        within_s = FLUSH_S if tasks else FLUSH_DECISIONS_S
                        self._pace.waiting(self._clocks.monotonic(), within_s)
                else:
                    room = max(0, MAX_WAITING - len(self._waiting))
                    dropped = max(0, len(self._writing) - room)
                    self._waiting.extendleft(reversed(self._writing[dropped:]))
                    self._dropped += dropped
                    self._pace.refused(self._clocks.monotonic())
                self._writing = []
                self._flush = False
                self._changed.notify_all()
            if stop:
                if self._file is not None:
                    self._file.close()
                return

    def _write(self, rows: list[TaskRow | DecisionRow]) -> dict[str, int] | None:
        """The newest row of each table after it; None: it did not work."""
        try:
            try:
                written_to = self._append(rows)
            except FileBroken as why:
                log.warning("the records broke while the service ran", extra={"fields": {"why": str(why)}})
                self._close()
                written_to = self._append(rows)
        except Exception as error:
            self._close()
            if not isinstance(error, MagnitudeError | FileBroken):
                log.exception("records cannot be kept, on an error that nobody foresaw")
            reason = error.message if isinstance(error, MagnitudeError) else f"{type(error).__name__}: {error}"
            if not self.off:
                log.warning("records are not kept any more", extra={"fields": {"why": reason}})
            self.off = reason
            return None
        if self.off:
            log.info("records are kept again")
        self.off = ""
        return written_to

    def _append(self, rows: list[TaskRow | DecisionRow]) -> dict[str, int]:
        if self._file is not None and not self._file.in_place:
            self._close()
        if self._file is None:
            self._file = RecordFile(self.path, self._limits)
        now = self._clocks.now()
        if rows:
            self._file.append(rows)
            self.transactions += 1
            if self._pruned_s is None or now.at_s - self._pruned_s >= PRUNE_S:
                self._pruned_s = now.at_s
                self._file.prune(now)
        return self._file.last_ids()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _tasks(rows: Iterable[TaskRow | DecisionRow]) -> list[TaskRow]:
    return [row for row in rows if isinstance(row, TaskRow)]
