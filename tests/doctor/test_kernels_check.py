"""What the doctor says of the library of kernels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from magnitude.config import EngineSettings, Settings
from magnitude.doctor import DoctorContext
from magnitude.doctor.checks import kernels
from magnitude.kernels.library import VERSION, KernelLibrary
from magnitude.kernels.locate import VARIABLE
from magnitude.paths import find_paths


def context(home: Path, python: str | None = None) -> DoctorContext:
    made = DoctorContext(settings=Settings(), paths=find_paths({"MAGNITUDE_HOME": str(home)}))
    return made if python is None else msgspec.structs.replace(made, python=python)


def test_a_library_that_loads_is_named_with_its_instruction_set(
    kernels_here: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(kernels_here.path))
    finding = kernels.check(context(tmp_path))
    assert finding.level == "ok"
    assert finding.title == f"Kernels of version {VERSION}, on {kernels_here.instruction_set}"
    assert finding.detail.startswith(f"{kernels_here.path}\nNot used: engine.graph is serving")


def test_kernels_that_are_asked_for_are_not_called_unused(
    kernels_here: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(kernels_here.path))
    settings = Settings(engine=EngineSettings(graph="kernels"))
    finding = kernels.check(msgspec.structs.replace(context(tmp_path), settings=settings))
    assert finding.detail == str(kernels_here.path)


def test_without_a_library_it_says_what_is_lost_and_how_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone.so"))
    finding = kernels.check(context(tmp_path))
    assert finding.level == "notice"
    assert "gone.so, which is no file" in finding.detail
    assert "ONNX Runtime's own operators" in finding.detail
    assert "onnxruntime-headers" in finding.advice


def test_a_damaged_library_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "damaged.so").write_bytes(b"\x7fELF and nothing else")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "damaged.so"))
    assert "cut off" in kernels.check(context(tmp_path)).detail


def test_whoever_switches_kernels_off_is_not_bothered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    finding = kernels.check(context(tmp_path))
    assert (finding.level, finding.title, finding.advice) == ("ok", "Kernels are switched off", "")


@pytest.mark.parametrize(
    ("status", "output", "title"),
    [(-4, "", "by signal 4"), (1, "", "with status 1"), (0, "", "unexpected"), (0, "[1]", "unexpected")],
)
def test_a_child_that_ends_badly_is_a_warning(status: int, output: str, title: str) -> None:
    finding = kernels.judge(status, output, "Traceback\nOSError: no memory")
    assert finding.level == "warning"
    assert title in finding.title
    assert finding.advice


def test_a_python_that_cannot_be_started_is_a_warning(tmp_path: Path) -> None:
    assert kernels.check(context(tmp_path, str(tmp_path / "python"))).level == "warning"


def test_decoders_without_a_plan_are_named() -> None:
    said = json.dumps({"path": "/x.so", "version": 2, "instruction_set": "avx2"})
    finding = kernels.judge(0, said, "", ("old-model",))
    assert finding.level == "notice"
    assert "old-model" in finding.detail
    assert kernels.judge(0, said, "").level == "ok"


@pytest.mark.models
def test_a_model_that_was_imported_without_kernels_has_no_plan(magnitude_home: Path, tmp_path: Path) -> None:
    for name in ("smollm2-135m-instruct", "all-minilm-l6-v2"):
        shutil.copytree(magnitude_home / "models" / name, tmp_path / "models" / name, symlinks=True)
    manifest = tmp_path / "models/smollm2-135m-instruct/manifest.json"
    said = json.loads(manifest.read_text())
    said["graphs"] = [plan for plan in said["graphs"] if not plan.get("needs")]
    manifest.write_text(json.dumps(said))
    assert kernels.without_plan(context(tmp_path)) == ("smollm2-135m-instruct",)
