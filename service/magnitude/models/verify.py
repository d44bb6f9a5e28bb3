"""What an import measures before it decides: the built graph against a float one, over the golden texts.

The reference is the same weights in float32 (dequantised where the source is quantised). Where that does not fit
into memory, it is the quantised graph with float activations (accuracy level 0).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from magnitude.errors import ImportFailed
from magnitude.models.build import BuildResult, KvScales, build_graph
from magnitude.models.description import DecoderShape, KvType
from magnitude.models.golden import (
    COSINE_TOLERANCE,
    GOLDEN_VERSION,
    Agreement,
    Golden,
    GoldenPrompt,
    GoldenVector,
    agreement,
    choose_accuracy_level,
    cosine,
    golden_prompt,
    merged,
)
from magnitude.models.graph import DATA_FILE, GRAPH_FILE
from magnitude.models.graph_runner import DecoderRunner, EncoderRunner
from magnitude.models.import_job import Report
from magnitude.models.manifest import Verification
from magnitude.models.sources import WeightSource

Bits = Literal[4, 8, 16]

# A float graph needs its weights twice while ONNX Runtime packs them for its matrix products (seen as RSS at load),
# and activations and logits beside them.
_FLOAT_COPIES = 2.2
_BESIDE_BYTES = 400 << 20

# Golden prompts: enough to cover every text, short enough that a slow board runs them in a few seconds.
_PROMPT_TOKENS = 48
_FEWEST_TOKENS = 8

# A graph that has lost this much against float is broken, not coarse: 4-bit weights keep more than 0.8 of the top
# tokens and stay below 0.3 nats even on the smallest models.
_BROKEN_TOP1 = 0.5
_BROKEN_KL_NATS = 2.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided, and why. `record` makes the content of `golden.json` from the finished graph."""

    accuracy_level: int | None
    accuracy_reason: str
    kv_type: KvType
    kv_scales: tuple[KvScales, ...] | None
    kv_origin: str
    verification: tuple[Verification, ...]
    record: Callable[[Path, BuildResult, str], bytes]


def verify_decoder(
    source: WeightSource,
    check: Path,
    *,
    bits: Bits,
    kv: Literal["float", "int8"],
    texts: list[list[int]],
    memory_bytes: int,
    report: Report,
) -> Outcome:
    """Chooses accuracy level and KV scales by measurement. `check` is an empty folder for scratch graphs.

    Raises `ImportFailed` when the built graph is not a coarser form of the float one but a broken one.
    """
    longest = source.config.context_length
    texts = [ids[:longest] for ids in texts]
    with_float = bits != 16 and _float_fits(source, check, memory_bytes)
    reference: list[NDArray[np.float32]] = []
    reference_name = "float32 weights" if with_float or bits == 16 else "the same graph with float activations"
    scales: tuple[KvScales, ...] | None = None
    if with_float:
        report(0.05, "building the float reference")
        runner, folder = _scratch(source, check / "float", bits=16, accuracy_level=0)
        report(0.2, "running the float reference")
        reference = _kept_rows(runner, texts, check)
        scales = _kv_scales(runner, texts) if kv == "int8" else None
        del runner
        shutil.rmtree(folder)
    report(0.35, "building the quantised graph")
    level: int | None = None
    reason = ""
    folder = check / "quantised"
    runner, folder = _scratch(source, folder, bits=bits, accuracy_level=4)
    results: dict[str, Agreement] = {}
    if bits == 16:
        reference = _kept_rows(runner, texts, check)
        scales = _kv_scales(runner, texts) if kv == "int8" else None
    else:
        del runner
        report(0.5, "running it with float activations")
        runner = DecoderRunner(_with_level(folder, 0), _shape(source))
        if not reference:
            reference = _kept_rows(runner, texts, check)
            scales = _kv_scales(runner, texts) if kv == "int8" else None
        at_0 = _compare(runner, texts, reference)
        del runner
        report(0.6, "running it with INT8 activations")
        runner = DecoderRunner(folder / GRAPH_FILE, _shape(source))
        at_4 = _compare(runner, texts, reference)
        level, reason = choose_accuracy_level(at_4, at_0)
        results = {"accuracy level 0": at_0, "accuracy level 4": at_4}
        if level == 0:
            runner = DecoderRunner(folder / "level-0.onnx", _shape(source))
    kv_type: KvType = "float32"
    if scales is not None:
        report(0.7, "running it with an INT8 KV cache")
        kv_type = "int8"
        del runner
        shutil.rmtree(folder)
        runner, folder = _scratch(
            source, check / "int8-kv", bits=bits, accuracy_level=level or 0, kv_type=kv_type, kv_scales=scales
        )
        results[f"INT8 KV, accuracy level {level}"] = _compare(runner, texts, reference)
    prompts = _choose_prompts(runner, texts)
    del runner
    entries = tuple(_entry(reference_name, name, found) for name, found in results.items())
    final = list(results.values())[-1] if scales is not None or level == 4 else results.get("accuracy level 0")
    if final is not None and (final.top1 < _BROKEN_TOP1 or not final.kl_nats < _BROKEN_KL_NATS):
        raise ImportFailed(
            f"the built graph does not compute what the weights say: top-1 {final.top1:.2f}, KL {final.kl_nats:.2f} nats",
            hint="The source is damaged, or this model differs from its family in a way that is not supported",
        )
    return Outcome(
        accuracy_level=level,
        accuracy_reason=reason,
        kv_type=kv_type,
        kv_scales=scales,
        kv_origin=""
        if scales is None
        else f"largest magnitudes over {sum(map(len, texts))} golden tokens, per layer",
        verification=entries,
        record=lambda graph, built, the_hash: record_decoder(graph, built.decoder, the_hash, prompts),
    )


