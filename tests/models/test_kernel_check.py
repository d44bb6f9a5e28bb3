"""The kernel plan in an import: written with or without kernels, used only where it was compared."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from gguf import GGMLQuantizationType as Kind
from test_kernel_plan import TEXTS, build
from tiny_sources import decoder_folder

from magnitude.kernels.library import KernelLibrary
from magnitude.models.catalogue import open_folder
from magnitude.models.description import KERNEL_GRAPH_FILE
from magnitude.models.graphs.graph import SERVING_GRAPH_FILE
from magnitude.models.graphs.kernel_plan import write_kernel_plan
from magnitude.models.importing.accuracy import FALLBACK_GRAPH_FILE, write_fallback
from magnitude.models.importing.kernel_check import add_kernel_plan
from magnitude.models.importing.parent import import_model
from magnitude.models.manifest import NEEDS_KERNELS, read_manifest


def test_a_plan_as_near_to_float_as_the_serving_graph_counts(kernels_here: KernelLibrary, tmp_path: Path) -> None:
    shape = build(tmp_path, Kind.Q4_1)
    write_fallback(tmp_path / SERVING_GRAPH_FILE, tmp_path / FALLBACK_GRAPH_FILE)
    found = add_kernel_plan(tmp_path, SERVING_GRAPH_FILE, FALLBACK_GRAPH_FILE, shape, TEXTS)
    assert found.plan is not None
    assert (found.plan.file, found.plan.needs, found.plan.verified) == (KERNEL_GRAPH_FILE, NEEDS_KERNELS, True)
    assert not found.plan.equal and found.plan.largest_difference > 0
    (verification,) = found.verification
    assert verification.passed and verification.tokens == 24 * 3 + 3
    assert not found.notes
    assert kernels_here.threads == 1  # they are given back


def test_without_kernels_the_plan_is_written_and_not_verified(no_kernels_here: None, tmp_path: Path) -> None:
    shape = build(tmp_path, Kind.Q4_1)
    found = add_kernel_plan(tmp_path, SERVING_GRAPH_FILE, None, shape, TEXTS)
    assert found.plan is not None and not found.plan.verified
    assert (tmp_path / KERNEL_GRAPH_FILE).exists()
    assert not found.verification and not found.notes


def test_a_plan_that_computes_something_else_is_removed_and_told(kernels_here: KernelLibrary, tmp_path: Path) -> None:
    def swapped(serving: Path, target: Path) -> bool:
        assert write_kernel_plan(serving, target)
        model = onnx.load(str(target), load_external_data=False)
        gated = next(node for node in model.graph.node if any(a.name == "gated" for a in node.attribute))
        gains = [node.input[4] for node in model.graph.node if node.op_type == "Product" and len(node.input) > 4]
        gated.input[4] = next(name for name in gains if name.startswith("final"))  # of another norm
        target.write_bytes(model.SerializeToString())
        return True

    shape = build(tmp_path, Kind.Q4_0)
    found = add_kernel_plan(tmp_path, SERVING_GRAPH_FILE, None, shape, TEXTS, write=swapped)
    assert found.plan is None
    assert not found.verification[0].passed
    assert "nats" in found.notes[0]
    assert not (tmp_path / KERNEL_GRAPH_FILE).exists()


def test_a_graph_that_allows_no_plan_has_none(kernels_here: KernelLibrary, tmp_path: Path) -> None:
    shape = build(tmp_path, Kind.F32, bits=16)
    found = add_kernel_plan(tmp_path, SERVING_GRAPH_FILE, None, shape, TEXTS)
    assert (found.plan, found.verification, found.notes) == (None, (), ())


def test_an_import_with_kernels_names_the_plan_and_another_machine_reads_it(
    kernels_here: KernelLibrary, golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=tmp_path / "models", bits=4)
    assert model.kernel_graphs == (KERNEL_GRAPH_FILE,)
    assert KERNEL_GRAPH_FILE not in model.graphs
    manifest = read_manifest(tmp_path / "models" / "tiny")
    assert KERNEL_GRAPH_FILE in manifest.files
    monkeypatch.setenv("MAGNITUDE_KERNELS", "")
    assert open_folder(tmp_path / "models" / "tiny") == model


def test_an_import_without_kernels_leaves_the_plan_unused(
    no_kernels_here: None, golden: Path, tmp_path: Path
) -> None:
    model = import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=tmp_path / "models", bits=4)
    assert model.kernel_graphs == ()
    manifest = read_manifest(tmp_path / "models" / "tiny")
    assert [plan.verified for plan in manifest.graphs if plan.needs == NEEDS_KERNELS] == [False]


@pytest.mark.models
def test_the_embedded_model_is_imported_with_a_verified_kernel_plan(
    kernels_here: KernelLibrary, embedded_gguf: Path, tmp_path: Path
) -> None:
    source = tmp_path / "smol.gguf"
    shutil.copy(embedded_gguf, source)
    model = import_model(source, models_folder=tmp_path / "models")
    assert model.kernel_graphs == (KERNEL_GRAPH_FILE,)
