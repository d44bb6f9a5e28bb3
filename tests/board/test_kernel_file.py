from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.board.kernel_file import KernelFile, NoSample


def test_a_file_that_is_gone_has_no_sample_though_it_is_still_open(tmp_path: Path) -> None:
    path = tmp_path / "temp"
    path.write_text("51200\n")
    file = KernelFile(path)
    assert file.read_int() == 51200
    path.unlink()
    with pytest.raises(NoSample, match="ENODEV"):
        file.read()
    with pytest.raises(NoSample, match="ENOENT"):
        file.read()


def test_a_file_that_comes_back_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "temp"
    path.write_text("51200\n")
    file = KernelFile(path)
    file.read()
    path.unlink()
    path.write_text("48000\n")
    with pytest.raises(NoSample):
        file.read()
    assert file.read_int() == 48000
