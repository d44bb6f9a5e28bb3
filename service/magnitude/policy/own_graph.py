"""Which of a model's graphs it is loaded with: the serving graph, or the kernel plan alone."""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.models.description import ModelDescription

GraphWish = Literal["serving", "measured", "kernels"]


class OwnGraph(msgspec.Struct, frozen=True):
    """The model as it is to be loaded, and why that is not as it was wished for ("" where it is)."""

    model: ModelDescription
    refused: str = ""


def own_graph(model: ModelDescription, wish: GraphWish, no_kernels: str) -> OwnGraph:
    """`model` with its graphs as `wish` says. `no_kernels`: why there are no kernels here, as a sentence; "" where
    there are.

    By its kernel plan alone a decoder has no session of its serving graph beside it, which would hold the weights a
    second time; other graphs are then none for further sessions either. "measured" leaves the kernel plan to the
    strategy loop, which changes graphs in the middle of answers: the two round differently, and where two tokens are
    nearly as good an answer may come out otherwise. Models without such plans, as encoders are, keep what they have.
    """
    if model.decoder is None or wish == "measured":
        return OwnGraph(model)
    if wish == "serving":
        return OwnGraph(msgspec.structs.replace(model, kernel_graphs=()))
    if refused := _why_not(model, no_kernels):
        return OwnGraph(model, refused)
    plan = model.kernel_graphs[0]
    return OwnGraph(
        msgspec.structs.replace(
            model, graph_file=plan, serving_graph_file=model.graph_file, graphs=(), kernel_graphs=()
        )
    )


def _why_not(model: ModelDescription, no_kernels: str) -> str:
    if no_kernels:
        return no_kernels
    if model.graph_file == model.lora_graph_file:
        return "a kernel plan has no inputs for the adapters that it is served with"
    if not model.kernel_graphs:
        return "no kernel plan was compared with float activations when it was imported; import it again with kernels"
    return ""
