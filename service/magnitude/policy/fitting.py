"""Cutting strategies down to the memory that there is, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from magnitude.errors import BudgetExceeded
from magnitude.models.description import ModelDescription
from magnitude.models.ledger import ledger
from magnitude.policy.strategy import Strategy


def fit_to_memory(strategy: Strategy, model: ModelDescription, available_bytes: int) -> Strategy:
    """`strategy`, with the longest context that fits into `available_bytes` when its own does not.

    The batch is kept: one conversation fewer is a refused client, a shorter context only a shorter memory. Raises
    `BudgetExceeded` with the ledger's advice when not even the shortest context fits.
    """
    sums = ledger(
        model,
        available_bytes=max(0, available_bytes),
        context=strategy.context_length,
        slots=strategy.max_batch,
        prefill_chunk=strategy.prefill_chunk,
    )
    if sums.fits:
        return strategy
    if model.decoder is not None and sums.largest_context:
        context = min(strategy.context_length, sums.largest_context)
        full_bytes = strategy.max_batch * context * model.decoder.kv_bytes_per_token()
        budget_bytes = min(strategy.kv_budget_bytes, full_bytes)
        return msgspec.structs.replace(strategy, context_length=context, kv_budget_bytes=budget_bytes)
    rows = ", ".join(f"{row.name} {row.bytes / 1e6:.0f} MB" for row in sums.rows)
    raise BudgetExceeded(
        f"{model.name} needs {sums.total_bytes / 1e6:.0f} MB ({rows}), "
        f"but only {max(0, available_bytes) / 1e6:.0f} MB are free",
        hint=f"What would fit: {'; '.join(sums.advice)}. See 'magnitude budget {model.name}'",
        param=model.name,
    )


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """Which models are served and how, in order; and which are left out, with the ledger's words."""

    served: list[tuple[ModelDescription, Strategy]]
    left_out: list[tuple[ModelDescription, BudgetExceeded]]


def fit_together(
    models: Sequence[ModelDescription], wish: Callable[[ModelDescription], Strategy], free_bytes: int
) -> Fitted:
    """Strategies under which `models` fit into `free_bytes` side by side.

    The first one must fit: it raises `BudgetExceeded` when it does not fit alone. Another one that does not fit
    beside those before it is left out; where the first one has no room beside the others, the heaviest goes.
    """
    kept, left_out = list(models), []
    while True:
        served: list[tuple[ModelDescription, Strategy]] = []
        try:
            for model in kept:
                beside_bytes = sum(other.weight_bytes for other in kept if other is not model)
                beside_bytes += sum(other.kv_budget_bytes for _, other in served)
                served.append((model, fit_to_memory(wish(model), model, free_bytes - beside_bytes)))
        except BudgetExceeded as error:
            if len(kept) == 1:
                raise
            # From the start: those that were fitted already may have been cut for the sake of the one that goes.
            going = kept[len(served)] if served else max(kept[1:], key=lambda other: other.weight_bytes)
            kept.remove(going)
            left_out.append((going, error))
        else:
            return Fitted(served=served, left_out=left_out)
