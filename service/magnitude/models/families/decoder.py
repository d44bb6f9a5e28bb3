"""Llama-like decoders: RMS norms, rotary attention with grouped heads, SwiGLU.

A family says only by which tensors it differs; configuration, names and graph are shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from magnitude.errors import ImportFailed
from magnitude.models.families.family import MAX_LAYERS, MAX_POSITIONS, HasShape, Keys
from magnitude.models.sources.source import ArchConfig, Rope, refuse

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """Facts about one family of decoders. `attention_bias` is what its files have when they do not say."""

    name: str
    gguf_architecture: str | None
    huggingface_architectures: tuple[str, ...]
    gguf_interleaves_rotary: bool = False
    attention_bias: bool = False
    output_bias_follows: bool = False  # Llama's `attention_bias` covers the output projection as well
    qk_norm: bool = False
    kind: Literal["decoder"] = "decoder"

    def from_gguf(self, fields: Mapping[str, Any], tensors: Mapping[str, HasShape]) -> ArchConfig:
        """Configuration from a GGUF header. Raises `ImportFailed` for what the graph cannot express."""
        keys = Keys(fields, "the GGUF header", f"{self.gguf_architecture}.")
        hidden, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
        head_dim = keys.whole("attention.key_length", _head_dim(hidden, heads, keys.where))
        rope_kind = str(fields.get(keys.prefix + "rope.scaling.type", "none"))
        refuse(
            "the GGUF header asks for what is not supported",
            [
                *_when(
                    keys.whole("attention.value_length", head_dim) != head_dim, "heads of k and v of unequal width"
                ),
                *_when(keys.whole("rope.dimension_count", head_dim) != head_dim, "rotation of a part of each head"),
                *_when(rope_kind not in ("none", "linear"), f"rope scaling {rope_kind!r}"),
                *_when(keys.whole("expert_count", 0, least=0) > 0, "mixture of experts"),
                *_when("rope_factors_long.weight" in tensors, "rope scaling 'longrope'"),
            ],
            hint="Take another model or variant of it, or a ready ONNX folder",
        )
        embedding = tensors.get(_EMBEDDING)
        if embedding is None or len(embedding.shape) != 2:
            raise ImportFailed("the GGUF file has no token_embd.weight matrix", hint="The file is incomplete")
        return ArchConfig(
            family=self.name,
            kind="decoder",
            layers=keys.whole("block_count", most=MAX_LAYERS),
            hidden=hidden,
            heads=heads,
            kv_heads=keys.whole("attention.head_count_kv", heads),
            head_dim=head_dim,
            ffn=keys.whole("feed_forward_length"),
            vocab=embedding.shape[0],
            context_length=keys.whole("context_length", most=MAX_POSITIONS),
            eps=keys.real("attention.layer_norm_rms_epsilon"),
            rope=Rope(
                theta=keys.real("rope.freq_base", 10000.0),
                kind="linear" if rope_kind == "linear" else "default",
                factor=keys.real("rope.scaling.factor", 1.0),
            ),
            tied_embeddings=_HEAD not in tensors,
            attention_bias="model.layers.0.self_attn.q_proj.bias" in tensors,
            output_bias="model.layers.0.self_attn.o_proj.bias" in tensors,
            qk_norm=self.qk_norm,
        )

    def from_huggingface(self, config: Mapping[str, Any], folder: Path) -> ArchConfig:
        """Configuration from `config.json`. Raises `ImportFailed` for what the graph cannot express."""
        keys = Keys(config, "config.json")
        hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
        rope, problems = _rope(config)
        bias = keys.flag("attention_bias", self.attention_bias)
        refuse(
            "config.json asks for what is not supported",
            [
                *problems,
                *_when(config.get("hidden_act", "silu") != "silu", f"activation {config.get('hidden_act')!r}"),
                *_when(keys.flag("mlp_bias", False), "biases in the MLP"),
                *_when(keys.flag("use_sliding_window", False), "sliding-window attention"),
                *_when("quantization_config" in config, "weights quantised in a format of their own"),
            ],
            hint="Take another variant of the model, for example a GGUF file of it",
        )
        return ArchConfig(
            family=self.name,
            kind="decoder",
            layers=keys.whole("num_hidden_layers", most=MAX_LAYERS),
            hidden=hidden,
            heads=heads,
            kv_heads=keys.whole("num_key_value_heads", heads),
            head_dim=keys.whole("head_dim", _head_dim(hidden, heads, keys.where)),
            ffn=keys.whole("intermediate_size"),
            vocab=keys.whole("vocab_size", most=1 << 24),
            context_length=keys.whole("max_position_embeddings", most=MAX_POSITIONS),
            eps=keys.real("rms_norm_eps"),
            rope=rope,
            tied_embeddings=keys.flag("tie_word_embeddings", False),
            attention_bias=bias,
            output_bias=bias and self.output_bias_follows,
            qk_norm=self.qk_norm,
        )

    def tensors(self, config: ArchConfig) -> dict[str, tuple[int, ...]]:
        """Every tensor of the family with its shape, under Hugging Face's names."""
        hidden, ffn = config.hidden, config.ffn
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        found: dict[str, tuple[int, ...]] = {_EMBEDDING: (config.vocab, hidden), "model.norm.weight": (hidden,)}
        if not config.tied_embeddings:
            found[_HEAD] = (config.vocab, hidden)
        for layer in range(config.layers):
            at = f"model.layers.{layer}."
            found[at + "input_layernorm.weight"] = (hidden,)
            found[at + "post_attention_layernorm.weight"] = (hidden,)
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                found[f"{at}self_attn.{name}_proj.weight"] = (rows, hidden)
                if config.attention_bias:
                    found[f"{at}self_attn.{name}_proj.bias"] = (rows,)
            found[at + "self_attn.o_proj.weight"] = (hidden, q)
            if config.output_bias:
                found[at + "self_attn.o_proj.bias"] = (hidden,)
            if config.qk_norm:
                found[at + "self_attn.q_norm.weight"] = found[at + "self_attn.k_norm.weight"] = (config.head_dim,)
            found[at + "mlp.gate_proj.weight"] = found[at + "mlp.up_proj.weight"] = (ffn, hidden)
            found[at + "mlp.down_proj.weight"] = (hidden, ffn)
        return found

    def ignores(self, name: str) -> bool:
        """Tables that the graph computes itself or reads elsewhere, and a tied output layer stored twice."""
        return name in (_HEAD, "rope_freqs.weight") or name.endswith(".rotary_emb.inv_freq")


