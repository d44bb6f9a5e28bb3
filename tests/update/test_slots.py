from __future__ import annotations

from pathlib import Path

import pytest
from stub_rauc import StubRauc

from magnitude.update.slots import Rauc, SlotToolError
from magnitude.update.terms import FACTORY


@pytest.fixture
def stub(tmp_path: Path) -> StubRauc:
    return StubRauc(tmp_path / "tool")


def test_slots_are_read_with_what_the_boot_loader_says_of_them(stub: StubRauc) -> None:
    stub.set(left={"A": 0, "B": 3}, installed={"B": {"version": "2.0", "count": 4}})
    a, b = Rauc((str(stub.path),)).slots()
    assert (a.bootname, a.booted, a.bootable, a.content, a.version) == ("A", True, False, FACTORY, "")
    assert (b.bootname, b.booted, b.bootable, b.version) == ("B", False, True, "2.0")
    assert b.content.endswith(":1970-01-01T00:00:00Z:4")


def test_a_second_installation_into_a_slot_is_another_content(stub: StubRauc) -> None:
    tool = Rauc((str(stub.path),))
    tool.install("x.raucb")
    first = tool.slots()[1].content
    tool.install("x.raucb")
    assert tool.slots()[1].content != first


def test_marks_reach_the_boot_loader(stub: StubRauc) -> None:
    tool = Rauc((str(stub.path),))
    tool.mark_bad("rootfs.1")
    assert stub.state["order"] == ["A"]
    stub.set(left={"A": 1, "B": 0})
    tool.mark_good("rootfs.0")
    assert stub.state["left"]["A"] == 3


def test_a_device_without_the_tool_has_no_slots(tmp_path: Path) -> None:
    assert Rauc((str(tmp_path / "absent"),)).slots() == ()


def test_a_tool_that_fails_says_what_it_said(stub: StubRauc) -> None:
    stub.set(fails=True)
    with pytest.raises(SlotToolError, match="status 1: rauc: no service here"):
        Rauc((str(stub.path),)).slots()


@pytest.mark.parametrize("said", ["", "json support is disabled", '{"slots": 3}', '{"slots": [{"a": 1}]}'])
def test_an_answer_that_makes_no_sense_is_an_error_and_not_a_device_without_slots(stub: StubRauc, said: str) -> None:
    stub.set(says=said)
    with pytest.raises(SlotToolError, match="not understood"):
        Rauc((str(stub.path),)).slots()
