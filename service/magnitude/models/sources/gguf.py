"""Weights from a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from magnitude.errors import ImportFailed
from magnitude.models.families import family_of_gguf
from magnitude.models.sources import gguf_blocks
from magnitude.models.sources.gguf_header import GgufTensor, read_header
from magnitude.models.sources.source import ArchConfig, BlockMatrix, refuse

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def canonical_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name without one stays as it is."""
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdigit() and parts[2] in _LAYER_NAMES:
        return f"model.layers.{int(parts[1])}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return name


def rotary_rows(rows: int, heads: int) -> NDArray[np.intp]:
    """Row order that turns a Llama GGUF's interleaved rotary pairs back into two halves a head.

    The converter wrote row `2i + j` of a head from row `i + j * head_dim / 2`; this is the inverse.
    """
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


class GgufSource:
    """A GGUF file, memory-mapped. Raises `ImportFailed` where the file cannot be used."""

    format: Literal["gguf"] = "gguf"

    def __init__(self, path: Path):
        if path.stat().st_size == 0:
            raise ImportFailed(f"{path.name} is empty", hint="Download the file again")
        self._data = np.memmap(path, dtype=np.uint8, mode="r")
        header = read_header(self._data, path)
        if header.fields.get("general.type") == "adapter":
            raise ImportFailed(
                f"{path.name}: this is an adapter, not a model",
                hint="Name the imported model that it belongs to: --adapter-for NAME",
            )
        self._path = path
        self._family = family_of_gguf(header.fields, path)
        self._tensors: dict[str, GgufTensor] = {}
        for tensor in header.tensors.values():
            name = canonical_name(tensor.name)
            if name in self._tensors:
                raise ImportFailed(f"{path.name}: two tensors stand for {name}", hint="The file is damaged")
            self._tensors[name] = tensor
        refuse(
            f"{path.name}: tensors of a type that cannot be read",
            (f"{t.name} ({t.type.name})" for t in header.tensors.values() if not gguf_blocks.readable(t.type)),
            hint="Requantise the model to one of F16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K",
        )
        self._config = self._family.from_gguf(header.fields, self._tensors)
        self._metadata = _metadata(header.fields, path)

    @property
    def family(self) -> str:
        return self._family.name

    @property
    def config(self) -> ArchConfig:
        return self._config

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._metadata

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def stored_as(self, name: str) -> str:
        return str(self._tensor(name).type.name)

    def floats(self, name: str) -> NDArray[np.float32]:
        tensor = self._tensor(name)
        values = gguf_blocks.dequantise(self._bytes(tensor), tensor.type, tensor.shape)
        order = self._row_order(name, tensor)
        return values if order is None else values[order]

    def blocks(self, name: str) -> BlockMatrix | None:
        tensor = self._tensor(name)
        if len(tensor.shape) != 2:
            return None
        matrix = gguf_blocks.unpack(self._bytes(tensor), tensor.type, tensor.shape[0])
        order = self._row_order(name, tensor)
        return matrix if matrix is None or order is None else matrix.take_rows(order)

    def _tensor(self, name: str) -> GgufTensor:
        if name not in self._tensors:
            raise ImportFailed(f"{self._path.name} has no tensor {name}", hint="The file is incomplete")
        return self._tensors[name]

    def _bytes(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        return self._data[tensor.offset : tensor.offset + tensor.size_bytes]

    def _row_order(self, name: str, tensor: GgufTensor) -> NDArray[np.intp] | None:
        if not self._family.gguf_interleaves_rotary:
            return None
        if ".self_attn.q_proj." in name:
            return rotary_rows(tensor.shape[0], self._config.heads)
        if ".self_attn.k_proj." in name:
            return rotary_rows(tensor.shape[0], self._config.kv_heads)
        return None


def _metadata(fields: Mapping[str, Any], path: Path) -> dict[str, Any]:
    def token(name: str) -> int | None:
        value = fields.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) else None

    eos = [t for t in (token("eos"), token("eot"), token("eom")) if t is not None]
    return {
        "name": str(fields.get("general.name") or path.stem),
        "licence": str(fields.get("general.license") or ""),
        "bos": token("bos"),
        "eos": list(dict.fromkeys(eos)),
        "pad": token("padding"),
        "chat_template": fields.get("tokenizer.chat_template"),
        "gguf": fields,
    }
