from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.board.machine_id import read_machine_id


def test_the_id_is_read_without_its_newline(tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("00112233445566778899aabbccddeeff\n")
    assert read_machine_id(tmp_path / "machine-id") == "00112233445566778899aabbccddeeff"


@pytest.mark.parametrize("text", ["", "\n", "uninitialized\n"])
def test_a_machine_in_its_first_boot_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "machine-id").write_text(text)
    assert read_machine_id(tmp_path / "machine-id") is None
    assert read_machine_id(tmp_path / "missing") is None
