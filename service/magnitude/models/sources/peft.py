"""LoRA adapters in PEFT's folder: `adapter_config.json` and `adapter_model.safetensors`.

Key names and the rules for scale, rank and pattern keys are those of PEFT's `LoraConfig` and `LoraLayer`. What would
change the result and has no place in the graph is refused, all of it in one error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magnitude.errors import ImportFailed
from magnitude.models.sources.adapter import AdapterWeights, low_rank, pair_problems, place_of
from magnitude.models.sources.folder import inside, read_json
from magnitude.models.sources.safetensors_file import FLOAT_TYPES, StoredTensor, read_safetensors
from magnitude.models.sources.source import refuse

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<layer>.+)\.lora_(?P<side>[AB])(?:\.\w+)?\.weight")

# Keys whose presence changes what the adapter computes, and what they stand for.
_UNSUPPORTED = {
    "use_dora": "DoRA (use_dora), which scales whole weight columns",
    "modules_to_save": "whole layers of its own (modules_to_save)",
    "fan_in_fan_out": "transposed base weights (fan_in_fan_out)",
    "layer_replication": "replicated layers (layer_replication)",
    "lora_bias": "biases of its own (lora_bias)",
    "use_qalora": "QALoRA (use_qalora), which pools inputs by groups",
    "use_bdlora": "block-diagonal LoRA (use_bdlora)",
    "alora_invocation_tokens": "activation by tokens (alora_invocation_tokens)",
    "trainable_token_indices": "new token embeddings (trainable_token_indices)",
    "target_parameters": "parameters that are no linear layer (target_parameters)",
    "arrow_config": "routing among several adapters (arrow_config)",
}
# These initialisations change the base's weights as well, so the saved pair belongs to another base.
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_HINT = "Take an adapter with plain LoRA on attention and MLP layers, or merge it into its base and import the result"


def read_peft(folder: Path) -> AdapterWeights:
    """The adapter in `folder`. Raises `ImportFailed` that names every part that cannot be used."""
    config = read_json(folder, CONFIG_FILE)
    if not isinstance(config, dict):
        raise ImportFailed(f"{CONFIG_FILE} is no object", hint="Download the adapter again", param=str(folder))
    tensors = read_safetensors(_weights_file(folder))
    sides: dict[str, dict[str, StoredTensor]] = {}
    problems = _config_problems(config)
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None or place_of(match["layer"]) is None:
            problems.append(f"the tensor {name}, {_what(name)}")
        elif tensor.dtype not in FLOAT_TYPES:
            problems.append(f"{name} of type {tensor.dtype}")
        else:
            sides.setdefault(match["layer"], {})[match["side"]] = tensor
    if not sides:
        problems.append("it has no pair of matrices for any attention or MLP layer")
    scales: dict[str, float] = {}
    for layer, found in sides.items():
        a, b = (found[side].shape if side in found else None for side in "AB")
        wrong = pair_problems(layer, a, b)
        if not wrong and a is not None:
            declared = _of(config, "rank_pattern", layer, config.get("r"))
            if declared != a[0]:
                wrong = [f"{layer}: rank {a[0]} in {WEIGHTS_FILE}, {declared!r} in {CONFIG_FILE}"]
            else:
                scales[layer], wrong = _scale(config, layer, a[0])
        problems += wrong
    refuse(f"{folder.name}: this adapter cannot be used with a base model here", problems, hint=_HINT)
    pairs = {}
    for layer, found in sides.items():
        place = place_of(layer)
        assert place is not None  # checked above
        pairs[place] = low_rank(layer, found["A"].floats(), found["B"].floats(), scales[layer])
    base = config.get("base_model_name_or_path")
    notes = (f"trained for {str(base)[:200]}",) if base else ()
    return AdapterWeights(format="peft", pairs=pairs, notes=notes)


def _weights_file(folder: Path) -> Path:
    if (folder / WEIGHTS_FILE).is_file():
        return inside(folder, WEIGHTS_FILE)
    pickled = (folder / "adapter_model.bin").exists()
    raise ImportFailed(
        f"{folder}: {WEIGHTS_FILE} is missing" + (", there are only pickled weights (.bin)" if pickled else ""),
        hint="Reading pickled weights could run any code; save the adapter as safetensors where you trust it"
        if pickled
        else "Download the whole adapter folder",
        param=str(folder),
    )


def _config_problems(config: Mapping[str, Any]) -> list[str]:
    problems = []
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        problems.append(f"the method {str(kind)[:40]} (peft_type), only LORA is known")
    if config.get("bias", "none") != "none":
        problems.append(f"trained biases (bias: {str(config['bias'])[:40]})")
    problems += [what for key, what in _UNSUPPORTED.items() if config.get(key)]
    start = str(config.get("init_lora_weights", "")).lower()
    if start.startswith(_CHANGED_BASE):
        problems.append(f"a base that was changed before the training (init_lora_weights: {start[:40]})")
    return problems


def _what(name: str) -> str:
    """What kind of thing a tensor without a place is."""
    for part, what in (
        ("lora_magnitude", "a magnitude of DoRA"),
        ("lora_embedding", "a token embedding"),
        ("embed_tokens", "a token embedding"),
        ("lm_head", "the output layer"),
        ("norm", "a norm"),
        (".bias", "a bias"),
    ):
        if part in name:
            return what
    return "which no layer of the graph takes"


def _of(config: Mapping[str, Any], key: str, layer: str, default: Any) -> Any:
    """The value for `layer` in a table of layer names or regular expressions; PEFT matches from a dot to the end."""
    table = config.get(key) or {}
    if not isinstance(table, Mapping):
        raise ImportFailed(f"{CONFIG_FILE}: {key} is no table", hint="The file is damaged; download it again")
    for pattern, value in table.items():
        try:
            # The pattern is the adapter's own: one that never ends meets the confined job's limit of CPU time.
            if re.match(rf"(.*\.)?({pattern})$", layer):
                return value
        except re.error as error:
            raise ImportFailed(
                f"{CONFIG_FILE}: {key} has a pattern that is none, {str(pattern)[:60]!r} ({error})",
                hint="The file is damaged; download it again",
            ) from error
    return default


def _scale(config: Mapping[str, Any], layer: str, rank: int) -> tuple[float, list[str]]:
    """alpha / rank, or alpha / sqrt(rank) where the adapter is rank-stabilised (Kalajdzievski 2023)."""
    alpha = _of(config, "alpha_pattern", layer, config.get("lora_alpha"))
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        return 0.0, [f"{layer}: lora_alpha is {str(alpha)[:40]!r}, not a number"]
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), []
