"""A plain NumPy forward pass of a Llama-like decoder: the independent account that built graphs are checked against.

Written from the papers' formulas, with no speed in mind: float64 throughout, no cache, one sequence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from magnitude.models.sources import WeightSource

Floats = NDArray[np.float64]


def logits(source: WeightSource, ids: list[int]) -> Floats:
    """Logits `[tokens, vocab]` of one sequence."""
    config = source.config
    heads, kv_heads, width = config.heads, config.kv_heads, config.head_dim

    def weight(name: str) -> Floats:
        return source.floats(name).astype(np.float64)

    def norm(x: Floats, scale: Floats) -> Floats:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.eps) * scale

    assert config.rope.kind == "default"
    positions = np.arange(len(ids))
    angle = positions[:, None] / config.rope.theta ** (np.arange(0, width, 2) / width)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]  # [tokens, 1, width / 2]

    def rotate(x: Floats) -> Floats:
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def project(x: Floats, layer: str) -> Floats:
        y = x @ weight(f"{layer}.weight").T
        return y + weight(f"{layer}.bias") if f"{layer}.bias" in source.tensor_names() else y

    def attend(q: Floats, k: Floats, v: Floats) -> Floats:
        k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(width)
        scores = np.where(positions[:, None] >= positions[None], scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        shares = scores / scores.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", shares, v).reshape(len(ids), -1)

    embedding = weight("model.embed_tokens.weight")
    x = embedding[ids]
    for index in range(config.layers):
        layer = f"model.layers.{index}"
        y = norm(x, weight(f"{layer}.input_layernorm.weight"))
        q = project(y, f"{layer}.self_attn.q_proj").reshape(len(ids), heads, width)
        k = project(y, f"{layer}.self_attn.k_proj").reshape(len(ids), kv_heads, width)
        v = project(y, f"{layer}.self_attn.v_proj").reshape(len(ids), kv_heads, width)
        if config.qk_norm:
            q = norm(q, weight(f"{layer}.self_attn.q_norm.weight"))
            k = norm(k, weight(f"{layer}.self_attn.k_norm.weight"))
        x = x + project(attend(rotate(q), rotate(k), v), f"{layer}.self_attn.o_proj")
        y = norm(x, weight(f"{layer}.post_attention_layernorm.weight"))
        gate = project(y, f"{layer}.mlp.gate_proj")
        x = x + project(gate / (1 + np.exp(-gate)) * project(y, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj")
    x = norm(x, weight("model.norm.weight"))
    return x @ (embedding if config.tied_embeddings else weight("lm_head.weight")).T
