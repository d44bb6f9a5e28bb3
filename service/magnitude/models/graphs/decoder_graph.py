"""The graph of a Llama-like decoder with KV in place.

Inputs: `input_ids` int64 `[batch, tokens]`; `attention_mask` int64 `[batch, total]`, of which only the row sums
(past and new positions of each row) and the width (the longest row) matter; `logit_rows` int64 `[n]`, flat indices
over batch * tokens; `past_key_values.N.key|value` `[batch, kv_heads, positions, head_dim]`. Outputs: `logits` float32
`[n, vocab]` of the rows asked for; `present.N.key|value`, which may be bound to the same memory as the past.

ONNX Runtime multiplies one row by other kernels than several, and INT8 activations amplify what these round
differently: logits moved by up to 1.7 between a row alone and the same row in a batch. So a lone token is computed
as two equal rows everywhere but in the attention, which has the same kernel for one row and many. With that, a row's
logits do not depend on the batch. (SmolLM2-135M on AVX2: the second row costs 0.05 to 0.15 of a decode step.)
"""

from __future__ import annotations

import json
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.errors import ImportFailed
from magnitude.models.description import LOGIT_ROWS, DecoderShape, KvType
from magnitude.models.graphs import blocks
from magnitude.models.graphs.graph import Dimension, GraphWriter
from magnitude.models.graphs.linear import SHRINK, Bits, LinearLayers, StoredWeights, WideChannels
from magnitude.models.graphs.lora import SHRUNK_BY, SHRUNK_CHANNELS
from magnitude.models.sources.source import ArchConfig, Rope, WeightSource

# Rotation tables take 8 bytes * head_dim/2 a position: 16 MB for 32,768 positions of a 128-wide head. No board has
# the memory for a longer KV cache, so models trained for 128k or a million positions get this many.
MAX_POSITIONS = 32768

HEAD_DIM_STEP = 16  # checked by ONNX Runtime's GroupQueryAttention when it rotates

ROW_GROUP = 128  # rows that one thread of ONNX Runtime's MatMulNBits takes (StrideM in MlasQNBitGemmBatch)

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ROPE_FACTORS = "rope_freqs.weight"  # a divisor for each frequency, in GGUF files of Llama 3.1 and later


class KvScales(msgspec.Struct, frozen=True, kw_only=True):
    """Scales of one layer's INT8 KV: a stored byte times its scale is the value.

    One number for the whole tensor, or one for each channel (`kv_heads * head_dim`, head by head); K and V alike.
    Scales need room above what a calibration showed, by channel more than by tensor: SmolLM2-135M on 768 tokens of
    prose, calibrated on 110 others, mean KL against a float cache: one scale with room 1.1: 0.0045, with 1.5: 0.009;
    by channel with room 1.1: 0.012, with 2.2: 0.003 (and the attention takes a tenth longer than with one scale).
    """

    key: tuple[float, ...]
    value: tuple[float, ...]


def rotation_frequencies(
    rope: Rope, head_dim: int, factors: NDArray[np.float32] | None = None
) -> NDArray[np.float64]:
    """Angle by which each pair of channels turns from one position to the next (Su et al., RoFormer, eq. 34):
    `[head_dim / 2]`.

    `factors` divide the frequencies, as a GGUF file of Llama 3.1 stores them; otherwise `rope.kind` says how the
    frequencies are stretched ("llama3": Transformers' `_compute_llama3_parameters`).
    """
    frequencies = 1.0 / rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    elif rope.kind == "linear":
        frequencies = frequencies / rope.factor
    elif rope.kind == "llama3":
        turns = rope.original_context * frequencies / (2 * np.pi)
        smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        smooth = np.clip(smooth, 0.0, 1.0)
        frequencies = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    return frequencies


