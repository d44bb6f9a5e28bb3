"""What the thermal governor believes of a board before it has felt its heat: a profile, as the governor needs it.

Power and speed are worked out for a ladder of levels. A level is one share of the highest clock for all clusters that
compute, so that boards with one and with several clusters are governed alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from magnitude.board.profile import BoardProfile, ClusterProfile, ThermalStage
from magnitude.governor.thermal_terms import ClusterSight

# Share of a decode step that waits for memory, at the highest clock. llama.cpp on a Raspberry Pi 5 reads its
# weights at 10 GB/s with four threads, where a plain read reaches 11.6 (ggml-org/llama.cpp#26484): 86 %.
MEMORY_BOUND_SHARE = 0.86
# Where no profile says how the voltage follows the clock.
_KHZ_PER_GHZ = 1_000_000


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the ladder. `caps_khz` by policy (the highest level has none: clocks are as they were found).
    Power is what the work adds to the idle chip while it runs, and rates are relative to the highest level's."""

    caps_khz: dict[str, int | None]
    prefill_w: float
    decode_w: float
    prefill_rate: float
    decode_rate: float


class HeatPrior(msgspec.Struct, frozen=True, kw_only=True):
    """Levels from the lowest to the highest, and the way of the heat. `idle_w` is the chip's power when nothing runs
    and it is cold; `leakage_w` of it, at 25 °C, doubles every `leakage_doubles_c`. `prefill_threads` and
    `decode_threads` are those that the powers and rates hold for."""

    levels: tuple[Level, ...]
    stages: tuple[ThermalStage, ...]
    idle_w: float
    leakage_w: float
    leakage_doubles_c: float
    prefill_threads: int
    decode_threads: int


class HeatLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Temperatures in °C that the governor holds to. It settles at `target_c` at most; from `down_c` on everything is
    reduced until the chip is below `up_c`. `soft_c` is where the firmware begins to act. `expects_sensor`: this is a
    board that has one, so that silence means a fault."""

    target_c: float
    down_c: float
    up_c: float
    soft_c: float
    expects_sensor: bool = True


def limits_of(profile: BoardProfile) -> HeatLimits:
    own = profile.governor
    return HeatLimits(
        target_c=own.target_c,
        down_c=own.down_c,
        up_c=own.up_c,
        soft_c=profile.trips.soft_c,
        expects_sensor=bool(profile.compatible),
    )


def prior_of(
    profile: BoardProfile,
    clusters: Sequence[ClusterSight] = (),
    *,
    prefill_threads: int | None = None,
    decode_threads: int | None = None,
) -> HeatPrior:
    """The profile's figures for `clusters` as the kernel shows them (none: as the profile has them). Threads are
    those that will really run; None: the profile's."""
    prefill_threads = prefill_threads or profile.prefill_threads
    decode_threads = decode_threads or profile.decode_threads
    computing = _computing(profile, max(prefill_threads, decode_threads))
    shown = {cluster.name: cluster for cluster in clusters}
    highest = computing[0].opps[-1].khz
    shares = sorted({opp.khz / highest for opp in computing[0].opps})
    top = shares[-1]
    levels = []
    for share in shares:
        caps: dict[str, int | None] = {}
        for cluster in computing:
            name = f"policy{cluster.cpus[0]}"
            opps = (shown[name].opps_khz if name in shown else ()) or tuple(opp.khz for opp in cluster.opps)
            caps[name] = None if share == top else _opp_at_most(opps, round(share * cluster.opps[-1].khz))
        levels.append(
            Level(
                caps_khz=caps,
                prefill_w=_busy_w(profile, computing, share, prefill_threads, 1.0),
                decode_w=_decode_w(profile, computing, share, decode_threads),
                prefill_rate=share,
                decode_rate=_decode_rate(profile, computing, share, decode_threads),
            )
        )
    return HeatPrior(
        levels=tuple(levels),
        stages=profile.thermal,
        idle_w=profile.power.chip_idle_w,
        leakage_w=profile.power.leakage_w,
        leakage_doubles_c=profile.power.leakage_doubles_c,
        prefill_threads=prefill_threads,
        decode_threads=decode_threads,
    )


def _computing(profile: BoardProfile, threads: int) -> list[ClusterProfile]:
    """The clusters, the fastest first, that so many threads need."""
    found: list[ClusterProfile] = []
    for cluster in sorted(profile.clusters, key=lambda one: one.capacity, reverse=True):
        if sum(len(one.cpus) for one in found) >= threads:
            break
        found.append(cluster)
    return found


def _opp_at_most(opps_khz: Sequence[int], khz: int) -> int:
    return max((opp for opp in opps_khz if opp <= khz), default=min(opps_khz))


def _spread(clusters: Sequence[ClusterProfile], threads: int) -> list[tuple[ClusterProfile, int]]:
    """Which clusters so many threads run on, and how many on each; the fastest are filled first."""
    found = []
    for cluster in clusters:
        taken = min(threads, len(cluster.cpus))
        if taken:
            found.append((cluster, taken))
        threads -= taken
    return found


def _busy_w(
    profile: BoardProfile, clusters: Sequence[ClusterProfile], share: float, threads: int, activity: float
) -> float:
    watts = 0.0
    for cluster, taken in _spread(clusters, threads):
        khz = share * cluster.opps[-1].khz
        watts += taken * cluster.watts_per_ghz_v2 * khz / _KHZ_PER_GHZ * _volts(cluster, khz) ** 2 * activity
    return watts


def _volts(cluster: ClusterProfile, khz: float) -> float:
    """The voltage of the lowest point that reaches the clock: clocks between two points run at the higher one's."""
    return next((opp.volts for opp in cluster.opps if opp.khz >= khz * (1 - 1e-9)), cluster.opps[-1].volts)


def _asked_gb_s(clusters: Sequence[ClusterProfile], share: float, threads: int) -> float:
    return sum(
        taken * cluster.bytes_per_cycle * share * cluster.opps[-1].khz / _KHZ_PER_GHZ
        for cluster, taken in _spread(clusters, threads)
    )


def _given_gb_s(profile: BoardProfile, threads: int) -> float:
    """What memory gives to so many threads; between measured numbers of threads, the nearest lower one's."""
    known = profile.memory.read_gb_s
    return known[max((number for number in known if number <= threads), default=min(known))]


def _decode_rate(profile: BoardProfile, clusters: Sequence[ClusterProfile], share: float, threads: int) -> float:
    given = _given_gb_s(profile, threads)
    full = min(given, _asked_gb_s(clusters, 1.0, threads))
    now = min(given, _asked_gb_s(clusters, share, threads))
    return 1 / (MEMORY_BOUND_SHARE * full / now + (1 - MEMORY_BOUND_SHARE) / share)


def _decode_w(profile: BoardProfile, clusters: Sequence[ClusterProfile], share: float, threads: int) -> float:
    rate = _decode_rate(profile, clusters, share, threads)
    computing = (1 - MEMORY_BOUND_SHARE) / share * rate  # share of a step's time
    activity = computing + (1 - computing) * profile.power.stalled_activity
    read_gb_s = min(_given_gb_s(profile, threads), _asked_gb_s(clusters, share, threads)) * (1 - computing)
    cores = _busy_w(profile, clusters, share, threads, activity)
    return cores + read_gb_s * profile.memory.watts_per_gb_s
