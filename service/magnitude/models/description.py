"""What the service and the engine need to know of a model, without opening a graph.

A `ModelDescription` is made from a model folder: from our `manifest.json` where there is one, otherwise from the
folder's own `genai_config.json`. It is plain data, so that it can be sent to the engine.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import msgspec

from magnitude.models.tolerance import Tolerance

Kind = Literal["decoder", "embedder", "reranker", "tensors"]
# "int8" has a scale a channel, inside the graph; "int8_per_token" one for each position and KV head, beside the KV.
KvType = Literal["float32", "float16", "int8", "int8_per_token"]
KvPartName = Literal["key", "value", "key_scale", "value_scale"]

# Our own decoders' input that names the rows to compute logits of.
LOGIT_ROWS = "logit_rows"

# The weights of all graphs of a model that we imported.
WEIGHTS_FILE = "model.onnx.data"

# A decoder's graphs for our own kernels, the second one over a KV cache of bytes: their files, the domain of their
# operators, and the key in their metadata under which stands where the weights of their products lie.
KERNEL_GRAPH_FILE = "kernels.onnx"
KERNEL_KV8_GRAPH_FILE = "kernels-kv8.onnx"
KERNEL_GRAPH_FILES = (KERNEL_GRAPH_FILE, KERNEL_KV8_GRAPH_FILE)
KERNEL_DOMAIN = "ai.magnitude"
KERNEL_PRODUCTS = "kernel_products"

_ITEM_BYTES = {"float32": 4, "float16": 2, "int8": 1}


class KvPart(msgspec.Struct, frozen=True, kw_only=True):
    """One of the tensors that a layer's KV cache consists of: `[slots, kv_heads, positions, *tail]` of `dtype`."""

    name: KvPartName
    dtype: str
    tail: tuple[int, ...]  # the head size for keys and values; nothing for scales

    @property
    def row_bytes(self) -> int:
        """Bytes of one position of one KV head."""
        return math.prod(self.tail) * _ITEM_BYTES[self.dtype]


@functools.lru_cache
def kv_parts(kv_type: KvType, head_dim: int) -> tuple[KvPart, ...]:
    """A layer's tensors, in their order in memory and in files."""
    scaled = kv_type == "int8_per_token"
    dtype = "int8" if scaled else kv_type
    found = [KvPart(name=name, dtype=dtype, tail=(head_dim,)) for name in ("key", "value")]
    if scaled:
        found += [KvPart(name=name, dtype="float32", tail=()) for name in ("key_scale", "value_scale")]
    return tuple(found)


class DecoderShape(msgspec.Struct, frozen=True, kw_only=True):
    """Shape and input names of a decoder graph with in-place KV.

    KV tensors are `[batch, kv_heads, positions, head_dim]`. The name patterns hold one `%d` for the layer. Scales
    that lie beside keys and values, float32 `[batch, kv_heads, positions]`, have their names with `_scale` behind.
    """

    layers: int
    kv_heads: int
    head_dim: int
    vocab_size: int  # width of the logits; may be larger than the tokenizer's vocabulary (padding)
    hidden_size: int
    context_length: int  # positions the model was trained for
    kv_type: KvType = "float32"
    logits_all_positions: bool = False  # foreign graphs give a row a token, ours the last row only
    input_ids: str = "input_ids"
    attention_mask: str | None = "attention_mask"
    position_ids: str | None = None
    past_key: str = "past_key_values.%d.key"
    past_value: str = "past_key_values.%d.value"
    present_key: str = "present.%d.key"
    present_value: str = "present.%d.value"
    logits: str = "logits"
    # Name of an int64 input [n] with flat indices over [batch * tokens]: only these rows get logits, which are then
    # [n, vocab_size]. None: the graph decides (`logits_all_positions`).
    logit_rows: str | None = None
    # Angle by which each pair of a key's channels turns from one position to the next, `head_dim / 2` numbers; empty
    # where it is not known. Needed to move cached keys to other positions.
    rope_frequencies: tuple[float, ...] = ()

    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one position over all layers."""
        rows = sum(part.row_bytes for part in kv_parts(self.kv_type, self.head_dim))
        return self.layers * self.kv_heads * rows

    def kv_names(self, part: KvPartName) -> tuple[str, str]:
        """Patterns of the names of a part's input and output."""
        past, present = (
            (self.past_key, self.present_key) if part.startswith("key") else (self.past_value, self.present_value)
        )
        scale = "_scale" if part.endswith("_scale") else ""
        return past + scale, present + scale


class EncoderShape(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of an encoder graph that pools inside the graph.

    Inputs `input_ids`, `attention_mask` and, where `token_type_ids` is true, `token_type_ids`, all int64
    `[batch, tokens]`. Output `output`: `[batch, width]` float32 (embeddings, or one score a row for a reranker).
    """

    width: int
    max_tokens: int
    token_type_ids: bool = True
    output: str = "embeddings"
    normalised: bool = True


class SpecialTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Ids with a meaning of their own. `add_bos` says whether raw text wants a begin token."""

    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None
    add_bos: bool = False


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One model as it lies on disk. `folder` is absolute, the files are names inside it."""

    name: str
    kind: Kind
    family: str
    folder: str
    graph_file: str
    model_hash: str  # sha256 over the graph and its weights: keys everything that is derived from the model
    weight_bytes: int
    special: SpecialTokens = SpecialTokens()
    decoder: DecoderShape | None = None
    encoder: EncoderShape | None = None
    tokenizer_file: str | None = "tokenizer.json"
    chat_template_file: str | None = None
    # The same weights with float activations everywhere: slow, and right where an INT8 kernel is not.
    fallback_graph_file: str | None = None
    # Where `graph_file` is a kernel plan: what serves where that does not work.
    serving_graph_file: str | None = None
    # The same weights with adapters as inputs (`graphs/lora.py`); slower, so it serves only where there are adapters.
    lora_graph_file: str | None = None
    # Fusion plans: graphs over the same weights with the same inputs and outputs, that a further session may load.
    graphs: tuple[str, ...] = ()
    # The same for sessions that have our own kernels (`kernels/offered.py`).
    kernel_graphs: tuple[str, ...] = ()
    # A variant stands in for the model `variant_of`, with which it was compared when that had `parent_hash`.
    # `outside` says why its results are too far from that model's to be chosen by itself; "" while they are not.
    variant_of: str = ""
    parent_hash: str = ""
    outside: str = ""
    precision: str = ""  # of weights and KV, for people; "": not known
    tolerance: Tolerance | None = None  # a model's: for its variants; a variant's: what it was compared by
    licence: str = ""
    created_s: int = 0  # wall clock, for people only
