"""What an import measures of a decoder before it decides: the built graph against a float one, over the golden texts.

The reference is the same weights in float32 (dequantised where the source is quantised). Where that does not fit
into memory, it is the quantised graph with float activations (accuracy level 0).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from magnitude.errors import ImportFailed
from magnitude.models.description import DecoderShape, KvType
from magnitude.models.golden import (
    Agreement,
    Golden,
    GoldenPrompt,
    agreement,
    golden_prompt,
    merged,
)
from magnitude.models.golden_texts import GOLDEN_VERSION
from magnitude.models.graphs.build import KvScales, build_graph
from magnitude.models.graphs.graph import SERVING_GRAPH_FILE
from magnitude.models.graphs.linear import Bits, WideChannels
from magnitude.models.importing.accuracy import FLOAT, INT8, PLANS, Plan, apply_plan, choose_plan
from magnitude.models.importing.graph_runner import DecoderRunner
from magnitude.models.importing.kv_check import KV_KL_NATS, halves, kv_cost
from magnitude.models.importing.kv_scales import HEADROOM, calibrate_kv
from magnitude.models.importing.order import Report
from magnitude.models.importing.wide_channels import find_wide_channels
from magnitude.models.manifest import Verification
from magnitude.models.sources import WeightSource

Texts = list[list[int]]
Rows = NDArray[np.float32]

# A float graph needs its weights twice while ONNX Runtime packs them for its matrix products (seen as RSS at load),
# and activations and logits beside them.
_FLOAT_COPIES = 2.2
_BESIDE_BYTES = 400 << 20

# Positions of each text that are compared: together some 500. With twice as many the KL changed by a tenth.
_COMPARED_TOKENS = 64

# Golden prompts: enough to cover every text, short enough that a slow board runs them in a few seconds.
_PROMPT_TOKENS = 48
FEWEST_TOKENS = 8


# A graph that has lost this much against float is broken, not coarse: 4-bit weights keep more than 0.8 of the top
# tokens and stay below 0.3 nats even on the smallest models.
_BROKEN_TOP1 = 0.5
_BROKEN_KL_NATS = 2.0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How the product graph is to be built, why, and the prompts for its golden set."""

    plan: Plan | None
    accuracy_reason: str
    wide_channels: WideChannels
    kv_type: KvType
    kv_scales: tuple[KvScales, ...] | None
    kv_origin: str
    verification: tuple[Verification, ...]
    prompts: Texts
    notes: tuple[str, ...] = ()


