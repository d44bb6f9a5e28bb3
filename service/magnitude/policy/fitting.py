"""Cutting provisions down to the memory that there is, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import msgspec

from magnitude.errors import BudgetExceeded
from magnitude.models.description import ModelDescription
from magnitude.models.ledger import ENGINE_BYTES, LEAST_CONTEXT, RESERVE_SHARE, SERVICE_BYTES, ledger, reserve
from magnitude.policy.provision import Provision

# Share of the memory that one model's pools (KV and activations) may take: beside them there must be room for
# weights, other models and whatever grows.
POOL_SHARE = 0.6

_ACTIVATION_ROWS = {"activations", "logits", "tokenizer"}


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded model takes."""

    weight_bytes: int
    activation_bytes: int
    kv_bytes: int

    @property
    def pool_bytes(self) -> int:
        return self.activation_bytes + self.kv_bytes

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.pool_bytes


def need_of(model: ModelDescription, provision: Provision) -> Need:
    """What `model` takes in memory once it is loaded to run so, by the ledger."""
    sums = ledger(
        model,
        available_bytes=0,
        context=_positions(provision, model),
        slots=max(1, provision.max_batch),
        prefill_chunk=provision.prefill_chunk,
    )
    rows = {row.name: row.bytes for row in sums.rows}
    return Need(
        weight_bytes=rows["weights"],
        activation_bytes=sum(size_bytes for name, size_bytes in rows.items() if name in _ACTIVATION_ROWS),
        kv_bytes=provision.kv_budget_bytes if model.decoder is not None else 0,
    )


def account_bytes(free_bytes: int) -> int:
    """What all models together may take of `free_bytes`: all but the processes themselves and the reserve."""
    return max(0, free_bytes - reserve(free_bytes) - ENGINE_BYTES - SERVICE_BYTES)


def pool_refusal(pool_bytes: int, available_bytes: int) -> str | None:
    """Why a pool (KV and activations of one model) of `pool_bytes` is not to be had of `available_bytes`, or None."""
    if pool_bytes <= POOL_SHARE * available_bytes:
        return None
    return (
        f"its KV and activations need {pool_bytes / 1e6:.0f} MB, which is more than {POOL_SHARE:.0%} of the "
        f"{available_bytes / 1e6:.0f} MB there are"
    )


def fit_to_memory(
    provision: Provision, model: ModelDescription, available_bytes: int, *, pool_bytes: int | None = None
) -> Provision:
    """`provision`, with the longest context that fits into `available_bytes` when its own does not; KV and
    activations together within `pool_bytes`.

    The batch is kept: one conversation fewer is a refused client, a shorter context only a shorter memory. Raises
    `BudgetExceeded` with the ledger's advice when not even the shortest context fits.
    """
    sums = ledger(
        model,
        available_bytes=max(0, available_bytes),
        context=_positions(provision, model),
        slots=provision.max_batch,
        prefill_chunk=provision.prefill_chunk,
    )
    if sums.fits:
        return _within_pool(provision, model, pool_bytes)
    if model.decoder is not None and sums.largest_context:
        context = min(provision.context_length, sums.largest_context)
        full_bytes = provision.max_batch * context * model.decoder.kv_bytes_per_token()
        budget_bytes = min(provision.kv_budget_bytes, full_bytes)
        cut = msgspec.structs.replace(provision, context_length=context, kv_budget_bytes=budget_bytes)
        return _within_pool(cut, model, pool_bytes)
    rows = ", ".join(f"{row.name} {row.bytes / 1e6:.0f} MB" for row in sums.rows)
    raise BudgetExceeded(
        f"{model.name} needs {sums.total_bytes / 1e6:.0f} MB ({rows}), "
        f"but only {max(0, available_bytes) / 1e6:.0f} MB are free",
        hint=f"What would fit: {'; '.join(sums.advice)}. See 'magnitude budget {model.name}'",
        param=model.name,
    )


def _positions(provision: Provision, model: ModelDescription) -> int:
    """Of a slot, or for an encoder of its longest text."""
    return provision.context_length or (model.encoder.max_tokens if model.encoder else 1)


