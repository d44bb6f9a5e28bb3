"""Where the time of an answer went, and what it took: as headers, in a stream's last chunk, and in the log.

Times stand in the `Server-Timing` header (W3C), which tools know how to show; what it has no place for stands in
headers of our own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from magnitude.schedule.inference import Emission, VectorsResult
from magnitude.text.usage import Usage


class AnswerCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one generation took. `total_s` runs from the request's arrival to its last token; `batch` is the mean
    number of generations that decoded together, this one included, and 0 without a decode step. `cut`: why the answer
    is shorter than asked. `recoveries`: how often its engine was replaced under way; `recomputed_tokens` positions
    were not there any more afterwards."""

    usage: Usage
    queue_s: float
    prefill_s: float
    decode_s: float
    total_s: float
    slot: int | None = None
    batch: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    cut: str = ""
    recoveries: int = 0
    recomputed_tokens: int = 0

    @classmethod
    def of(cls, last: Emission, usage: Usage, *, total_s: float) -> AnswerCost:
        """The cost that the last emission tells."""
        return cls(
            usage=usage,
            queue_s=last.queue_s,
            prefill_s=last.prefill_s,
            decode_s=last.decode_s,
            total_s=total_s,
            slot=last.slot,
            batch=last.batch,
            drafted_tokens=last.drafted_tokens,
            accepted_tokens=last.accepted_tokens,
            cut=last.cut,
            recoveries=last.recoveries,
            recomputed_tokens=last.recomputed_tokens,
        )

    def times_ms(self) -> dict[str, float]:
        return {
            "queue": _ms(self.queue_s),
            "prefill": _ms(self.prefill_s),
            "decode": _ms(self.decode_s),
            "total": _ms(self.total_s),
        }

    def headers(self) -> dict[str, str]:
        """For an answer that is not streamed."""
        headers = {
            "Server-Timing": server_timing(self.times_ms()),
            "X-Magnitude-Prompt-Tokens": str(self.usage.prompt_tokens),
            "X-Magnitude-Completion-Tokens": str(self.usage.completion_tokens),
            "X-Magnitude-Cached-Tokens": str(self.usage.cached_tokens),
        }
        if self.batch:
            headers["X-Magnitude-Batch"] = f"{self.batch:.2f}"
        if self.slot is not None:
            headers["X-Magnitude-Slot"] = str(self.slot)
        if self.cut:
            headers["X-Magnitude-Cut"] = self.cut
        if self.recoveries:
            headers["X-Magnitude-Recoveries"] = str(self.recoveries)
            headers["X-Magnitude-Recomputed-Tokens"] = str(self.recomputed_tokens)
        return headers

    def extension(self) -> dict[str, Any]:
        """The same as an object, for a stream, whose headers are long gone."""
        return {
            "times_ms": self.times_ms(),
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "slot": self.slot,
            "batch": round(self.batch, 2),
            "cut": self.cut or None,
            "recoveries": self.recoveries,
            "recomputed_tokens": self.recomputed_tokens,
        }

    def notes(self) -> dict[str, Any]:
        """For the log line, where the total is on it already."""
        notes: dict[str, Any] = {f"{name}_ms": ms for name, ms in self.times_ms().items() if name != "total"}
        notes |= {"cached_tokens": self.usage.cached_tokens, "batch": round(self.batch, 2)}
        if self.slot is not None:
            notes["slot"] = self.slot
        if self.drafted_tokens:
            notes |= {"drafted": self.drafted_tokens, "accepted": self.accepted_tokens}
        if self.cut:
            notes["cut"] = self.cut
        if self.recoveries:
            notes |= {"recoveries": self.recoveries, "recomputed_tokens": self.recomputed_tokens}
        return notes


def run_headers(result: VectorsResult, *, tokens: int, total_s: float) -> dict[str, str]:
    """For the answer of an encoder."""
    times = {"queue": _ms(result.queue_s), "run": _ms(result.run_s), "total": _ms(total_s)}
    headers = {"Server-Timing": server_timing(times), "X-Magnitude-Prompt-Tokens": str(tokens)}
    if result.batch:
        headers["X-Magnitude-Batch"] = f"{result.batch:.2f}"
    return headers | variant_header(result.variant)


def run_notes(result: VectorsResult, *, tokens: int) -> dict[str, Any]:
    """The same for the log line."""
    notes: dict[str, Any] = {"prompt_tokens": tokens, "queue_ms": _ms(result.queue_s), "run_ms": _ms(result.run_s)}
    return notes | ({"batch": round(result.batch, 2)} if result.batch else {})


def variant_header(variant: str) -> dict[str, str]:
    """Which variant of the named model has computed; nothing where it was that model itself."""
    return {"X-Magnitude-Variant": variant} if variant else {}


def queue_header(waited_s: float | None) -> dict[str, str]:
    """For a stream's headers: all that is known by then."""
    return {} if waited_s is None else {"Server-Timing": server_timing({"queue": _ms(waited_s)})}


def server_timing(times_ms: dict[str, float]) -> str:
    """The value of a `Server-Timing` header: metrics with their durations in milliseconds."""
    return ", ".join(f"{name};dur={ms:.1f}" for name, ms in times_ms.items())


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
