"""The kernel plan beside a finished decoder: written, and compared with float activations before it counts.

The file needs no kernels to be written, only to be compared. Where an import has none the plan stays with the model
and is not used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from magnitude.errors import EngineError
from magnitude.kernels.library import KernelLibrary, kernels
from magnitude.models.description import KERNEL_GRAPH_FILE, DecoderShape
from magnitude.models.golden import agreement, merged
from magnitude.models.graphs.kernel_plan import KERNEL_WORDS, write_kernel_plan
from magnitude.models.importing.graph_runner import DecoderRunner
from magnitude.models.manifest import NEEDS_KERNELS, GraphPlan, Verification

# By how much the plan may be further from float activations than the serving graph is: half of what a serving graph
# is allowed altogether would be a change of the model. SmolLM2-135M: 0.0017 nats, its serving graph 0.0018.
MOST_MORE_NATS = 0.001


# What is known of a plan that could not be compared.
_UNSEEN = GraphPlan(
    file=KERNEL_GRAPH_FILE,
    plan=KERNEL_WORDS,
    needs=NEEDS_KERNELS,
    equal=False,
    largest_difference=0.0,
    top1_agreement=0.0,
    kl_nats=0.0,
    verified=False,
)


class KernelPlanFound(msgspec.Struct, frozen=True, kw_only=True):
    """What an import has to say of the plan; `plan` None: there is none."""

    plan: GraphPlan | None = None
    verification: tuple[Verification, ...] = ()
    notes: tuple[str, ...] = ()


def add_kernel_plan(
    folder: Path,
    serving: str,
    reference: str | None,
    shape: DecoderShape,
    texts: Sequence[list[int]],
    *,
    library: Callable[[], KernelLibrary] = kernels.library,
    write: Callable[[Path, Path], bool] = write_kernel_plan,
) -> KernelPlanFound:
    """Write the kernel plan of the graph `serving` beside it, where that allows one, and compare both with
    `reference`, the graph with float activations (None: `serving` is that itself), over `texts`.

    A plan that is too far from float is removed. Raises `ImportFailed` when a graph cannot be loaded.
    """
    path = folder / KERNEL_GRAPH_FILE
    if not write(folder / serving, path):
        return KernelPlanFound()
    try:
        library().use_threads(len(os.sched_getaffinity(0)))
    except EngineError:
        return KernelPlanFound(plan=_UNSEEN)
    try:
        own, other = DecoderRunner(folder / serving, shape), DecoderRunner(path, shape)
        exact = own if reference is None else DecoderRunner(folder / reference, shape)
        return _compared(own, other, exact, texts)
    finally:
        library().stop_threads()


def _compared(
    own: DecoderRunner, other: DecoderRunner, exact: DecoderRunner, texts: Sequence[list[int]]
) -> KernelPlanFound:
    beside, of_serving, of_plan = [], [], []
    equal, largest = True, 0.0
    # One row has kernels of its own, in which an answer's tokens are computed.
    for ids in [*texts, *(ids[:1] for ids in texts)]:
        rows, plan_rows = own.logits(ids), other.logits(ids)
        exact_rows = rows if exact is own else exact.logits(ids)
        equal = equal and bool(np.array_equal(rows, plan_rows))
        largest = max(largest, float(np.abs(rows - plan_rows).max()))
        beside.append(agreement(rows, plan_rows))
        of_serving.append(agreement(exact_rows, rows))
        of_plan.append(agreement(exact_rows, plan_rows))
    found, usual, between = merged(of_plan), merged(of_serving), merged(beside)
    # Written so that figures which are no numbers do not pass.
    passed = found.kl_nats <= usual.kl_nats + MOST_MORE_NATS
    verification = Verification(
        reference="float activations",
        graph=KERNEL_WORDS,
        tokens=found.tokens,
        top1_agreement=round(found.top1, 4),
        kl_nats=round(found.kl_nats, 6),
        passed=passed,
    )
    if not passed:
        other.path.unlink()
        note = (
            f"no plan with {KERNEL_WORDS}: {found.kl_nats:.4f} nats from float activations, "
            f"the serving graph {usual.kl_nats:.4f} (at most {MOST_MORE_NATS} more)"
        )
        return KernelPlanFound(verification=(verification,), notes=(note,))
    plan = msgspec.structs.replace(
        _UNSEEN,
        equal=equal,
        largest_difference=largest,
        top1_agreement=round(between.top1, 4),
        kl_nats=round(between.kl_nats, 6),
        verified=True,
    )
    return KernelPlanFound(plan=plan, verification=(verification,))
