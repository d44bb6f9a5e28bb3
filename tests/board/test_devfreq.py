from __future__ import annotations

from pathlib import Path

import pytest

from kernel_trees import write_tree
from magnitude.board.devices import device_kind, find_devices
from magnitude.board.snapshot import DeviceKind

D = "sys/class/devfreq"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fb000000.gpu", "gpu"),
        ("fb000000.gpu-mali", "gpu"),
        ("fdab0000.npu", "npu"),
        ("dmc", "memory"),
        ("17000000.emc", "memory"),
        ("1d84000.ufshc", "other"),
    ],
)
def test_names_tell_what_a_device_is(name: str, kind: DeviceKind) -> None:
    assert device_kind(name) == kind


def test_clocks_are_told_in_khz(tmp_path: Path) -> None:
    roots = write_tree(
        tmp_path,
        {
            f"{D}/dmc/governor": "dmc_ondemand",
            f"{D}/dmc/min_freq": 528000000,
            f"{D}/dmc/max_freq": 2112000000,
            f"{D}/dmc/cur_freq": 1560000000,
        },
    )
    (reader,) = find_devices(roots)
    device = reader.read()
    assert (device.governor, device.min_khz, device.max_khz, device.cur_khz) == (
        "dmc_ondemand",
        528000,
        2112000,
        1560000,
    )


def test_a_device_that_is_switched_off_has_unknown_clocks(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {f"{D}/fdab0000.npu/cur_freq": 0})
    (reader,) = find_devices(roots)
    assert (reader.read().cur_khz, reader.read().max_khz) == (None, None)
