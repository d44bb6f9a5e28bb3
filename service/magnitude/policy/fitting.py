"""Cutting a strategy down to the memory that there is, before anything is loaded."""

from __future__ import annotations

import msgspec

from magnitude.errors import BudgetExceeded
from magnitude.models.description import ModelDescription
from magnitude.models.ledger import ledger
from magnitude.policy.strategy import Strategy


def fit_to_memory(strategy: Strategy, model: ModelDescription, available_bytes: int) -> Strategy:
    """`strategy`, with the longest context that fits into `available_bytes` when its own does not.

    Slots are kept: one conversation fewer is a refused client, a shorter context only a shorter memory. Raises
    `BudgetExceeded` with the ledger's advice when not even the shortest context fits.
    """
    sums = ledger(
        model,
        available_bytes=max(0, available_bytes),
        context=strategy.context_length,
        slots=strategy.slots,
        prefill_chunk=strategy.prefill_chunk,
    )
    if sums.fits:
        return strategy
    if strategy.slots and sums.largest_context:
        return msgspec.structs.replace(strategy, context_length=min(strategy.context_length, sums.largest_context))
    rows = ", ".join(f"{row.name} {row.bytes / 1e6:.0f} MB" for row in sums.rows)
    raise BudgetExceeded(
        f"{model.name} needs {sums.total_bytes / 1e6:.0f} MB ({rows}), "
        f"but only {max(0, available_bytes) / 1e6:.0f} MB are free",
        hint=f"What would fit: {'; '.join(sums.advice)}. See 'magnitude budget {model.name}'",
        param=model.name,
    )
