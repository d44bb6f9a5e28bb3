"""How far it is: one line that is rewritten on a terminal, a line each tenth elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from flashing.terms import readable_bytes

_REDRAW_S = 0.2  # quicker than that nobody reads


def progress_line(what: str, done: int, total: int, elapsed_s: float) -> str:
    """For example `writing: 45 %, 315 MB of 700 MB, 21 MB/s, 18 s left`. Without a total, what is known."""
    speed = done / elapsed_s if elapsed_s > 0 else 0.0
    parts = [f"{done * 100 // total} %", f"{readable_bytes(done)} of {readable_bytes(total)}"] if total else []
    parts = parts or [readable_bytes(done)]
    if speed:
        parts.append(f"{readable_bytes(speed)}/s")
        if total:
            parts.append(readable_duration((total - done) / speed) + " left")
    return f"{what}: {', '.join(parts)}"


def readable_duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


class Progress:
    """Follows one step. `stream` is where it is shown, `clock` counts seconds."""

    def __init__(
        self, what: str, stream: TextIO, *, terminal: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._stream, self._terminal, self._clock = what, stream, terminal, clock
        self._began = clock()
        self._drawn = self._began - _REDRAW_S
        self._tenth = -1

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        line = progress_line(self._what, done, total, now - self._began)
        ended = bool(total) and done >= total
        if self._terminal:
            if ended or now - self._drawn >= _REDRAW_S:
                self._drawn = now
                self._stream.write(f"\r\033[K{line}" + ("\n" if ended else ""))
        elif total and done * 10 // total > self._tenth:
            self._tenth = done * 10 // total
            self._stream.write(line + "\n")
        self._stream.flush()
