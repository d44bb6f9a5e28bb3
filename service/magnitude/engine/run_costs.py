"""How long graph runs of each size take, as running averages; and the piece of a prompt that fits a time limit.

Pure: fed with what was measured, asked before the next run.
"""

from __future__ import annotations

# Weight of the newest run. Ten runs, a few hundred milliseconds, forget most of a disturbance.
_NEWEST = 0.2
# The smallest piece in which a prompt enters beside running answers. With pieces of 8 four running streams waited
# 82 ms for a token (95th percentile) while a prompt of 2,000 tokens entered, although at most 60 were asked for: late
# in a prompt 8 tokens took 48 ms beside a step of 20 (SmolLM2-135M on two x86 cores). Below 4 a run costs nearly as
# much as one of 4, and the prompt would only be slowed down.
SMALLEST_PIECE = 4


class RunCosts:
    """Averages by kind of run, for one session of a model.

    With nothing measured yet it goes by those of another session, `like`; its first run of a kind tells by which
    factor its own differ from them.
    """

    def __init__(self, like: RunCosts | None = None) -> None:
        self._like = like
        self._decode_s: dict[int, float] = {}  # by rows
        self._piece_s: dict[int, float] = {}  # by new tokens of one row, rounded up to a piece's size

    def decoded(self, rows: int, run_s: float) -> None:
        if not self._decode_s and self._like is not None and (other_s := self._like.decode_s(rows)):
            self._decode_s = {known: seconds * run_s / other_s for known, seconds in self._like._decode_s.items()}
        self._decode_s[rows] = _average(self._decode_s.get(rows), run_s)

    def extended(self, tokens: int, run_s: float) -> None:
        """A piece of a prompt, or a verification, of `tokens` positions took `run_s`."""
        size = _size(tokens)
        if not self._piece_s and self._like is not None and (other_s := self._like.piece_s(size)):
            factor = run_s * size / tokens / other_s
            self._piece_s = {known: seconds * factor for known, seconds in self._like._piece_s.items()}
        self._piece_s[size] = _average(self._piece_s.get(size), run_s * size / tokens)

    def decode_s(self, rows: int) -> float:
        """What a decode step of `rows` rows takes: measured, or like the nearest size that was; 0 when none was."""
        if not rows:
            return 0.0
        if not self._decode_s:
            return self._like.decode_s(rows) if self._like is not None else 0.0
        nearest = min(self._decode_s, key=lambda known: (abs(known - rows), known))
        return self._decode_s[nearest]

    def piece_s(self, size: int) -> float | None:
        """What a piece of `size` tokens takes; None when nothing is known yet.

        Never more than smaller pieces suggest: twice the tokens take at most twice the time, so a size that was
        once measured at a bad moment is tried again.
        """
        if not self._piece_s and self._like is not None:
            return self._like.piece_s(size)
        best: float | None = None
        for known, seconds in self._piece_s.items():
            # What a larger piece took is an upper bound, until something smaller was measured.
            guess = seconds * max(1.0, size / known)
            best = guess if best is None else min(best, guess)
        return best

    def largest_piece(self, limit_s: float, largest: int) -> int:
        """The largest piece (a power of two from `SMALLEST_PIECE` on, or `largest`) that takes no longer than
        `limit_s`. The smallest one when none does: a prompt must get in some time."""
        chosen = min(SMALLEST_PIECE, largest)
        size = chosen
        while size < largest:
            size = min(2 * size, largest)
            expected_s = self.piece_s(size)
            if expected_s is None or expected_s > limit_s:
                break
            chosen = size
        return chosen


def _average(old: float | None, new: float) -> float:
    return new if old is None else old + _NEWEST * (new - old)


def _size(tokens: int) -> int:
    size = SMALLEST_PIECE
    while size < tokens:
        size *= 2
    return size
