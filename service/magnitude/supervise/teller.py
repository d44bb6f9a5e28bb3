"""Tells the service manager, in time and truthfully, how the service is: one task on the loop that does the work.

What is seen comes from outside, by a look at each tick; here it is decided what follows from it. Before READY: more
time while the start gets on. From READY on: the status line. All the time: a ping while the watchdog's conditions
hold.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable

import msgspec

from magnitude.supervise.last_words import task_stacks
from magnitude.supervise.load_progress import LoadProgress, LoadSample
from magnitude.supervise.notify import Notifier
from magnitude.supervise.status_line import StatusFacts, TokenRate, due, status_line
from magnitude.supervise.watchdog import GRACE_S, PINGS_A_PERIOD, TICK_S, EngineView, ProgressWatch, Verdict

log = logging.getLogger("magnitude.supervise")

# A start that got on is given so much more time from then on: a card stalls for tens of seconds at worst, and
# optimising a large graph on a small core shows nothing for as long.
EXTENSION_S = 60.0
# Asked for anew at most this often: a twelfth of what was granted has passed by then.
EXTEND_EVERY_S = 5.0
# While it starts a look comes more often, since clients wait for READY.
START_TICK_S = 0.25


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The service at one moment. `serves`: its sockets accept and its models have done their first work. `failed`
    says why no engine will ever come; `generated_tokens` counts up."""

    engine: EngineView
    load: LoadSample
    facts: StatusFacts
    serves: bool
    failed: str = ""
    generated_tokens: int = 0


class Teller:
    """`on_failed(reason)` is called once when there is nothing that could ever be told as ready."""

    def __init__(
        self,
        notifier: Notifier,
        look: Callable[[], Look],
        *,
        on_failed: Callable[[str], None] = lambda reason: None,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.notifier = notifier
        self.is_ready = False
        self._look = look
        self._on_failed = on_failed
        self._clock = clock
        now_s = clock()
        self._watch = ProgressWatch(now_s, grace_s=grace_s)
        self._progress = LoadProgress()
        self._rate = TokenRate()
        self._sent = ""
        self._sent_s: float | None = None
        self._extended_s = now_s - EXTEND_EVERY_S
        self._ping_due_s = now_s
        self._pinged = True
        self._stopping = False
        self._has_failed = False
        self.note = ""
        """What the status line says besides, such as a reload that failed."""

    @property
    def period_s(self) -> float:
        """Seconds between two looks."""
        watchdog_s = self.notifier.watchdog_s
        tick_s = TICK_S if watchdog_s is None else min(TICK_S, watchdog_s / (2 * PINGS_A_PERIOD))
        return tick_s if self.is_ready else min(tick_s, START_TICK_S)

    async def run(self) -> None:
        """Look and tell until cancelled."""
        while True:
            self.tick()
            await asyncio.sleep(self.period_s)

    def tick(self) -> None:
        """One look, and what follows from it."""
        now_s = self._clock()
        look = self._look()
        self.notifier.flush()
        self._watch.tick(look.engine, now_s)
        if look.failed and not self._has_failed:
            self._has_failed = True
            self._on_failed(look.failed)
        line = self._line(look, now_s)
        if not self.is_ready and look.serves:
            self.is_ready = True
            self.notifier.ready(line)
            self._sent, self._sent_s = line, now_s
        elif not self.is_ready:
            self._extend(look.load, now_s)
        if not self._stopping and due(self._sent, self._sent_s, line, now_s) and self.notifier.status(line):
            self._sent, self._sent_s = line, now_s
        watchdog_s = self.notifier.watchdog_s
        if watchdog_s is not None and now_s >= self._ping_due_s:
            verdict = self._watch.may_ping(now_s)
            self._ping(verdict)
            # Refused, it is asked for again at the next look.
            self._ping_due_s = now_s + (watchdog_s / PINGS_A_PERIOD if verdict.ping else 0.0)

    def stopping(self, reason: str) -> None:
        """The service is on its way out; from now on this is its status."""
        self._stopping = True
        self.notifier.stopping(f"stopping: {reason}")

    def reloading(self) -> None:
        """The configuration is being read again. Not told before the first READY: the answer would be another one."""
        if self.is_ready:
            self.notifier.reloading()

    def reloaded(self, note: str) -> None:
        """It has been read; `note` goes to the status line ("": nothing to say)."""
        self.note = note
        if self.is_ready and not self._stopping:
            now_s = self._clock()
            self._sent, self._sent_s = self._line(self._look(), now_s), now_s
            self.notifier.ready(self._sent)

    def _line(self, look: Look, now_s: float) -> str:
        started = self.is_ready or look.serves
        # What models generate to prove themselves at the start was for nobody.
        rate = self._rate.of(look.generated_tokens, now_s) if started else None
        return status_line(msgspec.structs.replace(look.facts, started=started, tokens_per_s=rate, note=self.note))

    def _extend(self, load: LoadSample, now_s: float) -> None:
        if self._progress.advanced(load) and now_s - self._extended_s >= EXTEND_EVERY_S:
            self._extended_s = now_s
            self.notifier.extend_timeout_s(EXTENSION_S)

    def _ping(self, verdict: Verdict) -> None:
        if verdict.ping:
            self.notifier.watchdog()
        elif self._pinged:
            log.error("the watchdog gets no ping", extra={"fields": {"reason": verdict.reason}})
            # As the interpreter writes the stacks of threads: past the log, whose lines stand for events.
            sys.stderr.write(task_stacks(asyncio.get_running_loop()) + "\n")
        self._pinged = verdict.ping
