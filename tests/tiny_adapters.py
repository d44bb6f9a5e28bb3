"""Random LoRA adapters for the tiny golden decoders, in PEFT's folder and in GGUF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from magnitude.models.sources import WeightSource

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
ALL = (*ATTENTION, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
GGUF_NAMES = dict(
    zip(ALL, ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), strict=True)
)
Pairs = dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]


def random_pairs(
    source: WeightSource, modules: tuple[str, ...] = ALL, *, rank: int = 4, ranks: dict[str, int] | None = None,
    seed: int = 7,
) -> Pairs:  # fmt: skip
    """A `[rank, in]` and B `[out, rank]` by layer name, large enough to change the logits."""
    rng = np.random.default_rng(seed)
    pairs: Pairs = {}
    for layer in range(source.config.layers):
        for module in modules:
            name = f"model.layers.{layer}.{module}"
            rows, columns = source.shape(f"{name}.weight")
            width = (ranks or {}).get(module, rank)
            a = rng.normal(0, columns**-0.5, (width, columns)).astype(np.float32)
            pairs[name] = a, rng.normal(0, 0.3, (rows, width)).astype(np.float32)
    return pairs


def write_peft(
    folder: Path, pairs: Pairs, *, alpha: float = 8, rank: int = 4, extra: dict[str, NDArray[Any]] | None = None,
    **config: object,
) -> Path:  # fmt: skip
    folder.mkdir(parents=True)
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "base_model_name_or_path": "tiny"}
    (folder / "adapter_config.json").write_text(json.dumps(said | config))
    tensors: dict[str, NDArray[Any]] = {}
    for name, (a, b) in pairs.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
    save_file(tensors | (extra or {}), folder / "adapter_model.safetensors")
    return folder


def interleaved(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of q or k as llama.cpp's converter orders them."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, rows.shape[1])
    return split.swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path, source: WeightSource, pairs: Pairs, *, alpha: float = 8, fields: dict[str, str] | None = None,
    extra: dict[str, NDArray[Any]] | None = None,
) -> Path:  # fmt: skip
    said = {"general.type": "adapter", "adapter.type": "lora"} | (fields or {})
    writer = gguf.GGUFWriter(path, said.pop("general.architecture", "llama"))
    for key, value in said.items():
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", alpha)
    heads = {"self_attn.q_proj": source.config.heads, "self_attn.k_proj": source.config.kv_heads}
    for name, (a, b) in pairs.items():
        _, _, layer, module = name.split(".", 3)
        stem = f"blk.{layer}.{GGUF_NAMES[module]}.weight"
        writer.add_tensor(f"{stem}.lora_a", a)
        writer.add_tensor(f"{stem}.lora_b", interleaved(b, heads[module]) if module in heads else b)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Merged:
    """A source whose weights have an adapter merged into them."""

    def __init__(self, source: WeightSource, pairs: Pairs, scale: float) -> None:
        self._source = source
        self._pairs = pairs
        self._scale = scale
        self.config = source.config

    def tensor_names(self) -> frozenset[str]:
        return self._source.tensor_names()

    def floats(self, name: str) -> NDArray[np.float32]:
        values = self._source.floats(name)
        pair = self._pairs.get(name.removesuffix(".weight"))
        if pair is None or not name.endswith(".weight"):
            return values
        a, b = pair
        return (values + self._scale * (b.astype(np.float64) @ a)).astype(np.float32)