class DecoderCheck:
    """One decoder under examination. `folder` is an empty scratch folder."""

    def __init__(
        self,
        source: WeightSource,
        folder: Path,
        *,
        bits: Bits,
        kv: Literal["float", "int8"],
        texts: Texts,
        report: Report,
        kv_kl_nats: float = KV_KL_NATS,
    ) -> None:
        self._source = source
        self._folder = folder
        self._bits: Bits = bits
        self._texts = compared_texts(source, texts)
        self._all_texts = [ids[: source.config.context_length] for ids in texts]
        self._kv = kv
        self._report = report
        self._kv_kl_nats = kv_kl_nats
        self._reference: list[Rows] = []
        self._reference_name = ""
        self._wide: WideChannels = {}
        self._scales: tuple[KvScales, ...] | None = None
        self._entries: list[Verification] = []

    def decide(self, *, memory_bytes: int) -> Decision:
        """Builds scratch graphs, compares them, and chooses. Raises `ImportFailed` for a graph that is broken."""
        plan: Plan | None = None
        reason = ""
        if self._bits == 16:
            self._report(0.1, "building the float graph")
            runner = self._scratch("float", bits=16)
        else:
            if self._float_fits(memory_bytes):
                self._report(0.05, "building the float reference")
                runner = self._scratch("float", bits=16)
                self._report(0.2, "running the float reference")
                self._keep("float32 weights", runner)
                del runner
                shutil.rmtree(self._folder / "float")
            plan, reason, runner = self._choose_plan()
        notes: tuple[str, ...] = ()
        if self._kv == "int8":
            with_int8, notes = self._int8_kv(plan, runner)
            runner = with_int8 or runner
        return Decision(
            plan=plan,
            accuracy_reason=reason,
            wide_channels=self._wide if plan is not None and plan.wide_channels else {},
            kv_type="float32" if self._scales is None else "int8",
            kv_scales=self._scales,
            kv_origin=self._kv_origin(),
            verification=tuple(self._entries),
            prompts=clear_prompts(runner.logits, self._texts),
            notes=notes,
        )

    def _choose_plan(self) -> tuple[Plan, str, DecoderRunner]:
        self._report(0.35, "building the quantised graph")
        exact = self._scratch("exact", bits=self._bits, accuracy_level=FLOAT)
        self._report(0.4, "running it with float activations")
        if not self._reference:
            self._keep("the same graph with float activations", exact)
        floats = self._compare("float activations", exact)
        shape = exact.shape
        self._wide = find_wide_channels(exact.path, shape, self._texts)
        built = {False: exact.path}
        del exact
        built[True] = self._scratch("wide", bits=self._bits, wide_channels=self._wide).path
        runners: dict[str, DecoderRunner] = {}
        found: dict[str, Agreement] = {}
        for index, plan in enumerate(PLANS):
            self._report(0.45 + 0.08 * index, f"running it with {plan.name}")
            base = built[plan.wide_channels]
            graph = base.with_name(f"plan-{index}.onnx")
            apply_plan(base, plan, graph)
            runners[plan.name] = DecoderRunner(graph, shape)
            found[plan.name] = self._compare(plan.name, runners[plan.name])
        chosen, reason = choose_plan(found, floats)
        self._refuse_broken(found[chosen.name])
        return chosen, reason, runners[chosen.name]

    def _int8_kv(self, plan: Plan | None, with_float: DecoderRunner) -> tuple[DecoderRunner | None, tuple[str, ...]]:
        """The graph with an INT8 cache, or None and a note where it costs more than it may.

        Scales from one half of the texts are judged by the other; those that are kept have seen all.
        """
        self._report(0.7, "running it with an INT8 KV cache")
        setting, judging = halves(self._all_texts)
        shape = with_float.shape
        judged = self._with_kv(plan, "int8-kv-judged", calibrate_kv(with_float.path, shape, setting))
        cost = kv_cost(with_float.logits, judged.logits, judging)
        self._entries.append(
            Verification(
                reference="the same graph with a float KV cache",
                graph="INT8 KV cache",
                tokens=cost.agreement.tokens,
                top1_agreement=round(cost.agreement.top1, 4),
                kl_nats=round(cost.agreement.kl_nats, 6),
                perplexity=round(cost.int8_perplexity, 3),
                reference_perplexity=round(cost.float_perplexity, 3),
                passed=cost.within(self._kv_kl_nats),
            )
        )
        del judged
        shutil.rmtree(self._folder / "int8-kv-judged")
        if not cost.within(self._kv_kl_nats):
            return None, (f"the KV cache stays float32, INT8 costs this model too much: {cost.told()}",)
        self._scales = calibrate_kv(with_float.path, shape, self._all_texts)
        return self._with_kv(plan, "int8-kv", self._scales), (f"INT8 KV cache: {cost.told()}",)

    def _with_kv(self, plan: Plan | None, name: str, scales: tuple[KvScales, ...]) -> DecoderRunner:
        wide = self._wide if plan is not None and plan.wide_channels else None
        return self._scratch(name, bits=self._bits, plan=plan, kv_scales=scales, wide_channels=wide)

    def _kv_origin(self) -> str:
        if self._scales is None:
            return ""
        tokens = sum(map(len, self._all_texts))
        return f"largest magnitude of each channel over {tokens} tokens, times {HEADROOM}"

    def _scratch(
        self,
        name: str,
        *,
        bits: Bits,
        accuracy_level: int = INT8,
        plan: Plan | None = None,
        kv_scales: tuple[KvScales, ...] | None = None,
        wide_channels: WideChannels | None = None,
    ) -> DecoderRunner:
        """A graph for comparison only."""
        folder = self._folder / name
        folder.mkdir()
        built = build_graph(
            self._source,
            folder,
            bits=bits,
            accuracy_level=accuracy_level,
            kv_type="float32" if kv_scales is None else "int8",
            kv_scales=kv_scales,
            wide_channels=wide_channels,
        )
        assert built.decoder is not None
        if plan is not None:
            apply_plan(folder / SERVING_GRAPH_FILE, plan, folder / SERVING_GRAPH_FILE)
        return DecoderRunner(folder / SERVING_GRAPH_FILE, built.decoder)

    def _keep(self, name: str, runner: DecoderRunner) -> None:
        """Keep `runner`'s logits as the reference, in files: a wide vocabulary has gigabytes."""
        self._reference_name = name
        for index, ids in enumerate(self._texts):
            path = self._folder / f"reference-{index}.npy"
            np.save(path, runner.logits(ids))
            self._reference.append(np.load(path, mmap_mode="r"))

    def _compare(self, name: str, runner: DecoderRunner) -> Agreement:
        parts = [agreement(rows, runner.logits(ids)) for ids, rows in zip(self._texts, self._reference, strict=True)]
        found = merged(parts)
        self._entries.append(
            Verification(
                reference=self._reference_name,
                graph=name,
                tokens=found.tokens,
                top1_agreement=round(found.top1, 4),
                kl_nats=round(found.kl_nats, 6),
                passed=not _is_broken(found),
            )
        )
        return found

    def _refuse_broken(self, found: Agreement) -> None:
        if _is_broken(found):
            raise ImportFailed(
                "the built graph does not compute what the weights say "
                f"(top-1 {found.top1:.2f}, KL {found.kl_nats:.2f} nats against {self._reference_name})",
                hint="The source is damaged, or this model differs from its family in a way that is not supported",
            )

    def _float_fits(self, memory_bytes: int) -> bool:
        source = self._source
        float_bytes = 4 * sum(int(np.prod(source.shape(name))) for name in source.tensor_names())
        disk_bytes = shutil.disk_usage(self._folder).free
        return float_bytes * _FLOAT_COPIES + _BESIDE_BYTES < memory_bytes and float_bytes * 1.5 < disk_bytes


