from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from magnitude.board import HostRoots
from magnitude.config import ModelsSettings, Settings
from magnitude.doctor import DoctorContext
from magnitude.doctor.checks import models
from magnitude.models.adapters import ADAPTER_FILE, AdapterManifest, write_adapter_manifest
from magnitude.models.integrity import file_entry
from magnitude.models.manifest import Manifest, SourceEntry, write_manifest
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


def test_adapters_are_hashed_and_a_changed_one_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "chat"
    adapter = folder / "adapters/poet"
    adapter.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"graph")
    (adapter / ADAPTER_FILE).write_bytes(b"matrices")
    files = {"model.onnx": file_entry(folder / "model.onnx")}
    write_manifest(
        folder,
        Manifest(
            schema=1,
            name="chat",
            kind="decoder",
            family="llama",
            graph_file="model.onnx",
            source=SourceEntry(format="gguf", file="chat.gguf", sha256="00", size_bytes=1),
            files=files,
            weight_bytes=1,
            model_hash="ab",
        ),
    )
    write_adapter_manifest(
        adapter,
        AdapterManifest(
            schema=1,
            name="poet",
            base="chat",
            base_hash="ab",
            source_format="peft",
            source_file="poet",
            source_sha256="00",
            adapter=file_entry(adapter / ADAPTER_FILE),
            rank=1,
            modules=(),
            layers=1,
            parameters=1,
        ),
    )
    finding = models.check(context(tmp_path))
    assert finding.level == "ok"
    assert "chat:poet (adapter" in finding.detail
    (adapter / ADAPTER_FILE).write_bytes(b"mATRICES")
    finding = models.check(context(tmp_path))
    assert finding.level == "error"
    assert "chat:poet: " in finding.detail and "sha256 differs" in finding.detail


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


def test_a_variant_without_its_model_is_a_warning_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"graph")
    write_manifest(
        folder,
        Manifest(
            schema=1,
            name="small",
            kind="decoder",
            family="llama",
            graph_file="model.onnx",
            source=SourceEntry(format="gguf", file="chat.gguf", sha256="00", size_bytes=1),
            files={"model.onnx": file_entry(folder / "model.onnx")},
            weight_bytes=1,
            model_hash="ab",
            variant_of="chat",
            parent_hash="cd",
        ),
    )
    finding = models.check(context(tmp_path))
    assert finding.level == "warning"
    assert "small: it is a variant of chat, which is not there" in finding.detail
