"""Build the ONNX graph of a model from its weights."""

from __future__ import annotations

from pathlib import Path

import msgspec

from magnitude.models.description import DecoderShape, EncoderShape, KvType
from magnitude.models.families import FAMILIES
from magnitude.models.graphs.decoder_graph import DecoderGraph, KvScales
from magnitude.models.graphs.encoder_graph import EncoderGraph
from magnitude.models.graphs.graph import DATA_FILE, GRAPH_FILE, SERVING_GRAPH_FILE, GraphWriter
from magnitude.models.graphs.last_row import write_last_row_graph
from magnitude.models.graphs.linear import Bits, StoredWeights, WideChannels
from magnitude.models.sources.source import WeightSource, refuse

__all__ = [
    "DATA_FILE",
    "GRAPH_FILE",
    "SERVING_GRAPH_FILE",
    "Bits",
    "BuildResult",
    "KvScales",
    "StoredWeights",
    "WideChannels",
    "build_graph",
]


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was built: the file of the graph that serves, its shape, and how its weights were stored."""

    graph_file: str
    decoder: DecoderShape | None
    encoder: EncoderShape | None
    weights: tuple[StoredWeights, ...]


def build_graph(
    source: WeightSource,
    folder: Path,
    *,
    bits: Bits,
    kv_type: KvType = "float32",
    accuracy_level: int = 4,
    kv_scales: tuple[KvScales, ...] | None = None,
    wide_channels: WideChannels | None = None,
) -> BuildResult:
    """Write a model's graphs and `model.onnx.data` into `folder` and flush them to the disk.

    An encoder gets `model.onnx`. A decoder gets `serving.onnx`, which computes the logits of the rows that it is
    asked for, and `model.onnx` over the same weights, which computes those of each row's last token: the form that
    ONNX Runtime GenAI knows.

    `bits` is the width of what is quantised here: float weights, and Q8_0 blocks in a 4-bit build. Other block
    formats are repacked without loss whatever `bits` says; only a look-up table with minima is quantised again, to
    8 bits. Embedding and output layer get 8 bits where they are quantised. 16 means not quantised: every weight is
    stored as float32, because ONNX Runtime's CPU operators compute in float32 (half-precision weights would be
    converted at load) and dequantised blocks are not exact in float16.

    `accuracy_level` is MatMulNBits' (4: activations in INT8, 0: float). With float activations ONNX Runtime has no
    fast kernel for a few tokens: on one AVX2 core 4-bit products take 4 times as long, 8-bit ones (the output layer)
    70 times. `kv_scales` are needed for, and only for, an int8 KV cache. `wide_channels` of a decoder's norms are
    multiplied in float whatever the level (`linear.py`).

    Raises `ImportFailed` when tensors are missing, have a wrong shape or have no place in the graph (all are listed),
    and `OSError` when the folder cannot be written; half-written files are the caller's to remove.
    """
    check_tensors(source)
    with GraphWriter(folder) as graph:
        if source.config.kind == "decoder":
            decoder = DecoderGraph(
                graph,
                source,
                bits=bits,
                kv_type=kv_type,
                accuracy_level=accuracy_level,
                kv_scales=kv_scales,
                wide_channels=wide_channels,
            )
            shape = decoder.build()
            graph.save(SERVING_GRAPH_FILE)
            result = BuildResult(
                graph_file=SERVING_GRAPH_FILE, decoder=shape, encoder=None, weights=tuple(decoder.account)
            )
            write_last_row_graph(folder / SERVING_GRAPH_FILE, folder / GRAPH_FILE)
        else:
            encoder = EncoderGraph(graph, source, bits=bits, accuracy_level=accuracy_level)
            result = BuildResult(
                graph_file=GRAPH_FILE, decoder=None, encoder=encoder.build(), weights=tuple(encoder.account)
            )
            graph.save()
    return result


def check_tensors(source: WeightSource) -> None:
    """Compare the source's tensors with those that its family's graph reads.

    Raises `ImportFailed` that names all that are missing, misshapen, or would be left out of the computation.
    """
    family = FAMILIES[source.family]
    wanted, have = family.tensors(source.config), source.tensor_names()
    problems = [f"{name} is missing" for name in wanted if name not in have]
    for name, shape in wanted.items():
        if name in have and source.shape(name) != shape:
            problems.append(f"{name} has the shape {list(source.shape(name))}, not {list(shape)}")
    problems += [
        f"{name} has no place in the graph" for name in sorted(have - set(wanted)) if not family.ignores(name)
    ]
    refuse(
        f"The weights do not fit a model of the family {source.family}",
        problems,
        hint="The files are incomplete, or the model differs from its family in a way that is not supported",
    )