def compared_texts(source: WeightSource, texts: Texts) -> Texts:
    """As much of each text as graphs are compared over."""
    return [ids[: min(source.config.context_length, _COMPARED_TOKENS)] for ids in texts]


def clear_prompts(rows_of: Callable[[list[int]], Rows], texts: Texts) -> Texts:
    """For each text its longest short beginning after which the next token is clear. `rows_of` gives all rows."""
    prompts = []
    for ids in texts:
        short = ids[:_PROMPT_TOKENS]
        rows = rows_of(short)
        for length in range(len(short), FEWEST_TOKENS - 1, -1):
            if golden_prompt(short[:length], rows[length - 1]) is not None:
                prompts.append(short[:length])
                break
    return prompts


def record_decoder(graph: Path, shape: DecoderShape, the_hash: str, prompts: Iterable[list[int]]) -> Golden:
    """What the finished graph says to `prompts`, where it is sure of it."""
    runner = DecoderRunner(graph, shape)
    kept: list[GoldenPrompt] = []
    for ids in prompts:
        prompt = golden_prompt(ids, runner.logits(ids)[-1])
        if prompt is not None:
            kept.append(prompt)
    return Golden(version=GOLDEN_VERSION, model_hash=the_hash, prompts=kept, ort_version=str(onnxruntime.__version__))


def _is_broken(found: Agreement) -> bool:
    return found.top1 < _BROKEN_TOP1 or not found.kl_nats < _BROKEN_KL_NATS
