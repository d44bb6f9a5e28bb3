"""Twice a second, from a thread of its own: that the process breathes, and how far the work has come."""

from __future__ import annotations

import threading

from magnitude.board.counters import Counters
from magnitude.engine.link import Link, ServiceGone
from magnitude.engine.protocol import Heartbeat
from magnitude.engine.stats import Progress, read_memory

# The service takes an engine for dead after several missed beats; half a second keeps that in the order of
# seconds at a cost that does not show (one small message and one read of /proc).
PERIOD_S = 0.5


def start_heartbeat(
    link: Link,
    progress: Progress,
    stop: threading.Event,
    period_s: float = PERIOD_S,
    counters: Counters | None = None,
) -> None:
    """Send `Heartbeat`s until `stop` is set or the service is gone, with what the processor's `counters` say."""

    def beat() -> None:
        while not stop.wait(period_s):
            try:
                link.send(
                    Heartbeat(
                        steps=progress.steps,
                        open_requests=progress.open_requests,
                        busy_s=progress.busy_s(),
                        rss_bytes=read_memory().rss_bytes,
                        run_pool=progress.run_pool,
                        paused=progress.paused,
                        sessions=progress.sessions,
                        session_bytes=progress.session_bytes,
                        counted=counters.read() if counters is not None else None,
                    )
                )
            except ServiceGone:
                return

    threading.Thread(target=beat, name="engine-heartbeat", daemon=True).start()
