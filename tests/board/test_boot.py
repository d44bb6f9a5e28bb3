from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.board.boot import EARLIEST_S, UNKNOWN_BOOT, Clocks, Stamp, age_s, read_boot_id
from magnitude.board.roots import HostRoots

TODAY_S = EARLIEST_S + 1e6
YEARS_55_S = 55 * 365 * 86400.0


def stamp(wall_s: float, at_s: float, boot_id: str = "one") -> Stamp:
    return Stamp(wall_s=wall_s, at_s=at_s, boot_id=boot_id)


def test_the_boot_id_is_the_kernels(tmp_path: Path) -> None:
    folder = tmp_path / "proc/sys/kernel/random"
    folder.mkdir(parents=True)
    (folder / "boot_id").write_text("5a8c0e5e-8a51-4d3c-9a7f-6a1c9d3b8f10\n")
    assert read_boot_id(HostRoots.under(tmp_path)) == "5a8c0e5e-8a51-4d3c-9a7f-6a1c9d3b8f10"
    assert read_boot_id(HostRoots.under(tmp_path / "nothing")) == UNKNOWN_BOOT
    assert read_boot_id() == Clocks().boot_id != UNKNOWN_BOOT


@pytest.mark.parametrize("jump_s", [-2 * 3600.0, 0.0, YEARS_55_S, -YEARS_55_S])
def test_within_a_boot_a_jump_of_the_wall_clock_changes_no_age(jump_s: float) -> None:
    assert age_s(stamp(TODAY_S, 100.0), stamp(TODAY_S + 10 + jump_s, 110.0)) == 10.0


def test_over_boots_the_wall_clock_tells_if_it_can_be_right() -> None:
    assert age_s(stamp(TODAY_S, 5000.0), stamp(TODAY_S + 60, 3.0, "two")) == 60.0
    assert age_s(stamp(0.0, 5000.0), stamp(TODAY_S, 3.0, "two")) is None
    assert age_s(stamp(TODAY_S, 5000.0), stamp(20.0, 3.0, "two")) is None
    assert age_s(stamp(TODAY_S + YEARS_55_S, 5000.0), stamp(TODAY_S, 3.0, "two")) is None


def test_a_boot_that_cannot_be_named_is_the_same_as_no_other() -> None:
    assert age_s(stamp(0.0, 5.0, UNKNOWN_BOOT), stamp(0.0, 9.0, UNKNOWN_BOOT)) is None


@given(st.floats(-1e9, 1e11), st.floats(0, 1e9), st.floats(-1e9, 1e11), st.floats(0, 1e9), st.booleans())
def test_no_age_is_ever_negative(wall_s: float, at_s: float, now_wall_s: float, now_s: float, same: bool) -> None:
    age = age_s(stamp(wall_s, at_s), stamp(now_wall_s, now_s, "one" if same else "two"))
    assert age is None or age >= 0.0
