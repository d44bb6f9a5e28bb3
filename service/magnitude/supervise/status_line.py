"""The line that `systemctl status` shows: what an admin wants to know first, in as few words as it takes. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

# Sent on change, and not more often than this: a line that flickers informs nobody, and each one wakes the manager.
MIN_INTERVAL_S = 3.0
# Over which the rate is taken: long enough to even out prompts between answers, short enough to be "lately".
RATE_WINDOW_S = 15.0
# Reasons may be long sentences with hints; the log has them in full.
_MAX_REASON_CHARS = 120


class StatusFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What may be told. None or "" leaves a part out: it is not known, or nothing worth a word.

    `engine`: what the engine does while it does not serve; before the first time that it does, `started` is false.
    `tokens_per_s`: what all answers together got lately. `memory`: the step of the memory ladder that is taken.
    `simulated`: the board that is simulated in place of this one. `degraded`: what is not as it should be. `note`:
    what else the reader must know, such as a reload that failed.
    """

    model: str
    further_models: int = 0
    started: bool = True
    engine: str = ""
    tokens_per_s: float | None = None
    running: int = 0
    waiting: int = 0
    temp_c: float | None = None
    simulated: str = ""
    memory: str = ""
    degraded: str = ""
    note: str = ""


def status_line(facts: StatusFacts) -> str:
    """One line, without control characters."""
    model = facts.model or "no model"
    if facts.further_models:
        model += f" and {facts.further_models} more"
    degraded = _cut("degraded: ", facts.degraded)
    if not facts.started:
        return _join(
            [
                _cut("starting: ", facts.engine or "opening the sockets"),
                model,
                _simulated(facts.simulated),
                degraded,
                facts.note,
            ]
        )
    work = f"{facts.running} running" if facts.running else "idle"
    if facts.engine:
        work = _cut("", facts.engine)
    if facts.waiting:
        work += f", {facts.waiting} waiting"
    rate = f"{_rounded(facts.tokens_per_s)} tokens/s" if facts.tokens_per_s else ""
    temperature = f"{facts.temp_c:.0f} °C" if facts.temp_c is not None else ""
    memory = f"memory: {facts.memory}" if facts.memory else ""
    simulated = _simulated(facts.simulated)
    return _join([f"{model}: {work}", rate, simulated, temperature, memory, degraded, facts.note])


def due(sent: str, sent_s: float | None, line: str, now_s: float) -> bool:
    """Whether `line` is to be sent now, when `sent` was the last one at `sent_s`."""
    return line != sent and (sent_s is None or now_s - sent_s >= MIN_INTERVAL_S)


# A rate over less time than looks are apart would say nothing.
LEAST_RATE_S = 0.1


class TokenRate:
    """Tokens a second of late, from a count that goes up. Looked at about once a second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def of(self, tokens: int, now_s: float) -> float | None:
        """The rate up to now; None while nothing is generated."""
        seen = self._seen
        if not seen or tokens != seen[-1][1] or now_s - seen[-1][0] >= 1.0:
            seen.append((now_s, tokens))
        # The last one that lies outside stays, so that the window is covered from its beginning.
        while len(seen) > 2 and now_s - seen[1][0] >= RATE_WINDOW_S:
            seen.popleft()
        since_s, before = seen[0]
        over_s = now_s - since_s
        return (tokens - before) / over_s if tokens > before and over_s >= LEAST_RATE_S else None


def _join(parts: list[str]) -> str:
    text = "; ".join(part for part in parts if part)
    return "".join(character if character.isprintable() else " " for character in text)


def _simulated(board: str) -> str:
    return f"SIMULATED board {board}" if board else ""


def _cut(label: str, reason: str) -> str:
    if not reason:
        return ""
    return label + (reason if len(reason) <= _MAX_REASON_CHARS else reason[: _MAX_REASON_CHARS - 1] + "…")


def _rounded(rate: float) -> str:
    """Two digits: the third changes with every look."""
    return f"{rate:.1f}" if rate < 10 else f"{float(f'{rate:.2g}'):.0f}"
