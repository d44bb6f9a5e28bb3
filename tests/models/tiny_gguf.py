"""Write tiny Llama GGUF files with every block format, and damage them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 1, 256, 8, 4, 256, 64
MATRICES = {
    "token_embd": (VOCAB, HIDDEN),
    "blk.0.attn_q": (HIDDEN, HIDDEN),
    "blk.0.attn_k": (HIDDEN * KV_HEADS // HEADS, HIDDEN),
    "blk.0.attn_v": (HIDDEN * KV_HEADS // HEADS, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HIDDEN),
    "blk.0.ffn_gate": (FFN, HIDDEN),
    "blk.0.ffn_up": (FFN, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, FFN),
}
NORMS = ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")


def random_weights(seed: int = 3) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    weights = {name: generator.normal(0, 0.08, shape).astype(np.float32) for name, shape in MATRICES.items()}
    return weights | {name: generator.normal(1, 0.2, HIDDEN).astype(np.float32) for name in NORMS}


def encode(values: np.ndarray, kind: Kind) -> np.ndarray:
    """`values` in the format `kind`. gguf cannot quantise to K formats: these get random blocks of the same size."""
    if kind == Kind.F32:
        return values
    if kind == Kind.F16:
        return values.astype(np.float16)
    if kind not in (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):
        return gguf.quants.quantize(values, kind)
    rows, columns = values.shape
    items, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(rows)
    data = generator.integers(0, 256, (rows, columns // items, size), dtype=np.uint8)
    # 0.08 is the spread of `random_weights`; the codes and the inner scales multiply these outer ones.
    scale = np.array([0.08 / (32 * 64)] * 2, np.float16).view(np.uint8)
    if kind == Kind.Q6_K:
        data[..., 208:210] = scale[:2]
        return data.reshape(rows, -1)
    data[..., 0:2], data[..., 2:4] = scale[:2], (np.array([0.08 / 64], np.float16)).view(np.uint8)
    return data.reshape(rows, -1)


def write(
    path: Path, kind: Kind, *, kinds: dict[str, Kind] | None = None, fields: dict[str, Any] | None = None
) -> Path:
    """A Llama of one layer with all matrices in `kind`, or in that of `kinds` for the named ones. `fields`: texts and
    lists that it says more, or otherwise."""
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {
        "llama.block_count": LAYERS,
        "llama.context_length": 64,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
    }
    for name, number in numbers.items():
        writer.add_uint32(name, number)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("general.license", "apache-2.0")
    tokens = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCAB)]}
    for name, value in (tokens | (fields or {})).items():
        (writer.add_array if isinstance(value, list) else writer.add_string)(name, value)
    for name, values in random_weights().items():
        chosen = Kind.F32 if name in NORMS else (kinds or {}).get(name, kind)
        writer.add_tensor(f"{name}.weight", encode(values, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_whole(path: Path) -> Path:
    """One with a tokenizer, which can be imported and served."""
    tokens = [*(chr(ord("!") + number) for number in range(VOCAB - 1)), '!"']
    tokenizer = {"tokens": tokens, "model": "gpt2", "pre": "gpt-2", "merges": ['! "']}
    return write(path, Kind.Q8_0, fields={f"tokenizer.ggml.{name}": value for name, value in tokenizer.items()})
