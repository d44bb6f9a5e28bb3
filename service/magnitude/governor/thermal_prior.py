"""What the thermal governor believes of a board before it has felt its heat: a profile, as the governor needs it.

Power and speed are worked out for a ladder of levels. A level is one share of the highest clock for all clusters that
compute, so that boards with one and with several clusters are governed alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from magnitude.board.power_use import cores_w
from magnitude.board.profile import BoardProfile, ClusterProfile, PowerProfile, ThermalStage
from magnitude.board.profiles import policy_name
from magnitude.board.workload import CoreUse, Load, ModelCost, Work, cores_used, load_of, placed
from magnitude.governor.thermal_terms import ClusterSight, Phase

# What the ladder is worked out for: a model of 1.5 billion weights in 4 bits, as boards run them. Only the
# proportions between levels and phases count, and those hardly depend on it.
TYPICAL = ModelCost(weight_bytes=1.0e9, macs_per_token=1.5e9)
# Numbers of threads that decode slower than this, compared with as many as prompts have, are no choice: a change
# between such and others is a jump that readers of a stream notice.
LEAST_DECODE_RATE = 0.9


class Answering(msgspec.Struct, frozen=True):
    """Decoding on so many threads: what it adds to the idle chip while it runs, and its rate."""

    threads: int
    watts: float
    rate: float


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the ladder. `caps_khz` by policy (the highest level has none: clocks are as they were found).
    `prefill_w` is what prompts add to the idle chip while they are read, `prefill_rate` is relative to the highest
    level. Answers may run on several numbers of threads, the same ones at each level; their rates are relative to
    the last one's, which are as many as for prompts, at the highest level."""

    caps_khz: dict[str, int | None]
    prefill_w: float
    prefill_rate: float
    decode: tuple[Answering, ...]


class HeatPrior(msgspec.Struct, frozen=True, kw_only=True):
    """Levels from the lowest to the highest, the way of the heat, and what the chip takes beside the work."""

    levels: tuple[Level, ...]
    stages: tuple[ThermalStage, ...]
    power: PowerProfile
    prefill_threads: int


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
    profile: BoardProfile, clusters: Sequence[ClusterSight] = (), *, threads: int | None = None
) -> HeatPrior:
    """The profile's figures for `clusters` as the kernel shows them (none: as the profile has them). `threads`: the
    only number of threads that the engine has; None: prompts run on the profile's, answers on any number up to it."""
    prefill_threads = threads or profile.prefill_threads
    decode_threads = (prefill_threads,) if threads else tuple(range(1, prefill_threads + 1))
    computing = [use.cluster for use in _used(profile, 1.0, prefill_threads)]
    fastest = max(computing, key=lambda cluster: cluster.capacity)
    shown = {cluster.name: cluster for cluster in clusters}
    shares = sorted({opp.khz / fastest.opps[-1].khz for opp in fastest.opps})
    best_prefill = _load(profile, 1.0, "prefill", prefill_threads)
    best_decode = _load(profile, 1.0, "decode", prefill_threads)
    useful = [
        number
        for number in decode_threads
        if _load(profile, 1.0, "decode", number).decode_tokens_s >= best_decode.decode_tokens_s * LEAST_DECODE_RATE
    ]
    levels = []
    for share in shares:
        caps: dict[str, int | None] = {}
        for cluster in computing:
            for name in _policies(profile, cluster, shown):
                opps = (shown[name].opps_khz if name in shown else ()) or tuple(opp.khz for opp in cluster.opps)
                highest = opps[-1] if name in shown else cluster.opps[-1].khz
                caps[name] = None if share == shares[-1] else _opp_at_most(opps, round(share * highest))
        prefill = _load(profile, share, "prefill", prefill_threads)
        answering = []
        for number in useful:
            decode = _load(profile, share, "decode", number)
            watts = _watts(profile, _used(profile, share, number), decode)
            answering.append(Answering(number, watts, decode.decode_tokens_s / best_decode.decode_tokens_s))
        levels.append(
            Level(
                caps_khz=caps,
                prefill_w=_watts(profile, _used(profile, share, prefill_threads), prefill),
                prefill_rate=prefill.prefill_tokens_s / best_prefill.prefill_tokens_s,
                decode=tuple(answering),
            )
        )
    return HeatPrior(
        levels=tuple(levels),
        stages=profile.thermal,
        power=profile.power,
        prefill_threads=prefill_threads,
    )


def _policies(profile: BoardProfile, cluster: ClusterProfile, shown: Collection[str]) -> Collection[str]:
    """The kernel's policies of a cluster. On a board of one cluster all of them: many machines have one a CPU."""
    return shown if shown and len(profile.clusters) == 1 else (policy_name(profile, profile.clusters.index(cluster)),)


def _opp_at_most(opps_khz: Sequence[int], khz: int) -> int:
    return max((opp for opp in opps_khz if opp <= khz), default=min(opps_khz))


def _watts(profile: BoardProfile, used: Sequence[CoreUse], load: Load) -> float:
    return cores_w(profile, used, load) + load.memory_gb_s * profile.memory.watts_per_gb_s


def _load(profile: BoardProfile, share: float, phase: Phase, threads: int) -> Load:
    work = Work(phase=phase, threads=threads, model=TYPICAL)
    return load_of(profile, _used(profile, share, threads), work)


def _used(profile: BoardProfile, share: float, threads: int) -> tuple[CoreUse, ...]:
    """Which cores so many threads run on, at a share of their clusters' highest clocks."""
    khz = [share * cluster.opps[-1].khz for cluster in profile.clusters]
    return cores_used(profile, placed(profile, threads), khz)
