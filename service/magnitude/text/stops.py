"""Stop strings over a stream of text pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text on until one of `stops` appears; the stop itself and all after it are not passed on.

    Only text that may be the beginning of a stop is held back, and only until that is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(s for s in stops if s)
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """Text that may be shown now. After a stop was seen (`stopped`) it is always ""."""
        if self.stopped:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [at for at in (text.find(s) for s in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((overlap(text, s) for s in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Text held back that turned out not to be a stop."""
        rest, self._held = self._held, ""
        return rest


def overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that `text` ends with."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
