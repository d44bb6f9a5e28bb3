"""How long has the service been well without a break? Pure: readings in, a state out."""

from __future__ import annotations

import msgspec

# `uptime_s` is told to a tenth of a second, and reading it takes a while on a busy board.
SLACK_S = 1.0
# Lines for people: the last ones say what repeats.
MAX_BREAKS = 5


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the service at the monotonic time `at_s`. `uptime_s` None: it could not be reached. `reasons` are
    its own."""

    at_s: float
    ready: bool = False
    uptime_s: float | None = None
    engine_restarts: int = 0
    persistence: bool = True
    reasons: tuple[str, ...] = ()


class Steadiness(msgspec.Struct, frozen=True, kw_only=True):
    """`since_s`: since when it has been ready without a break (None: it is not). `started_s` is the start of that
    service, `engine_restarts` its count then; `breaks` say what went wrong so far, the newest last."""

    since_s: float | None = None
    started_s: float = 0.0
    engine_restarts: int = 0
    breaks: tuple[str, ...] = ()

    def green_s(self, now_s: float) -> float:
        return 0.0 if self.since_s is None else now_s - self.since_s


def observe(so_far: Steadiness, reading: Reading) -> Steadiness:
    """The state after a further reading."""
    if reading.uptime_s is None or not reading.ready:
        if so_far.since_s is None:
            return so_far
        what = "; ".join(reading.reasons) or ("is not ready" if reading.uptime_s is not None else "is out of reach")
        return _broken(so_far, reading, f"no longer ready: {what}")
    started_s = reading.at_s - reading.uptime_s
    if so_far.since_s is None:
        return msgspec.structs.replace(
            so_far, since_s=reading.at_s, started_s=started_s, engine_restarts=reading.engine_restarts
        )
    # Also one that was down and up again between two looks.
    if started_s > so_far.started_s + SLACK_S:
        return observe(_broken(so_far, reading, "the service was started anew"), reading)
    if reading.engine_restarts != so_far.engine_restarts:
        return observe(_broken(so_far, reading, "the engine was started anew"), reading)
    return so_far


def _broken(so_far: Steadiness, reading: Reading, what: str) -> Steadiness:
    line = f"after {so_far.green_s(reading.at_s):.0f} s: {what}"
    return Steadiness(breaks=(*so_far.breaks, line)[-MAX_BREAKS:])
