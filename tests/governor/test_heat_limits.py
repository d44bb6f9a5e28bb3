from __future__ import annotations

import pytest

from magnitude.board.profiles import load_profile
from magnitude.board.snapshot import Firmware, FirmwareFlags, Snapshot
from magnitude.errors import ConfigError
from magnitude.governor.heat_limits import cannot_wait, limits_with
from magnitude.governor.thermal_prior import limits_of

PI = load_profile("pi5-bare")


def test_what_is_not_given_is_the_profiles() -> None:
    assert limits_with(PI, target_c=None, down_c=None, up_c=None) == limits_of(PI)
    limits = limits_with(PI, target_c=65.0, down_c=None, up_c=60.0)
    assert (limits.target_c, limits.down_c, limits.up_c) == (65.0, limits_of(PI).down_c, 60.0)


@pytest.mark.parametrize(
    "given", [{"up_c": 79.0}, {"target_c": 79.9}, {"down_c": 80.5}, {"target_c": 60.0}, {"down_c": 70.0}]
)
def test_temperatures_that_do_not_ascend_below_the_firmwares_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="firmware acts at 80"):
        limits_with(PI, **{"target_c": None, "down_c": None, "up_c": None, **given})


def test_only_a_chip_above_its_target_and_firmware_that_acts_cannot_wait() -> None:
    limits = limits_of(PI)
    assert not cannot_wait(Snapshot(at_s=0.0), limits)
    assert not cannot_wait(Snapshot(at_s=0.0, hottest_c=limits.target_c), limits)
    assert cannot_wait(Snapshot(at_s=0.0, hottest_c=limits.target_c + 0.1), limits)
    for flag in ("under_voltage", "soft_limit", "throttled"):
        firmware = Firmware(now=FirmwareFlags(**{flag: True}))
        assert cannot_wait(Snapshot(at_s=0.0, firmware=firmware), limits)
    assert not cannot_wait(Snapshot(at_s=0.0, firmware=Firmware(now=FirmwareFlags())), limits)
