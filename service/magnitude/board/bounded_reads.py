"""Reads that may never return, done so that nobody waits for them for long.

A driver of a block that is switched off can hold a reader for ever, and nothing can call it back from there. So one
thread does all reads, and is given up at the first one that takes too long: that read is its own from then on, and
another thread goes on with the rest. There are never more threads than reads that have hung, and one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

# A sensor that answers takes microseconds from a register, and some milliseconds over I2C.
LIMIT_S = 0.2

Read = Callable[[], Any]


class Result(msgspec.Struct, frozen=True):
    """What a read gave, and when; `error` is what it raised in place of a value."""

    value: Any
    at_s: float
    error: Exception | None = None


class BoundedReads:
    """One caller at a time. A read that is `alone` has its own thread from the start: it is known to be slow. `clock`
    dates results; how long a read takes is measured in real time."""

    def __init__(
        self,
        *,
        limit_s: float = LIMIT_S,
        alone: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._alone = frozenset(alone)
        self._clock = clock
        self._worker: _Worker | None = None
        self._own: dict[str, _Worker] = {}

    def run(self, reads: Mapping[str, Read]) -> dict[str, Result]:
        """Do them, in order. A key without a result in the answer: its read has not returned yet; what it gives
        comes with a later run that asks for the same key, however often it is asked for meanwhile.

        Takes `limit_s` a read at most, and that only for one that has not taken long before.
        """
        found: dict[str, Result] = {}
        ours: dict[str, Read] = {}
        for key, read in reads.items():
            if key in self._alone and key not in self._own:
                self._own[key] = _Worker(self._clock)
            own = self._own.get(key)
            if own is None:
                ours[key] = read
                continue
            found.update(own.collect())
            if own.idle:
                own.hand({key: read})
        while ours:
            worker = self._worker or _Worker(self._clock)
            worker.hand(ours)
            stuck = worker.wait(self._limit_s)
            done = worker.collect() if stuck is None else worker.collect_all_but(stuck)
            self._worker = worker if stuck is None else None
            if stuck is not None:
                self._own[stuck] = worker
            found.update(done)
            ours = {key: read for key, read in ours.items() if key not in done and key != stuck}
        return found

    def wait(self, keys: Collection[str], limit_s: float) -> dict[str, Result]:
        """What reads of threads of their own give within that time."""
        ends_s = self._clock() + limit_s
        found: dict[str, Result] = {}
        for key in keys:
            own = self._own.get(key)
            if own is not None:
                own.settle(max(0.0, ends_s - self._clock()))
                found.update(own.collect())
        return found

    def forget(self, keep: Collection[str]) -> None:
        """Let go of threads whose reads are none of `keep`: what they read is gone."""
        for key in [key for key in self._own if key not in keep]:
            self._own.pop(key).end()

    @property
    def stuck(self) -> frozenset[str]:
        """Reads that take longer than `limit_s` by now."""
        return frozenset(key for key, own in self._own.items() if own.takes_s >= self._limit_s)

    def close(self) -> None:
        """Returns at once. Threads end by themselves as soon as their reads return."""
        self.forget(())
        if self._worker is not None:
            self._worker.end()
            self._worker = None


class _Round:
    """What was handed over at once."""

    def __init__(self, reads: Mapping[str, Read]) -> None:
        self.reads = reads
        self.results: dict[str, Result] = {}
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._current: tuple[str, float] | None = None
        self._cut = False

    def begins(self, key: str, now_s: float) -> bool:
        """Said by who reads. False: leave it."""
        with self._lock:
            if not self._cut:
                self._current = (key, now_s)
            return not self._cut

    def cut(self, limit_s: float, now_s: float) -> tuple[str | None, float]:
        """Leave the rest if a read has taken that long: its key; else for how long it may still take."""
        with self._lock:
            if self._current is None:
                return None, limit_s
            key, since_s = self._current
            self._cut = now_s - since_s >= limit_s and key not in self.results
            return (key, 0.0) if self._cut else (None, max(0.001, since_s + limit_s - now_s))

    def takes_s(self, now_s: float) -> float:
        current = self._current
        return now_s - current[1] if current is not None else 0.0


class _Worker:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rounds: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self._round: _Round | None = None
        threading.Thread(target=self._run, name="board-reads", daemon=True).start()

    @property
    def idle(self) -> bool:
        return self._round is None or self._round.done.is_set()

    @property
    def takes_s(self) -> float:
        """How long the present read has taken by now."""
        given = self._round
        return given.takes_s(time.monotonic()) if given is not None and not given.done.is_set() else 0.0

    def hand(self, reads: Mapping[str, Read]) -> None:
        self._round = _Round(reads)
        self._rounds.put(self._round)

    def wait(self, limit_s: float) -> str | None:
        """Wait until all is done (None), or one read has taken longer than that (its key); the rest is then left."""
        given, wait_s = self._round, limit_s
        while given is not None and not given.done.wait(wait_s):
            stuck, wait_s = given.cut(limit_s, time.monotonic())
            if stuck is not None:
                return stuck
        return None

    def settle(self, limit_s: float) -> None:
        if self._round is not None:
            self._round.done.wait(limit_s)

    def collect_all_but(self, stuck: str) -> dict[str, Result]:
        """What had been read before the one that takes so long. That one's result stays to be collected."""
        if self._round is None:
            return {}
        done = {key: result for key, result in list(self._round.results.items()) if key != stuck}
        for key in done:
            del self._round.results[key]
        return done

    def collect(self) -> dict[str, Result]:
        """What has been read, once all of it has. A second call gives nothing."""
        if self._round is None or not self._round.done.is_set():
            return {}
        finished, self._round = self._round, None
        return finished.results

    def end(self) -> None:
        self._rounds.put(None)

    def _run(self) -> None:
        while (work := self._rounds.get()) is not None:
            for key, read in work.reads.items():
                if not work.begins(key, time.monotonic()):
                    break
                work.results[key] = self._read(read)
            work.done.set()

    def _read(self, read: Read) -> Result:
        try:
            value = read()
        except Exception as error:  # a reader must not end the thread that all others need
            return Result(None, self._clock(), error)
        return Result(value, self._clock())
