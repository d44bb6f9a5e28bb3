"""A decoder with random weights in the shape of Qwen2-0.5B, as a GGUF file that our import and llama.cpp both read.

Its text is nonsense: it is for measuring speed at a size that no embedded model has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Of a Llama-like decoder; by default that of Qwen2-0.5B (its config.json)."""

    layers: int = 24
    hidden: int = 896
    heads: int = 14
    kv_heads: int = 2
    ffn: int = 4864
    vocab: int = 151936
    context: int = 4096

    @property
    def name(self) -> str:
        return f"synthetic-{self.layers}x{self.hidden}"

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of all matrices by their names in GGUF files."""
        kv = self.hidden // self.heads * self.kv_heads
        found = {"token_embd": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            found |= {
                f"blk.{layer}.attn_q": (self.hidden, self.hidden),
                f"blk.{layer}.attn_k": (kv, self.hidden),
                f"blk.{layer}.attn_v": (kv, self.hidden),
                f"blk.{layer}.attn_output": (self.hidden, self.hidden),
                f"blk.{layer}.ffn_gate": (self.ffn, self.hidden),
                f"blk.{layer}.ffn_up": (self.ffn, self.hidden),
                f"blk.{layer}.ffn_down": (self.hidden, self.ffn),
            }
        return found


# Bytes of a block of 32 weights, without its scale: with 4 bits, and with 8 for the embedding, which is the output
# layer as well.
_Q4_BYTES, _Q8_BYTES = 16, 32
# The scale of all blocks: weights of a spread of about 1/√896, as a trained model's have.
_SCALE = 0.0072


def write_synthetic(path: Path, shape: Shape) -> Path:
    """Write the file unless it is there; a run that is interrupted leaves no file of that name."""
    if path.is_file():
        return path
    import gguf

    kinds = gguf.GGMLQuantizationType
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _describe(writer, shape)
    rng = np.random.default_rng(1)
    for name, (rows, columns) in shape.matrices().items():
        wide = name == "token_embd"
        data = _blocks(rng, rows, columns // 32, _Q8_BYTES if wide else _Q4_BYTES)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kinds.Q8_0 if wide else kinds.Q4_0)
    norms = [f"blk.{layer}.{part}_norm" for layer in range(shape.layers) for part in ("attn", "ffn")]
    for name in (*norms, "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(shape.hidden, np.float32), raw_dtype=kinds.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)
    return path


def _blocks(rng: np.random.Generator, rows: int, blocks: int, size: int) -> NDArray[np.uint8]:
    """Random codes behind one float16 scale each, `[rows, bytes of a row]`."""
    data = np.empty((rows, blocks, 2 + size), np.uint8)
    data[..., 2:] = rng.integers(0, 256, (rows, blocks, size), np.uint8)
    # 8 bits have sixteen times the steps of 4.
    scale = np.float16(_SCALE if size == _Q4_BYTES else _SCALE / 16)
    data[..., :2] = np.array([scale]).view(np.uint8)
    return data.reshape(rows, -1)


def _describe(to: Any, shape: Shape) -> None:
    """Everything but tensors, into a `GGUFWriter`."""
    numbers = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "vocab_size": shape.vocab,
    }
    for name, number in numbers.items():
        to.add_uint32(f"llama.{name}", number)
    to.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    to.add_string("general.license", "apache-2.0")
    to.add_string("general.name", shape.name)
    # Every byte by itself in the form that byte-level tokenizers write them in, then words that no text has.
    single = [chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))]
    single += [chr(256 + number) for number in range(256 - len(single))]
    tokens = [*single, '!"'][: shape.vocab]
    tokens += [f"\u0120\u0120{number}\u0120" for number in range(shape.vocab - len(tokens))]
    to.add_string("tokenizer.ggml.model", "gpt2")
    to.add_string("tokenizer.ggml.pre", "gpt-2")
    to.add_array("tokenizer.ggml.tokens", tokens)
    to.add_array("tokenizer.ggml.merges", ['! "'])
    to.add_uint32("tokenizer.ggml.bos_token_id", 0)
    to.add_uint32("tokenizer.ggml.eos_token_id", 1)
