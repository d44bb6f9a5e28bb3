"""Clocks as the kernel's own governor asks for them: the highest allowed one while a cluster is busy, the lowest at
rest.

Cores that wait for memory count as busy, so ondemand and schedutil do the same here. A cap that is no operating point
means the next one below, as cpufreq resolves it; one below all of them means the lowest.
"""

from __future__ import annotations

from magnitude.board.profile import BoardProfile

# ondemand looks every 10 ms to some 100 ms, by the driver's latency; schedutil follows at once, but its idea of how
# busy a core is rises over about as long.
RAMP_S = 0.1


class Clocks:
    """Asked clocks by cluster, in kHz."""

    def __init__(self, profile: BoardProfile) -> None:
        self._opps = [tuple(opp.khz for opp in cluster.opps) for cluster in profile.clusters]
        self.caps_khz: list[int | None] = [None] * len(self._opps)
        self.asked_khz = [opps[0] for opps in self._opps]
        self._wanted_khz = list(self.asked_khz)
        self._ramp_s = [0.0] * len(self._opps)

    def set_cap(self, cluster: int, khz: int | None) -> None:
        """Limit a cluster from the next moment on; None: no limit."""
        self.caps_khz[cluster] = khz

    def cap_in_force(self, cluster: int) -> int:
        """The highest operating point that the cap allows."""
        opps, cap = self._opps[cluster], self.caps_khz[cluster]
        return opps[-1] if cap is None else max((khz for khz in opps if khz <= cap), default=opps[0])

    def want(self, busy: tuple[bool, ...]) -> None:
        """Which clusters are busy from now on. A lower cap holds at once, a change of load after `RAMP_S`."""
        for cluster, is_busy in enumerate(busy):
            cap = self.cap_in_force(cluster)
            wanted = cap if is_busy else self._opps[cluster][0]
            if wanted != self._wanted_khz[cluster]:
                self._wanted_khz[cluster] = wanted
                self._ramp_s[cluster] = RAMP_S
            self.asked_khz[cluster] = min(self.asked_khz[cluster], cap)

    def until_settled(self) -> float | None:
        """Seconds until the next clock changes; None: all are where they are wanted."""
        waiting = [
            left
            for left, asked, wanted in zip(self._ramp_s, self.asked_khz, self._wanted_khz, strict=True)
            if asked != wanted
        ]
        return min(waiting) if waiting else None

    def advance(self, dt_s: float) -> None:
        for cluster, left in enumerate(self._ramp_s):
            if self.asked_khz[cluster] != self._wanted_khz[cluster]:
                self._ramp_s[cluster] = left - dt_s
                # Sums of floats: a ramp is over when next to nothing is left of it.
                if self._ramp_s[cluster] <= 1e-9:
                    self.asked_khz[cluster] = self._wanted_khz[cluster]