def _within_pool(provision: Provision, model: ModelDescription, pool_bytes: int | None) -> Provision:
    """`provision` with less KV in all, and slots no longer than that, where it has too much."""
    need = need_of(model, provision)
    if pool_bytes is None or need.pool_bytes <= pool_bytes:
        return provision
    kv_bytes = pool_bytes - need.activation_bytes
    token_bytes = model.decoder.kv_bytes_per_token() if model.decoder is not None else 0
    context = min(provision.context_length, kv_bytes // token_bytes) if token_bytes else 0
    if context < min(LEAST_CONTEXT, provision.context_length) or not token_bytes:
        raise BudgetExceeded(
            f"KV and activations of {model.name} need {need.pool_bytes / 1e6:.0f} MB, and {POOL_SHARE:.0%} of the "
            f"memory are {pool_bytes / 1e6:.0f} MB",
            hint=f"Free memory, or take a smaller model. See 'magnitude budget {model.name}'",
            param=model.name,
        )
    return msgspec.structs.replace(provision, context_length=context, kv_budget_bytes=kv_bytes)


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """Which models are served and how, in order; and which are left out, with the ledger's words."""

    served: list[tuple[ModelDescription, Provision]]
    left_out: list[tuple[ModelDescription, BudgetExceeded]]


def fit_together(
    models: Sequence[ModelDescription],
    wish: Callable[[ModelDescription], Provision],
    free_bytes: int,
    *,
    pinned: Collection[str] = (),
) -> Fitted:
    """Provisions under which `models` fit into `free_bytes` side by side.

    The first one must fit: it raises `BudgetExceeded` when it does not fit alone. Another one that does not fit
    beside those before it is left out; where the first one has no room beside the others, the heaviest goes, of
    those that are not `pinned` while there are any.
    """
    kept, left_out = list(models), []
    while True:
        served: list[tuple[ModelDescription, Provision]] = []
        try:
            for place, model in enumerate(kept):
                beside_bytes = sum(need_of(*other).total_bytes for other in served)
                for later in kept[place + 1 :]:
                    need = need_of(later, wish(later))
                    beside_bytes += need.total_bytes - need.kv_bytes
                served.append((model, _fit_beside(model, wish, free_bytes, beside_bytes)))
        except BudgetExceeded as error:
            if len(kept) == 1:
                raise
            # From the start: those that were fitted already may have been cut for the sake of the one that goes.
            others = [model for model in kept[1:] if model.name not in pinned] or kept[1:]
            going = kept[len(served)] if served else max(others, key=lambda other: other.weight_bytes)
            kept.remove(going)
            left_out.append((going, error))
        else:
            return Fitted(served=served, left_out=left_out)


def fit_each(
    models: Sequence[ModelDescription],
    wish: Callable[[ModelDescription], Provision],
    free_bytes: int,
    beside: Sequence[tuple[ModelDescription, Provision]],
) -> Fitted:
    """Provisions under which each of `models` fits into `free_bytes` alone with those of `beside`."""
    beside_bytes = sum(need_of(*other).total_bytes for other in beside)
    fitted = Fitted(served=[], left_out=[])
    for model in models:
        try:
            fitted.served.append((model, _fit_beside(model, wish, free_bytes, beside_bytes)))
        except BudgetExceeded as error:
            fitted.left_out.append((model, error))
    return fitted


def _fit_beside(
    model: ModelDescription, wish: Callable[[ModelDescription], Provision], free_bytes: int, beside_bytes: int
) -> Provision:
    # The ledger takes its reserve off what it is given; off what others hold it was taken once already. Both
    # reserves are rounded down, by less than a byte each.
    taken_bytes = math.ceil(beside_bytes / (1 - RESERVE_SHARE)) + 2 if beside_bytes else 0
    pool_bytes = int(POOL_SHARE * account_bytes(free_bytes))
    return fit_to_memory(wish(model), model, free_bytes - taken_bytes, pool_bytes=pool_bytes)
