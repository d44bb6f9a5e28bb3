"""A kernel plan is offered where there are kernels, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from magnitude.kernels.library import KernelLibrary, Kernels
from magnitude.kernels.locate import VARIABLE
from magnitude.kernels.offered import offered_graphs
from magnitude.models.description import KERNEL_GRAPH_FILE, ModelDescription

MODEL = ModelDescription(
    name="tiny",
    kind="decoder",
    family="llama",
    folder="/models/tiny",
    graph_file="serving.onnx",
    model_hash="ab" * 32,
    weight_bytes=1,
    graphs=("separate.onnx",),
    kernel_graphs=(KERNEL_GRAPH_FILE,),
)


def test_it_comes_first_where_there_are_kernels(kernels_here: KernelLibrary) -> None:
    assert offered_graphs(MODEL, Kernels()) == (KERNEL_GRAPH_FILE, "separate.onnx")


def test_other_graphs_are_offered_without_kernels(no_kernels_here: None) -> None:
    assert offered_graphs(MODEL, Kernels()) == ("separate.onnx",)


def test_kernels_that_cannot_be_used_are_as_good_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"\x7fELF")
    monkeypatch.setenv(VARIABLE, str(damaged))
    assert offered_graphs(MODEL, Kernels()) == ("separate.onnx",)


def test_a_model_without_a_kernel_plan_does_not_ask_for_kernels(kernels_here: KernelLibrary) -> None:
    class Asked(Kernels):
        def library(self) -> KernelLibrary:
            raise AssertionError("kernels were loaded")

    plain = msgspec.structs.replace(MODEL, kernel_graphs=())
    assert offered_graphs(plain, Asked()) == ("separate.onnx",)