def verify_encoder(
    source: WeightSource, check: Path, *, bits: Bits, texts: list[list[int]], report: Report
) -> Outcome:
    """Compares a quantised encoder with the float one; a float encoder needs no comparison."""
    verification: tuple[Verification, ...] = ()
    level: int | None = None
    reason = ""
    if bits != 16:
        report(0.1, "running the float reference")
        reference = _vectors(source, check / "float", 16, 0, texts)
        found = {}
        for candidate in (4, 0):
            report(0.4 if candidate == 4 else 0.6, f"running it at accuracy level {candidate}")
            vectors = _vectors(source, check / f"level-{candidate}", bits, candidate, texts)
            found[candidate] = min(_likeness(a, b) for a, b in zip(reference, vectors, strict=True))
        # One step of the golden set's tolerance is what activations may cost.
        level = 4 if found[4] >= found[0] - (1 - COSINE_TOLERANCE) else 0
        reason = f"lowest cosine to float: {found[4]:.5f} with INT8 activations, {found[0]:.5f} with float ones"
        verification = tuple(
            Verification(
                reference="float32 weights",
                graph=f"accuracy level {candidate}",
                tokens=sum(map(len, texts)),
                cosine=lowest,
                passed=lowest >= COSINE_TOLERANCE,
            )
            for candidate, lowest in found.items()
        )
    return Outcome(
        accuracy_level=level,
        accuracy_reason=reason,
        kv_type="float32",
        kv_scales=None,
        kv_origin="",
        verification=verification,
        record=lambda graph, built, the_hash: _record_encoder(graph, built, the_hash, texts),
    )


def record_decoder(graph: Path, shape: DecoderShape | None, the_hash: str, prompts: Iterable[list[int]]) -> bytes:
    """Content of `golden.json`: what the finished graph says to `prompts`, where it is sure of it."""
    assert shape is not None
    runner = DecoderRunner(graph, shape)
    kept: list[GoldenPrompt] = []
    for ids in prompts:
        prompt = golden_prompt(ids, runner.logits(ids)[-1])
        if prompt is not None:
            kept.append(prompt)
    return _encode(Golden(version=GOLDEN_VERSION, model_hash=the_hash, prompts=kept))


def choose_golden_prompts(
    rows_of: Callable[[list[int]], NDArray[np.float32]], texts: list[list[int]]
) -> list[list[int]]:
    """For each text its longest short beginning after which the next token is clear. `rows_of` gives all rows."""
    prompts = []
    for ids in texts:
        short = ids[:_PROMPT_TOKENS]
        rows = rows_of(short)
        for length in range(len(short), _FEWEST_TOKENS - 1, -1):
            if golden_prompt(short[:length], rows[length - 1]) is not None:
                prompts.append(short[:length])
                break
    return prompts


def _choose_prompts(runner: DecoderRunner, texts: list[list[int]]) -> list[list[int]]:
    return choose_golden_prompts(runner.logits, texts)


