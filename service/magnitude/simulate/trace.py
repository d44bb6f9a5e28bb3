"""What a simulated run leaves: a row a second, how long tokens took, and what it comes to."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec

from magnitude.governor.thermal_terms import Phase

# Time between two tokens is counted in bins of so many seconds: 0.1 ms is far below what differs.
BIN_S = 1e-4


class Latencies:
    """How many tokens came after how long."""

    def __init__(self) -> None:
        self._tokens: dict[int, float] = {}

    def add(self, gap_s: float, tokens: float) -> None:
        """So many tokens came this long after the one before."""
        at = round(gap_s / BIN_S)
        self._tokens[at] = self._tokens.get(at, 0.0) + tokens

    def percentile(self, share: float) -> float | None:
        """The gap in seconds that this share of tokens did not exceed; None: no tokens."""
        wanted = share * sum(self._tokens.values())
        counted = 0.0
        for at in sorted(self._tokens):
            counted += self._tokens[at]
            if counted >= wanted:
                return at * BIN_S
        return None


class Rows:
    """One value a second of each: `temp_c` is the highest within the second; clocks are those of the fastest cluster,
    as the kernel asks for them and as they run; `inter_token_s` is 0 where nothing was decoded."""

    def __init__(self) -> None:
        self.temp_c = array("f")
        self.asked_khz = array("f")
        self.effective_khz = array("f")
        self.tokens_s = array("f")
        self.inter_token_s = array("f")
        self.chip_w = array("f")
        self.board_w = array("f")

    def __len__(self) -> int:
        return len(self.temp_c)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated run in figures. Tokens are generated ones unless they are called prompt tokens.

    `tokens_s` is tokens over the whole time, `decode_tokens_s` over the time in which any were decoded,
    `busy_tokens_s` over the time in which anything ran, prompts included: the speed of a board that mostly waits for
    its agents. Energy a token is all energy, idle time and prompts included, over all tokens.
    `inter_token_p95_over_p50` is the spread of the time between two tokens of an answer. `soft_s` and `hard_s` count
    the seconds in which the chip was at or above the board's own limits at any moment; the governor's changes of
    clock limits are counted as it asked for them. With a strategy loop: the strategy in force at the end, how often
    another one was put in force, and the time that went into its probes and comparisons."""

    board: str
    load: str
    governor: str
    hours: float
    ambient_c: float
    tokens: float
    prompt_tokens: float
    tokens_s: float
    decode_tokens_s: float | None
    busy_tokens_s: float | None
    board_j_per_token: float | None
    chip_j_per_token: float | None
    inter_token_p50_s: float | None
    inter_token_p95_s: float | None
    inter_token_p95_over_p50: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    peak_c: float
    mean_c: float
    soft_s: int
    hard_s: int
    mean_busy_khz: float | None
    cap_changes: int
    most_cap_changes_a_minute: int
    phase_shares: dict[Phase, float]
    strategy: str = ""
    switches: int = 0
    errands_s: float = 0.0


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated run: its figures, its rows, and what was decided (seconds, text)."""

    summary: Summary
    rows: Rows
    decisions: tuple[tuple[float, str], ...] = ()


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value that this share of them does not exceed; None: there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part / whole`; None where either is missing or there is nothing to divide by."""
    return part / whole if part is not None and whole else None


def most_within(times_s: Iterable[float], window_s: float) -> int:
    """The most of them that lie within any such window."""
    times = sorted(times_s)
    most = first = 0
    for last, at_s in enumerate(times):
        while at_s - times[first] >= window_s:
            first += 1
        most = max(most, last - first + 1)
    return most
