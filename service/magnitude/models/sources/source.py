"""What every weight source gives: a configuration, names, and tensors one at a time.

Names are those of Hugging Face Transformers (`model.layers.0.self_attn.q_proj.weight`), whatever the file calls
them. Shapes are `[out, in]` for matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.errors import ImportFailed

# The largest models for boards have some 40 layers of a dozen tensors; sharded giants stay below this too.
MAX_TENSORS = 20_000
MAX_NAME_BYTES = 512

Pooling = Literal["mean", "cls"]


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embedding. `kind` "llama3" stretches low frequencies only (Llama 3.1's scheme)."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


class ArchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Hyper-parameters of one model, in one form for all sources."""

    family: str
    kind: Literal["decoder", "embedder", "reranker"]
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context_length: int  # positions the model was trained for
    eps: float
    rope: Rope = Rope()
    tied_embeddings: bool = False
    attention_bias: bool = False  # on q, k and v
    output_bias: bool = False  # on the projection behind the attention
    qk_norm: bool = False  # RMS norm of each head's q and k before the rotation
    # Encoders only:
    positions: int = 0  # rows of the position table; `context_length` may be less
    token_types: int = 0
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    pooling: Pooling = "mean"
    normalise: bool = False
    labels: int = 0  # outputs of the classification head


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A matrix in blocks along its rows, exactly as its file stores it, only unpacked.

    `codes` is uint8 `[rows, blocks, block]`, `scale` float32 `[rows, blocks]`. A weight is
    `scale * (code - 2**(bits-1))`, or `scale * code + minimum` where there is a `minimum`.
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]
    minimum: NDArray[np.float32] | None
    bits: Literal[4, 8]
    format: str

    @property
    def rows(self) -> int:
        return int(self.codes.shape[0])

    @property
    def columns(self) -> int:
        return int(self.codes.shape[1] * self.codes.shape[2])

    @property
    def block(self) -> int:
        return int(self.codes.shape[2])

    @property
    def zero(self) -> int:
        """The code that stands for 0 where there is no minimum."""
        return 1 << (self.bits - 1)

    def floats(self) -> NDArray[np.float32]:
        """The weights as float32 `[rows, columns]`."""
        codes = self.codes.astype(np.float32)
        if self.minimum is None:
            values = self.scale[..., None] * (codes - np.float32(self.zero))
        else:
            values = self.scale[..., None] * codes + self.minimum[..., None]
        return values.reshape(self.rows, self.columns)

    def take_rows(self, order: NDArray[np.intp]) -> BlockMatrix:
        """The same matrix with its rows in another order."""
        minimum = None if self.minimum is None else self.minimum[order]
        return BlockMatrix(self.codes[order], self.scale[order], minimum, self.bits, self.format)


class WeightSource(Protocol):
    """Weights on disk. Tensors are read when they are asked for, never all at once."""

    @property
    def format(self) -> Literal["gguf", "huggingface"]: ...

    @property
    def family(self) -> str: ...

    @property
    def config(self) -> ArchConfig: ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """`name`, `licence`, `bos`, `eos` (list), `pad`, `chat_template`; a GGUF file's raw fields under `gguf`."""
        ...

    def tensor_names(self) -> frozenset[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def stored_as(self, name: str) -> str:
        """The file's own name of the tensor's format, such as `Q4_1` or `BF16`."""
        ...

    def floats(self, name: str) -> NDArray[np.float32]:
        """The tensor as float32, dequantised where needed. Raises `ImportFailed`."""
        ...

    def blocks(self, name: str) -> BlockMatrix | None:
        """The tensor's blocks, if its format is one that the operators can express without loss."""
        ...


def refuse(what: str, problems: Iterable[str], *, hint: str) -> None:
    """Raise one `ImportFailed` that lists every problem, so that a person sees all of them at once."""
    found = list(dict.fromkeys(problems))
    if found:
        shown = found if len(found) <= 20 else [*found[:20], f"and {len(found) - 20} more"]
        raise ImportFailed(f"{what}: {'; '.join(shown)}", hint=hint)
