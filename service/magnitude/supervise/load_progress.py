"""Whether a start that takes long gets anywhere: what justifies asking systemd for more time.

Reading weights shows in the bytes that the engine has read from storage, building sessions in its memory, warming up
in its graph runs. Time on a CPU shows nothing: an engine that spins for ever has plenty of it. Pure.
"""

from __future__ import annotations

import msgspec

# A card that reads 2 MB/s, a tenth of the slowest in mind, still moves this much between two looks; what a process
# reads or allocates while it only waits stays below it.
STEP_BYTES = 1 << 20
# Engines whose start counts: one or two that die can be accidents (killed from outside, or for want of memory while
# something else started), and the next one begins anew. A crash loop must run into the start timeout.
ENGINES_COUNTED = 3


class LoadSample(msgspec.Struct, frozen=True):
    """One look at the engine. Figures that the kernel does not tell are 0; all of them count from its start."""

    pid: int | None
    phase: str
    read_bytes: int = 0
    rss_bytes: int = 0
    steps: int = 0


class LoadProgress:
    """Compares samples. Only a new high counts: memory that goes up and down is no progress."""

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._phases: set[str] = set()
        self._best = LoadSample(None, "")

    def advanced(self, sample: LoadSample) -> bool:
        """Whether `sample` is further than every one before it."""
        if sample.pid is None:
            return False
        if sample.pid not in self._pids:
            self._pids.append(sample.pid)
            self._best, self._phases = sample, {sample.phase}
            return len(self._pids) <= ENGINES_COUNTED
        best = self._best
        if sample.pid != self._pids[-1] or len(self._pids) > ENGINES_COUNTED:
            return False
        if (
            sample.phase in self._phases
            and sample.steps <= best.steps
            and sample.read_bytes < best.read_bytes + STEP_BYTES
            and sample.rss_bytes < best.rss_bytes + STEP_BYTES
        ):
            return False
        self._phases.add(sample.phase)
        self._best = LoadSample(
            sample.pid,
            sample.phase,
            max(sample.read_bytes, best.read_bytes),
            max(sample.rss_bytes, best.rss_bytes),
            max(sample.steps, best.steps),
        )
        return True
