from __future__ import annotations

import pytest

from magnitude.board.snapshot import Firmware, FirmwareFlags
from magnitude.governor.held_back import held_back

QUIET = Firmware(now=FirmwareFlags())
CAPPED: dict[str, int | None] = {"policy0": 1_500_000}


@pytest.mark.parametrize("flag", ["under_voltage", "clock_capped", "throttled", "soft_limit"])
def test_whatever_the_firmware_does_now_holds_the_board_back(flag: str) -> None:
    firmware = Firmware(now=FirmwareFlags(**{flag: True}))
    assert held_back(firmware, "cool", "full", duty=1.0, caps_khz={})


def test_what_the_firmware_did_since_the_boot_is_over() -> None:
    firmware = Firmware(now=FirmwareFlags(), since_boot=FirmwareFlags(throttled=True))
    assert not held_back(firmware, "cool", "full", duty=1.0, caps_khz={"policy0": None})


def test_limits_of_heat_and_supply_hold_it_back() -> None:
    assert held_back(QUIET, "hot", "full", duty=1.0, caps_khz=CAPPED)
    assert held_back(Firmware(), "warm", "full", duty=0.8, caps_khz={})
    assert held_back(QUIET, "cool", "saving", duty=1.0, caps_khz=CAPPED)


def test_neither_warmth_alone_nor_the_clocks_of_rest_hold_it_back() -> None:
    assert not held_back(QUIET, "warm", "full", duty=1.0, caps_khz={"policy0": None})
    assert not held_back(QUIET, "cool", "full", duty=1.0, caps_khz=CAPPED)
