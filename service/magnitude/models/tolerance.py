"""How far a variant of a model may be from the model that clients name.

A switch between variants must not change what a client gets beyond a stated bound, so each model declares one, each
variant is compared with its parent when it is imported, and again on the board before it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from magnitude.models.description import Kind


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds against the parent over the golden texts: the least share of equal top tokens and the most divergence
    (nats) of a decoder, the least cosine of an encoder's vectors. None: not measured for that kind. `reason` says
    where the figures come from."""

    top1_agreement: float | None = None
    kl_nats: float | None = None
    cosine: float | None = None
    reason: str = ""


class Nearness(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a variant against its parent; None: not measured for that kind."""

    top1_agreement: float | None = None
    kl_nats: float | None = None
    cosine: float | None = None


# SmolLM2-135M over 500 positions, the same weights each time: INT8 activations with wide channels in float cost 0.002
# nats, everywhere 0.004 with 0.949 of the top tokens equal, an INT8 KV cache 0.007 with 0.971. Twice the sum of the
# largest two is still far from what changes the model: quantising its 4-bit weights once more costs 0.31 nats and
# 0.31 of the top tokens. Larger models bear narrower weights better; for them, or for a smaller model that is to
# stand in when the board is hot, an import can declare more.
DECODER_TOLERANCE = Tolerance(
    top1_agreement=0.93,
    kl_nats=0.02,
    reason="twice what INT8 activations and an INT8 KV cache cost SmolLM2-135M, a fifteenth of coarser weights",
)
# What a golden vector must reach on another CPU as well. MiniLM with 8-bit weights has 0.9994 as its lowest cosine,
# with 4-bit weights 0.9636, which changes the order of search results.
ENCODER_TOLERANCE = Tolerance(cosine=0.99, reason="MiniLM has 0.9994 with 8-bit weights, 0.9636 with 4-bit ones")


def default_tolerance(kind: Kind) -> Tolerance:
    """What a model declares that was imported without a word about it."""
    return DECODER_TOLERANCE if kind == "decoder" else ENCODER_TOLERANCE


def completed(stated: Tolerance | None, usual: Tolerance) -> Tolerance:
    """What was `stated` of a tolerance, and of the `usual` one what was not."""
    if stated is None:
        return usual
    return Tolerance(
        top1_agreement=usual.top1_agreement if stated.top1_agreement is None else stated.top1_agreement,
        kl_nats=usual.kl_nats if stated.kl_nats is None else stated.kl_nats,
        cosine=usual.cosine if stated.cosine is None else stated.cosine,
        reason=stated.reason,
    )


def outside(tolerance: Tolerance, found: Nearness) -> str:
    """Why figures are not within the tolerance, in words; "" when they are.

    A figure that the tolerance bounds must be there, and be a number.
    """
    wrong = []
    if tolerance.kl_nats is not None and not _at_most(found.kl_nats, tolerance.kl_nats):
        wrong.append(f"KL {_shown(found.kl_nats, ' nats')} (at most {tolerance.kl_nats:g})")
    if tolerance.top1_agreement is not None and not _at_least(found.top1_agreement, tolerance.top1_agreement):
        wrong.append(f"top-1 {_shown(found.top1_agreement)} (at least {tolerance.top1_agreement:g})")
    if tolerance.cosine is not None and not _at_least(found.cosine, tolerance.cosine):
        wrong.append(f"lowest cosine {_shown(found.cosine)} (at least {tolerance.cosine:g})")
    return ", ".join(wrong)


def told(tolerance: Tolerance) -> str:
    """The bounds in words, and where they come from."""
    bounds = []
    if tolerance.kl_nats is not None:
        bounds.append(f"KL at most {tolerance.kl_nats:g} nats")
    if tolerance.top1_agreement is not None:
        bounds.append(f"top-1 at least {tolerance.top1_agreement:g}")
    if tolerance.cosine is not None:
        bounds.append(f"cosine at least {tolerance.cosine:g}")
    return f"{', '.join(bounds)} ({tolerance.reason})"


def _at_most(figure: float | None, bound: float) -> bool:
    return figure is not None and figure <= bound


def _at_least(figure: float | None, bound: float) -> bool:
    return figure is not None and figure >= bound


def _shown(figure: float | None, unit: str = "") -> str:
    return "not measured" if figure is None else f"{figure:.4f}{unit}"
