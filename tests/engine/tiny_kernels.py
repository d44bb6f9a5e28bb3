"""A decoder of one layer with blocked weights, large enough that they lie in the data file, and its kernel plan."""

from __future__ import annotations

from pathlib import Path

from gguf import GGMLQuantizationType as Kind

from magnitude.models.description import KERNEL_GRAPH_FILE, WEIGHTS_FILE, ModelDescription
from magnitude.models.graphs.build import build_graph
from magnitude.models.graphs.graph import SERVING_GRAPH_FILE
from magnitude.models.graphs.kernel_plan import write_kernel_plan
from magnitude.models.sources import open_source
from models.tiny_gguf import write


def write_kernel_decoder(folder: Path) -> ModelDescription:
    folder.mkdir(parents=True, exist_ok=True)
    source = open_source(write(folder / "tiny.gguf", Kind.Q4_1))
    built = build_graph(source, folder, bits=4, wide_channels={"layers.0.mlp.in": (5, 17, 200)})
    (folder / "tiny.gguf").unlink()
    assert write_kernel_plan(folder / SERVING_GRAPH_FILE, folder / KERNEL_GRAPH_FILE)
    return ModelDescription(
        name="tiny",
        kind="decoder",
        family="llama",
        folder=str(folder),
        graph_file=SERVING_GRAPH_FILE,
        model_hash="ab" * 32,
        weight_bytes=(folder / WEIGHTS_FILE).stat().st_size,
        decoder=built.decoder,
    )