def _when(wrong: bool, what: str) -> tuple[str, ...]:
    return (what,) if wrong else ()


def _head_dim(hidden: int, heads: int, where: str) -> int:
    if heads > hidden:
        raise ImportFailed(f"{where}: {heads} heads in a width of {hidden}", hint="The configuration is damaged")
    return hidden // heads


def _rope(config: Mapping[str, Any]) -> tuple[Rope, list[str]]:
    """Rotation settings, and the names of those that cannot be expressed.

    Transformers before version 5 writes `rope_theta` and `rope_scaling`, later ones `rope_parameters`.
    """
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(settings, Mapping):
        return Rope(), [f"rope settings {str(settings)[:40]!r}"]
    keys = Keys(settings, "config.json's rope settings")
    theta = Keys(config, "config.json").real("rope_theta", keys.real("rope_theta", 10000.0))
    kind = str(settings.get("rope_type") or settings.get("type") or "default")
    partial = config.get("partial_rotary_factor", settings.get("partial_rotary_factor", 1.0))
    problems = [*_when(partial not in (1, 1.0), "rotation of a part of each head")]
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=keys.real("factor")), problems
    if kind == "llama3":
        return Rope(
            theta=theta,
            kind="llama3",
            factor=keys.real("factor"),
            low_freq_factor=keys.real("low_freq_factor"),
            high_freq_factor=keys.real("high_freq_factor"),
            original_context=keys.whole("original_max_position_embeddings", most=MAX_POSITIONS),
        ), problems
    if kind != "default":
        problems.append(f"rope scaling {kind!r}")
    return Rope(theta=theta), problems
