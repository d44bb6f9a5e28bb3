"""LoRA adapters in a GGUF file, as llama.cpp's converter writes them.

Tensors are named after the base's, with `.lora_a` (`[rank, in]`) and `.lora_b` (`[out, rank]`). The scale is
`adapter.lora.alpha / rank`, or 1 where alpha is 0 or missing, as llama.cpp computes it.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from magnitude.models.families.family import Family
from magnitude.models.sources import gguf_blocks
from magnitude.models.sources.adapter import AdapterWeights, low_rank, pair_problems, place_of
from magnitude.models.sources.gguf import canonical_name, rotary_rows
from magnitude.models.sources.gguf_header import GgufTensor, read_header
from magnitude.models.sources.source import refuse

_HINT = "Convert the adapter with llama.cpp's convert_lora_to_gguf.py, for this base, without norms and embeddings"


def read_gguf_adapter(path: Path, *, family: Family, heads: int, kv_heads: int) -> AdapterWeights:
    """The adapter in `path` for a base of `family`. Raises `ImportFailed` that names every part that cannot be used.

    Rows of q and k lie in the file as the base's GGUF has them, so a family's interleaved rotary pairs are undone.
    """
    data = np.memmap(path, dtype=np.uint8, mode="r")
    header = read_header(data, path)
    fields = header.fields
    problems = []
    if fields.get("general.type") != "adapter":
        problems.append("it is a model, not an adapter (general.type)")
    if fields.get("general.architecture") != family.gguf_architecture:
        problems.append(f"it is for {str(fields.get('general.architecture'))[:60]!r}, the base is {family.name}")
    if fields.get("adapter.type") != "lora":
        problems.append(f"an adapter of the type {str(fields.get('adapter.type'))[:60]!r}, only lora is known")
    if fields.get("adapter.alora.invocation_tokens"):
        problems.append("activation by tokens (adapter.alora.invocation_tokens)")
    alpha = fields.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        problems.append(f"adapter.lora.alpha is {str(alpha)[:40]!r}, not a number")
        alpha = 0.0
    sides: dict[str, dict[str, GgufTensor]] = {}
    for name, tensor in header.tensors.items():
        stem, _, side = name.rpartition(".lora_")
        layer = canonical_name(stem).removesuffix(".weight")
        if side not in ("a", "b") or place_of(layer) is None:
            problems.append(f"the tensor {name}, which no layer of the graph takes")
        elif not gguf_blocks.readable(tensor.type):
            problems.append(f"{name} of type {tensor.type.name}")
        else:
            sides.setdefault(layer, {})[side] = tensor
    if not sides:
        problems.append("it has no pair of matrices for any attention or MLP layer")
    for layer, found in sides.items():
        problems += pair_problems(layer, *(found[side].shape if side in found else None for side in "ab"))
    shared = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads} if family.gguf_interleaves_rotary else {}
    if not problems:
        for layer, found in sides.items():
            parts = shared.get(layer.split(".", 3)[3], 1)
            if found["b"].shape[0] % (2 * parts):
                problems.append(f"{layer}: {found['b'].shape[0]} rows are not those of {parts} heads")
    refuse(f"{path.name}: this adapter cannot be used with this base", problems, hint=_HINT)
    pairs = {}
    for layer, found in sides.items():
        place = place_of(layer)
        assert place is not None  # checked above
        a, b = (
            gguf_blocks.dequantise(data[t.offset : t.offset + t.size_bytes], t.type, t.shape)
            for t in (found["a"], found["b"])
        )
        if place[1] in shared:
            b = b[rotary_rows(b.shape[0], shared[place[1]])]
        pairs[place] = low_rank(layer, a, b, alpha / a.shape[0] if alpha else 1.0)
    notes = () if alpha else ("its file has no alpha: the pairs are added as they are",)
    return AdapterWeights(format="gguf", pairs=pairs, licence=str(fields.get("general.license") or ""), notes=notes)
