"""What an import measures of an encoder: vectors of the quantised graph against those of the float one."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from magnitude.models.description import EncoderShape
from magnitude.models.golden import Golden, GoldenVector, cosine
from magnitude.models.golden_texts import COSINE_TOLERANCE, GOLDEN_VERSION
from magnitude.models.graphs.build import build_graph
from magnitude.models.graphs.graph import GRAPH_FILE
from magnitude.models.graphs.linear import Bits
from magnitude.models.importing.graph_runner import EncoderRunner
from magnitude.models.importing.order import Report
from magnitude.models.manifest import Verification
from magnitude.models.sources import WeightSource

Texts = list[list[int]]

# INT8 activations may cost this much cosine against float ones; neighbours in a search change only beyond it.
_LEVEL_COSINE_LOSS = 0.002

GOLDEN_TOKENS = 48


class EncoderDecision(msgspec.Struct, frozen=True, kw_only=True):
    """How the product graph is to be built, and why. A float encoder has no accuracy level."""

    accuracy_level: int | None = None
    accuracy_reason: str = ""
    verification: tuple[Verification, ...] = ()


def decide_encoder(
    source: WeightSource, folder: Path, *, bits: Bits, texts: Texts, report: Report
) -> EncoderDecision:
    """Compares both accuracy levels with float; a float encoder needs no comparison."""
    if bits == 16:
        return EncoderDecision()
    report(0.1, "running the float reference")
    reference = _vectors(source, folder / "float", texts, bits=16, level=0)
    lowest: dict[int, float] = {}
    for level in (0, 4):
        report(0.3 + level / 16, f"running it at accuracy level {level}")
        vectors = _vectors(source, folder / f"level-{level}", texts, bits=bits, level=level)
        lowest[level] = min(_likeness(a, b) for a, b in zip(reference, vectors, strict=True))
    return EncoderDecision(
        accuracy_level=4 if lowest[4] >= lowest[0] - _LEVEL_COSINE_LOSS else 0,
        accuracy_reason=f"lowest cosine to float: {lowest[4]:.5f} with INT8 activations, {lowest[0]:.5f} with float",
        verification=tuple(
            Verification(
                reference="float32 weights",
                graph=f"accuracy level {level}",
                tokens=sum(map(len, texts)),
                cosine=round(value, 6),
                passed=value >= COSINE_TOLERANCE,
            )
            for level, value in lowest.items()
        ),
    )


def record_encoder(graph: Path, shape: EncoderShape, the_hash: str, texts: Texts) -> Golden:
    """What the finished graph makes of the beginnings of `texts`."""
    runner = EncoderRunner(graph, shape)
    shorts = [ids[:GOLDEN_TOKENS] for ids in texts]
    vectors = [GoldenVector(ids=ids, vector=[round(float(v), 6) for v in runner.vector(ids)]) for ids in shorts]
    return Golden(
        version=GOLDEN_VERSION, model_hash=the_hash, vectors=vectors, ort_version=str(onnxruntime.__version__)
    )


def _vectors(
    source: WeightSource, folder: Path, texts: Texts, *, bits: Bits, level: int
) -> list[NDArray[np.float32]]:
    folder.mkdir()
    built = build_graph(source, folder, bits=bits, accuracy_level=level)
    assert built.encoder is not None
    runner = EncoderRunner(folder / GRAPH_FILE, built.encoder)
    vectors = [runner.vector(ids[: built.encoder.max_tokens]) for ids in texts]
    del runner
    shutil.rmtree(folder)
    return vectors


def _likeness(reference: NDArray[np.float32], vector: NDArray[np.float32]) -> float:
    """Cosine; for a single score one minus the difference, so that 1 means equal there too."""
    return cosine(reference, vector) if len(reference) > 1 else 1.0 - float(abs(reference[0] - vector[0]))
