from __future__ import annotations

from magnitude.board.heat import FRESH_S
from magnitude.board.snapshot import ClockPolicy, Firmware, FirmwareFlags, Snapshot, TempSensor
from magnitude.governor.thermal_sight import sight_of
from magnitude.governor.thermal_terms import LoadSight


def snapshot(age_s: float | None = 0.1, **more: object) -> Snapshot:
    sensor = TempSensor(name="cpu-thermal", kind="cpu", temp_c=61.0, age_s=age_s)
    case = TempSensor(name="case", kind="case", temp_c=30.0, age_s=0.0)
    return Snapshot(at_s=1.0, temps=(sensor, case), hottest_c=61.0, **more)  # type: ignore[arg-type]


def test_a_fresh_sensor_counts_and_an_old_one_does_not() -> None:
    assert sight_of(snapshot(), LoadSight()).temp_c == 61.0
    old = sight_of(snapshot(age_s=FRESH_S + 0.1), LoadSight())
    assert (old.temp_c, old.age_s) == (None, FRESH_S + 0.1)


def test_a_policy_is_ours_to_limit_only_where_it_can_be_written_and_was_not_refused() -> None:
    clocks = (
        ClockPolicy(name="policy0", cpus=(0, 1), writable=True, cap_khz=1_000_000),
        ClockPolicy(name="policy2", cpus=(2,), writable=True),
        ClockPolicy(name="policy3", cpus=(3,), writable=False),
    )
    seen = sight_of(snapshot(clocks=clocks), LoadSight(), refused={"policy2"})
    assert [cluster.writable for cluster in seen.clusters] == [True, False, False]
    assert [cluster.cpus for cluster in seen.clusters] == [2, 1, 1]


def test_a_firmware_that_cannot_be_asked_says_neither_yes_nor_no() -> None:
    assert sight_of(snapshot(), LoadSight()).soft_limit is None
    told = Firmware(now=FirmwareFlags(soft_limit=True))
    assert sight_of(snapshot(firmware=told), LoadSight()).soft_limit is True
