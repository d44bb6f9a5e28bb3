"""What a snapshot of the board means to the thermal governor."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from magnitude.board.heat import FRESH_S
from magnitude.board.snapshot import Snapshot
from magnitude.governor.thermal_terms import ClusterSight, LoadSight, ThermalSight


def sight_of(snapshot: Snapshot, load: LoadSight, *, refused: Collection[str] = ()) -> ThermalSight:
    """`refused` are policies whose clock limit could not be written."""
    ages = [sensor.age_s for sensor in snapshot.temps if sensor.kind == "cpu" and sensor.age_s is not None]
    flags = snapshot.firmware.now
    age_s = min(ages, default=0.0)
    return ThermalSight(
        temp_c=snapshot.hottest_c if age_s <= FRESH_S else None,
        age_s=age_s,
        clusters=tuple(
            ClusterSight(
                name=policy.name,
                cpus=len(policy.cpus),
                opps_khz=policy.opps_khz,
                cap_khz=policy.cap_khz,
                cur_khz=policy.cur_khz,
                writable=policy.writable and policy.name not in refused,
            )
            for policy in snapshot.clocks
        ),
        load=load,
        soft_limit=flags.soft_limit if flags else None,
        throttled=flags.throttled if flags else None,
    )


def blinded(sight: ThermalSight, age_s: float) -> ThermalSight:
    """The same without what a look of `age_s` ago says of heat and clocks."""
    clusters = tuple(msgspec.structs.replace(cluster, cap_khz=None, cur_khz=None) for cluster in sight.clusters)
    return msgspec.structs.replace(
        sight, temp_c=None, age_s=max(0.0, age_s), clusters=clusters, soft_limit=None, throttled=None
    )
