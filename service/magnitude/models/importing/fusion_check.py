"""Fusion plans beside a finished decoder: written, and compared with the serving graph before they count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from magnitude.models.description import DecoderShape
from magnitude.models.golden import Agreement, agreement, merged
from magnitude.models.graphs.fusion import FUSION_PLANS, FusionPlan, write_plan
from magnitude.models.importing.graph_runner import DecoderRunner
from magnitude.models.manifest import GraphPlan

# A plan computes the same products; what it may round differently must stay far below what was accepted for the
# serving graph itself (0.003 nats for its activations). On x86-64 with AVX2 all plans are equal to the bit.
PLAN_KL_NATS = 0.001
PLAN_TOP1 = 0.98


def add_plans(
    folder: Path,
    serving: str,
    shape: DecoderShape,
    texts: Sequence[list[int]],
    *,
    plans: Sequence[FusionPlan] = FUSION_PLANS,
    write: Callable[[Path, FusionPlan, Path], bool] = write_plan,
) -> tuple[tuple[GraphPlan, ...], tuple[str, ...]]:
    """Write each of `plans` that the graph `serving` allows beside it, and compare both over `texts`.

    Returns those that may stand for it, and a note for each that may not; its file is removed. Raises `ImportFailed`
    when a graph that was written cannot be loaded.
    """
    own = DecoderRunner(folder / serving, shape)
    kept, notes = [], []
    for plan in plans:
        if not write(own.path, plan, folder / plan.file):
            continue
        runner = DecoderRunner(folder / plan.file, shape)
        found = compare_plan(plan, own, runner, texts)
        if found.verified:
            kept.append(found)
        else:
            (folder / plan.file).unlink()
            notes.append(
                f"no plan with {plan.words}: it differs from the serving graph by {found.kl_nats:.4f} nats "
                f"(at most {PLAN_KL_NATS}), top-1 {found.top1_agreement:.3f} (at least {PLAN_TOP1})"
            )
    return tuple(kept), tuple(notes)


def compare_plan(plan: FusionPlan, own: DecoderRunner, other: DecoderRunner, texts: Sequence[list[int]]) -> GraphPlan:
    """The logits of all positions of `texts`, and those of a lone token, by both graphs."""
    parts: list[Agreement] = []
    equal, largest = True, 0.0
    # One row has kernels of its own, in which an answer's tokens are computed.
    for ids in [*texts, *(ids[:1] for ids in texts)]:
        rows, plan_rows = own.logits(ids), other.logits(ids)
        equal = equal and bool(np.array_equal(rows, plan_rows))
        largest = max(largest, _largest(rows, plan_rows))
        parts.append(agreement(rows, plan_rows))
    found = merged(parts)
    return GraphPlan(
        file=plan.file,
        plan=plan.words,
        equal=equal,
        largest_difference=largest,
        top1_agreement=round(found.top1, 4),
        kl_nats=round(found.kl_nats, 6),
        # Written so that figures which are no numbers do not pass.
        verified=found.kl_nats <= PLAN_KL_NATS and found.top1 >= PLAN_TOP1,
    )


def _largest(rows: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    return float(np.abs(rows - others).max())
