"""Which graphs of a model a session can have on this machine."""

from __future__ import annotations

from magnitude.kernels.library import Kernels, kernels
from magnitude.models.description import ModelDescription


def offered_graphs(model: ModelDescription, here: Kernels = kernels) -> tuple[str, ...]:
    """Those beside the model's own: the kernel plan first, which promises the most, where there are kernels."""
    if model.kernel_graphs and not here.why_not():
        return (*model.kernel_graphs, *model.graphs)
    return model.graphs
