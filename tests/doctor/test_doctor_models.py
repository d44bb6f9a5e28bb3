from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from magnitude.board import HostRoots
from magnitude.config import ModelsSettings, Settings
from magnitude.doctor import DoctorContext
from magnitude.doctor.checks import models
from magnitude.paths import find_paths


def context(folder: Path) -> DoctorContext:
    return DoctorContext(
        settings=Settings(models=ModelsSettings(folder=str(folder))),
        paths=find_paths({"MAGNITUDE_HOME": str(folder.parent)}),
        roots=HostRoots(),
    )


def test_no_models_folder_and_an_empty_one_are_a_warning_with_what_to_do(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        finding = models.check(context(folder))
        assert finding.level == "warning"
        assert "magnitude import" in finding.advice


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": 99}', b"\0" * 100])
def test_a_model_with_a_broken_manifest_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/manifest.json").write_bytes(content)
    finding = models.check(context(tmp_path))
    assert finding.level == "error"
    assert "torn:" in finding.detail
    assert "magnitude rm" in finding.advice


def link_or_copy(source: str, target: str) -> None:
    """A hard link where both lie on one file system: weights are large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.mark.models
def test_whole_models_are_fine(magnitude_home: Path) -> None:
    finding = models.check(context(magnitude_home / "models"))
    assert finding.level == "ok", finding.detail
    assert "smollm2-135m-instruct (decoder" in finding.detail


@pytest.mark.models
def test_one_changed_byte_in_a_model_is_found(magnitude_home: Path, tmp_path: Path) -> None:
    """Same size, another content: only the hashes can tell."""
    source, copy = magnitude_home / "models/all-minilm-l6-v2", tmp_path / "models/all-minilm-l6-v2"
    shutil.copytree(source, copy, copy_function=link_or_copy)
    tokenizer = copy / "tokenizer.json"
    data = bytearray(tokenizer.read_bytes())
    data[len(data) // 2] ^= 1
    tokenizer.unlink()
    tokenizer.write_bytes(data)
    finding = models.check(context(copy.parent))
    assert finding.level == "error"
    assert "tokenizer.json" in finding.detail