def _record_encoder(graph: Path, built: BuildResult, the_hash: str, texts: list[list[int]]) -> bytes:
    assert built.encoder is not None
    runner = EncoderRunner(graph, built.encoder)
    vectors = [
        GoldenVector(
            ids=ids[:_PROMPT_TOKENS], vector=[round(float(v), 6) for v in runner.vector(ids[:_PROMPT_TOKENS])]
        )
        for ids in texts
    ]
    return _encode(Golden(version=GOLDEN_VERSION, model_hash=the_hash, vectors=vectors))


def _encode(golden: Golden) -> bytes:
    made = msgspec.structs.replace(golden, ort_version=onnxruntime.__version__)
    return msgspec.json.encode(made) + b"\n"


def _float_fits(source: WeightSource, check: Path, memory_bytes: int) -> bool:
    float_bytes = 4 * sum(int(np.prod(source.shape(name))) for name in source.tensor_names())
    disk_bytes = shutil.disk_usage(check).free
    return float_bytes * _FLOAT_COPIES + _BESIDE_BYTES < memory_bytes and float_bytes * 1.5 < disk_bytes


def _scratch(
    source: WeightSource, folder: Path, *, bits: Bits, accuracy_level: int, **kv: Any
) -> tuple[DecoderRunner, Path]:
    """A graph with the logits of all positions, for comparison only."""
    folder.mkdir()
    built = build_graph(source, folder, bits=bits, accuracy_level=accuracy_level, all_logits=True, **kv)
    assert built.decoder is not None
    return DecoderRunner(folder / GRAPH_FILE, built.decoder), folder


def _shape(source: WeightSource) -> DecoderShape:
    config = source.config
    return DecoderShape(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        context_length=config.context_length,
        logits_all_positions=True,
    )


def _with_level(folder: Path, level: int) -> Path:
    """A second graph beside the first, on the same data file, with another accuracy level in every product."""
    model = onnx.load(str(folder / GRAPH_FILE), load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = level
    path = folder / f"level-{level}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _kept_rows(runner: DecoderRunner, texts: list[list[int]], check: Path) -> list[NDArray[np.float32]]:
    """The reference's logits, in files: a wide vocabulary would need gigabytes of memory otherwise."""
    kept = []
    for index, ids in enumerate(texts):
        path = check / f"reference-{index}.npy"
        np.save(path, runner.logits(ids))
        kept.append(np.load(path, mmap_mode="r"))
    return kept


def _kv_scales(runner: DecoderRunner, texts: list[list[int]]) -> tuple[KvScales, ...]:
    """One scale a layer for K and one for V: the largest magnitude becomes 127."""
    peaks = np.max([runner.key_value_peaks(ids) for ids in texts], axis=0)
    peaks = np.maximum(peaks, 1e-6)  # a layer that is all zero still needs a scale
    return tuple(KvScales(key=(float(k) / 127,), value=(float(v) / 127,)) for k, v in peaks)


def _compare(runner: DecoderRunner, texts: list[list[int]], reference: list[NDArray[np.float32]]) -> Agreement:
    return merged([agreement(rows, runner.logits(ids)) for ids, rows in zip(texts, reference, strict=True)])


def _entry(reference: str, graph: str, found: Agreement) -> Verification:
    return Verification(
        reference=reference,
        graph=graph,
        tokens=found.tokens,
        top1_agreement=round(found.top1, 4),
        kl_nats=round(found.kl_nats, 5),
        passed=found.top1 >= _BROKEN_TOP1 and found.kl_nats < _BROKEN_KL_NATS,
    )


def _vectors(
    source: WeightSource, folder: Path, bits: Bits, level: int, texts: list[list[int]]
) -> list[NDArray[np.float32]]:
    folder.mkdir()
    built = build_graph(source, folder, bits=bits, accuracy_level=level)
    assert built.encoder is not None
    runner = EncoderRunner(folder / GRAPH_FILE, built.encoder)
    longest = built.encoder.max_tokens
    vectors = [runner.vector(ids[:longest]) for ids in texts]
    del runner
    (folder / DATA_FILE).unlink()
    return vectors


def _likeness(reference: NDArray[np.float32], vector: NDArray[np.float32]) -> float:
    """Cosine; for a single score one minus the difference, so that 1 means equal there too."""
    return cosine(reference, vector) if len(reference) > 1 else 1.0 - float(abs(reference[0] - vector[0]))
