"""Variants of one model: other folders with the same vocabulary and other numbers, which clients see as one entry.

A variant has its parent's name in its manifest. Requests name the parent; which of them computes is chosen while the
service runs, among those whose results are within the parent's tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from magnitude.models.description import ModelDescription

# Weights of the same size but for scales of their KV and the borders of pages between tensors.
SAME_WEIGHTS = 1.01


def misfit(variant: ModelDescription, parent: ModelDescription | None) -> str:
    """Why `variant` cannot stand in for what is now called as its parent, in words; "" when it can."""
    name = variant.variant_of
    if parent is None:
        return f"it is a variant of {name}, which is not there"
    if parent.variant_of:
        return f"it is a variant of {name}, which is itself a variant of {parent.variant_of}"
    if parent.model_hash != variant.parent_hash:
        return f"it was compared with another import of {name}"
    return ""


def variants_of(parent: ModelDescription, found: Iterable[ModelDescription]) -> list[ModelDescription]:
    """Those of `found` that can stand in for `parent`, by name; also those that are never chosen by themselves."""
    those = [model for model in found if model.variant_of == parent.name and not misfit(model, parent)]
    return sorted(those, key=lambda model: model.name)


def strays(found: Sequence[ModelDescription]) -> dict[str, str]:
    """Variants that belong to nothing in `found`, by name, and why."""
    by_name = {model.name: model for model in found}
    reasons = {model.name: misfit(model, by_name.get(model.variant_of)) for model in found if model.variant_of}
    return {name: reason for name, reason in reasons.items() if reason}


def smaller_first(variants: Iterable[ModelDescription]) -> list[ModelDescription]:
    """By what they take in memory, the smallest first: weights, then KV of a position."""

    def size(model: ModelDescription) -> tuple[int, int, str]:
        token_bytes = model.decoder.kv_bytes_per_token() if model.decoder is not None else 0
        return model.weight_bytes, token_bytes, model.name

    return sorted(variants, key=size)


def smaller_than(parent: ModelDescription, variants: Iterable[ModelDescription]) -> list[ModelDescription]:
    """Variants that relieve the board: no larger weights, and less in memory together with KV; the smallest first."""

    def memory_bytes(model: ModelDescription) -> int:
        shape = model.decoder
        return model.weight_bytes + (shape.context_length * shape.kv_bytes_per_token() if shape is not None else 0)

    most_bytes = parent.weight_bytes * SAME_WEIGHTS
    return [
        model
        for model in smaller_first(variants)
        if model.weight_bytes <= most_bytes and memory_bytes(model) < memory_bytes(parent)
    ]


def as_its_own(model: ModelDescription) -> ModelDescription:
    """The variant as a model like any other, for whoever names its folder to be served by itself."""
    return msgspec.structs.replace(model, variant_of="", parent_hash="", outside="")
