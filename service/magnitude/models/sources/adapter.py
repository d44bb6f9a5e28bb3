"""What every LoRA adapter gives, whatever its file: a pair of matrices for some linear layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from magnitude.errors import ImportFailed

# The layers that a graph has adapter inputs for, under Hugging Face's names.
MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
# Adapters in use have ranks of 4 to 128. Beyond that the pairs cost more time than the base's own 4-bit product.
MAX_RANK = 256


@dataclass(frozen=True, slots=True)
class LowRank:
    """What is added to one linear layer, `x @ a @ b`: float32 `[in, rank]` and `[rank, out]`, scale included."""

    a: NDArray[np.float32]
    b: NDArray[np.float32]

    @property
    def rank(self) -> int:
        return int(self.a.shape[1])


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """One adapter as its file has it. `pairs` are by layer and module (one of `MODULES`)."""

    format: Literal["peft", "gguf"]
    pairs: Mapping[tuple[int, str], LowRank]
    licence: str = ""
    notes: tuple[str, ...] = ()


def place_of(name: str) -> tuple[int, str] | None:
    """Layer and module of `model.layers.N.MODULE`; None for a layer that takes no adapter."""
    parts = name.split(".", 3)
    if len(parts) != 4 or parts[:2] != ["model", "layers"] or not parts[2].isdecimal() or parts[3] not in MODULES:
        return None
    return int(parts[2]), parts[3]


def pair_problems(name: str, a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> list[str]:
    """What is wrong with the shapes of a layer's A `[rank, in]` and B `[out, rank]`, as files store them."""
    if a is None or b is None:
        return [f"{name} has {'B' if a is None else 'A'} but no {'A' if a is None else 'B'}"]
    if len(a) != 2 or len(b) != 2:
        return [f"{name}: A is {list(a)} and B {list(b)}, not two matrices"]
    if a[0] != b[1]:
        return [f"{name}: A {list(a)} has rank {a[0]}, B {list(b)} rank {b[1]}"]
    if not 1 <= a[0] <= MAX_RANK:
        return [f"{name}: rank {a[0]} is not from 1 to {MAX_RANK}"]
    return []


def low_rank(name: str, a: NDArray[np.float32], b: NDArray[np.float32], scale: float) -> LowRank:
    """The pair of A `[rank, in]` and B `[out, rank]`. Raises `ImportFailed` for values that are no numbers."""
    pair = LowRank(np.ascontiguousarray(a.T), np.ascontiguousarray(b.T * np.float32(scale)))
    if not (np.isfinite(pair.a).all() and np.isfinite(pair.b).all()):
        raise ImportFailed(
            f"{name} holds values that are no finite numbers",
            hint="The training diverged or the file is damaged; take another checkpoint",
        )
    return pair
