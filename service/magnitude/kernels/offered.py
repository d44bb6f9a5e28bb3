"""Which graphs of a model a session can have on this machine, and what their results rest on."""

from __future__ import annotations

from magnitude.kernels.library import Kernels, kernels
from magnitude.models.description import KERNEL_GRAPH_FILES, ModelDescription


def offered_graphs(model: ModelDescription, here: Kernels = kernels) -> tuple[str, ...]:
    """Those beside the model's own: the kernel plan first, which promises the most, where there are kernels."""
    if model.kernel_graphs and not here.why_not():
        return (*model.kernel_graphs, *model.graphs)
    return model.graphs


def computed_by(graph_file: str, here: Kernels = kernels) -> tuple[str, ...]:
    """What the results of a graph depend on beside ONNX Runtime and the processor: the build of the kernels, for a
    kernel plan where there are such."""
    if graph_file not in KERNEL_GRAPH_FILES or here.why_not():
        return ()
    return (f"kernels {here.library().sha256}",)