def rotation_tables(
    frequencies: NDArray[np.float64], positions: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines `[positions, head_dim / 2]` of the rotary embedding."""
    angles = np.arange(positions)[:, None] * frequencies[None]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class DecoderGraph:
    """Builds one decoder into `graph`."""

    def __init__(
        self,
        graph: GraphWriter,
        source: WeightSource,
        *,
        bits: Bits,
        kv_type: KvType,
        accuracy_level: int,
        kv_scales: tuple[KvScales, ...] | None,
        wide_channels: WideChannels | None,
    ):
        self._graph = graph
        self._source = source
        self._config: ArchConfig = source.config
        self._bits = bits
        self._accuracy_level = accuracy_level
        self._kv_type: KvType = kv_type
        self._kv_scales = kv_scales
        self._wide_channels = wide_channels or {}
        self._linear = LinearLayers(graph, source, bits=bits, accuracy_level=accuracy_level)
        self._positions = min(self._config.context_length, MAX_POSITIONS)
        _check_kv(self._config, kv_type, kv_scales)

    @property
    def account(self) -> list[StoredWeights]:
        return self._linear.account

    def build(self) -> DecoderShape:
        """Emit the whole graph and return its shape."""
        graph, config = self._graph, self._config
        graph.input("input_ids", "int64", ["batch", "tokens"])
        graph.input("attention_mask", "int64", ["batch", "total"])
        graph.input(LOGIT_ROWS, "int64", ["rows"])
        embedded, head = self._embedding()
        embedded = self._with_spare_row(embedded)
        self._lengths()
        frequencies = self._rotation()
        graph.output("logits", "float32", ["rows", config.vocab])
        residual, branch = embedded, None
        for layer in range(config.layers):
            at = f"layers.{layer}"
            residual, normed = self._add_and_norm(residual, branch, f"model.{at}.input_layernorm", f"{at}.attention")
            branch = self._attention(layer, normed)
            residual, normed = self._add_and_norm(
                residual, branch, f"model.{at}.post_attention_layernorm", f"{at}.mlp"
            )
            branch = self._mlp(layer, normed)
        _, normed = self._add_and_norm(residual, branch, "model.norm", "final")
        self._logits(normed, head)
        graph.metadata[SHRUNK_CHANNELS] = json.dumps(self._wide_channels)
        graph.metadata[SHRUNK_BY] = str(float(SHRINK))
        return DecoderShape(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            context_length=self._positions,
            kv_type=self._kv_type,
            logit_rows=LOGIT_ROWS,
            rope_frequencies=tuple(frequencies.tolist()),
        )

    def _with_spare_row(self, embedded: str) -> str:
        """The stream `[rows, tokens, hidden]`: of a lone token two rows, otherwise those of the batch.

        MatMulNBits cuts rows into groups of `ROW_GROUP`, and computes a last group of one like a lone token: a piece
        of such a length is doubled as well.

        Leaves `batch` and `stream_shape` (`[rows, 1, 1]`, for Expand) for the layers.
        """
        graph = self._graph
        graph.node("Shape", ["input_ids"], "ids.shape")
        graph.node("Split", ["ids.shape"], ["batch", "ids.tokens"], attributes={"axis": 0, "num_outputs": 2})
        graph.node("Mod", ["ids.tokens", graph.constant([ROW_GROUP])], "ids.rest")
        graph.node("Mul", ["ids.rest", "batch"], "ids.last")
        graph.node("Equal", ["ids.last", graph.constant([1])], "ids.lone")
        graph.node("Cast", ["ids.lone"], "spare_rows", attributes={"to": 7})  # TensorProto.INT64
        graph.node("Add", ["batch", "spare_rows"], "stream_rows")
        graph.node("Concat", ["stream_rows", graph.constant([1, 1])], "stream_shape", attributes={"axis": 0})
        return graph.node("Expand", [embedded, "stream_shape"], "stream")

    def _without_spare_row(self, x: str) -> str:
        graph = self._graph
        return graph.node("Slice", [x, graph.constant([0]), "batch", graph.constant([0])], f"{x}.rows")

    def _lengths(self) -> None:
        """GroupQueryAttention wants each row's last position and the longest row, both int32."""
        graph = self._graph
        graph.node("ReduceSum", ["attention_mask", graph.constant([1])], "mask.sums", attributes={"keepdims": 0})
        graph.node("Sub", ["mask.sums", graph.constant([1])], "mask.last")
        graph.node("Cast", ["mask.last"], "last_position", attributes={"to": 6})  # TensorProto.INT32
        graph.node("Shape", ["attention_mask"], "mask.shape", attributes={"start": 1, "end": 2})
        graph.node("Squeeze", ["mask.shape"], "mask.width")
        graph.node("Cast", ["mask.width"], "total_length", attributes={"to": 6})

    def _rotation(self) -> NDArray[np.float64]:
        factors = self._source.floats(_ROPE_FACTORS) if _ROPE_FACTORS in self._source.tensor_names() else None
        if factors is not None and factors.shape != (self._config.head_dim // 2,):
            raise ImportFailed(
                f"{_ROPE_FACTORS} has the shape {list(factors.shape)}, not [{self._config.head_dim // 2}]",
                hint="The file is damaged",
            )
        frequencies = rotation_frequencies(self._config.rope, self._config.head_dim, factors)
        cosines, sines = rotation_tables(frequencies, self._positions)
        self._graph.tensor("cos_cache", cosines)
        self._graph.tensor("sin_cache", sines)
        return frequencies

    def _embedding(self) -> tuple[str, tuple[str, str, int] | None]:
        """Emit the look-up of `input_ids`; returns it, and the blocks that a tied output layer shares with it."""
        graph, config = self._graph, self._config
        if self._bits == 16 or not blocks.can_be_blocked(config.hidden):
            table = graph.tensor("embedding.weight", self._source.floats(_EMBEDDING))
            self._note(_EMBEDDING, "float32", lossless=True)
            return graph.node("Gather", [table, "input_ids"], "embedded"), None
        # The look-up has no correction for minima, and the output layer is the one whose errors reach the logits
        # unsoftened: both keep 8 bits whatever the other layers have.
        matrix, lossless = self._source.blocks(_EMBEDDING), True
        if matrix is None or matrix.minimum is not None:
            matrix, lossless = blocks.quantise(self._source.floats(_EMBEDDING), 8), False
        matrix = blocks.widen(matrix)
        self._note(_EMBEDDING, f"int8/{matrix.block}", lossless=lossless)
        codes = graph.tensor("embedding.codes", matrix.codes)
        scale = graph.tensor("embedding.scale", matrix.scale)
        table = graph.alias("embedding.table", codes, [matrix.rows, matrix.columns])
        embedded = graph.contrib(
            "GatherBlockQuantized",
            [table, "input_ids", scale],
            "embedded",
            bits=8,
            block_size=matrix.block,
            gather_axis=0,
            quantize_axis=1,
        )
        return embedded, (codes, scale, matrix.block)

    def _note(self, name: str, stored: str, *, lossless: bool) -> None:
        self.account.append(
            StoredWeights(
                tensors=(name,),
                source_format=self._source.stored_as(name),
                stored_format=stored,
                lossless=lossless,
            )
        )

    def _add_and_norm(self, residual: str, branch: str | None, weight: str, out: str) -> tuple[str, str]:
        """Add a branch to the residual stream and normalise; returns the new stream and its normed form."""
        graph, eps = self._graph, self._config.eps
        weights = self._source.floats(f"{weight}.weight")
        if channels := self._wide_channels.get(f"{out}.in", ()):
            weights = self._linear.shrink(f"{out}.in", channels, weights)
        scale = graph.tensor(f"{out}.norm", weights)
        if branch is None:
            attributes = {"axis": -1, "epsilon": eps, "stash_type": 1}
            graph.node("SimplifiedLayerNormalization", [residual, scale], f"{out}.in", attributes=attributes)
            return residual, f"{out}.in"
        graph.contrib(
            "SkipSimplifiedLayerNormalization",
            [residual, branch, scale],
            [f"{out}.in", "", "", f"{out}.residual"],
            epsilon=eps,
        )
        return f"{out}.residual", f"{out}.in"

    def _attention(self, layer: int, x: str) -> str:
        config, graph, at = self._config, self._graph, f"layers.{layer}"
        module = f"model.layers.{layer}.self_attn"
        packed = None
        if not config.qk_norm:
            packed = self._linear.apply(x, [f"{module}.{n}_proj" for n in "qkv"], f"{at}.qkv")
        if packed is not None:
            heads = [self._without_spare_row(packed), "", ""]
        else:
            heads = [self._without_spare_row(self._one(x, f"{module}.{n}_proj", f"{at}.{n}")) for n in "qkv"]
        if config.qk_norm:
            heads[0] = self._head_norm(heads[0], f"{module}.q_norm", config.heads)
            heads[1] = self._head_norm(heads[1], f"{module}.k_norm", config.kv_heads)
        kv_shape: list[Dimension] = ["batch", config.kv_heads, "past", config.head_dim]
        past = [graph.input(f"past_key_values.{layer}.{n}", self._kv_type, kv_shape) for n in ("key", "value")]
        kv_shape[2] = "total"
        present = [graph.output(f"present.{layer}.{n}", self._kv_type, kv_shape) for n in ("key", "value")]
        inputs = [*heads, *past, "last_position", "total_length", "cos_cache", "sin_cache"]
        attributes: dict[str, int | float | str] = {
            "num_heads": config.heads,
            "kv_num_heads": config.kv_heads,
            "do_rotary": 1,
        }
        if self._kv_scales is not None:
            inputs += ["", "", "", *self._scale_tensors(layer, attributes)]
        graph.contrib("GroupQueryAttention", inputs, [f"{at}.heads", *present], **attributes)
        graph.node("Expand", [f"{at}.heads", "stream_shape"], f"{at}.heads.stream")
        return self._one(f"{at}.heads.stream", f"{module}.o_proj", f"{at}.attention.out")

    def _scale_tensors(self, layer: int, attributes: dict[str, int | float | str]) -> list[str]:
        assert self._kv_scales is not None
        names = []
        attributes["kv_cache_bit_width"] = 8
        for letter, scale in zip("kv", (self._kv_scales[layer].key, self._kv_scales[layer].value), strict=True):
            attributes[f"{letter}_quant_type"] = "PER_TENSOR" if len(scale) == 1 else "PER_CHANNEL"
            names.append(self._graph.tensor(f"layers.{layer}.{letter}_scale", np.array(scale, np.float32)))
        return names

    def _one(self, x: str, layer: str, out: str) -> str:
        made = self._linear.apply(x, [layer], out)
        assert made is not None  # a single matrix is always stackable
        return made

    def _head_norm(self, x: str, weight: str, heads: int) -> str:
        """RMS norm over each head. (GroupQueryAttention has inputs for this, but not on the CPU.)"""
        graph, width = self._graph, self._config.head_dim
        scale = graph.tensor(f"{x}.norm", self._source.floats(f"{weight}.weight"))
        graph.node("Reshape", [x, graph.constant([0, 0, heads, width])], f"{x}.split")
        attributes = {"axis": -1, "epsilon": self._config.eps, "stash_type": 1}
        graph.node("SimplifiedLayerNormalization", [f"{x}.split", scale], f"{x}.normed", attributes=attributes)
        return graph.node("Reshape", [f"{x}.normed", graph.constant([0, 0, heads * width])], f"{x}.joined")

    def _mlp(self, layer: int, x: str) -> str:
        graph, at, module = self._graph, f"layers.{layer}", f"model.layers.{layer}.mlp"
        both = self._linear.apply(x, [f"{module}.gate_proj", f"{module}.up_proj"], f"{at}.gate_up")
        if both is not None:
            # One product and a split: 3 % less processor time a token than two products (SmolLM2-135M, AVX2).
            gate, up = f"{at}.gate", f"{at}.up"
            graph.node("Split", [both], [gate, up], attributes={"axis": -1, "num_outputs": 2})
        else:
            gate = self._one(x, f"{module}.gate_proj", f"{at}.gate")
            up = self._one(x, f"{module}.up_proj", f"{at}.up")
        graph.contrib("QuickGelu", [gate], f"{at}.silu", alpha=1.0)  # x * sigmoid(alpha * x), in one pass
        graph.node("Mul", [f"{at}.silu", up], f"{at}.swiglu")
        return self._one(f"{at}.swiglu", f"{module}.down_proj", f"{at}.mlp.out")

    def _logits(self, x: str, tied: tuple[str, str, int] | None) -> None:
        graph, config = self._graph, self._config
        graph.node("Reshape", [x, graph.constant([-1, config.hidden])], "final.flat")
        x = graph.node("Gather", ["final.flat", LOGIT_ROWS], "final.rows", attributes={"axis": 0})
        if not config.tied_embeddings:
            bits: Literal[8, 16] = 16 if self._bits == 16 else 8
            self._linear.apply(x, [_HEAD.removesuffix(".weight")], "logits", bits=bits)
        elif tied is None:
            graph.contrib("FusedMatMul", [x, "embedding.weight"], "logits", transB=1)  # the table as it is
        else:
            codes, scale, block = tied
            graph.contrib(
                "MatMulNBits",
                [x, codes, scale],
                "logits",
                K=config.hidden,
                N=config.vocab,
                bits=8,
                block_size=block,
                accuracy_level=self._accuracy_level,
            )


def _check_kv(config: ArchConfig, kv_type: KvType, scales: tuple[KvScales, ...] | None) -> None:
    if kv_type == "float16":
        raise ImportFailed("A float16 KV cache does not exist on the CPU", hint="Choose float32 or int8")
    if (kv_type == "int8") != (scales is not None):
        raise ImportFailed("Scales belong to an int8 KV cache and to no other", hint="Give scales for every layer")
    if config.head_dim % HEAD_DIM_STEP:
        raise ImportFailed(
            f"Heads of width {config.head_dim} are not supported, it must be a multiple of {HEAD_DIM_STEP}",
            hint="Take another model",
        )
    if config.heads % config.kv_heads:
        raise ImportFailed(
            f"{config.heads} heads cannot share {config.kv_heads} KV heads evenly",
            hint="The configuration is damaged",
        )
    if scales is None:
        return
    channels = config.kv_heads * config.head_dim
    if len(scales) != config.layers or any(
        (len(kv.key), len(kv.value)) not in ((1, 1), (channels, channels)) for kv in scales
    ):
        raise ImportFailed(
            f"KV scales must be given for {config.layers} layers, one number each for K and V or {channels} each",
            hint="Calibrate them again for this model",
        )
