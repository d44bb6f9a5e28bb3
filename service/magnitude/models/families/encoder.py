"""BERT-like encoders: learned positions, layer norms behind each residual, GELU.

An embedder's pooling and normalisation come from its Sentence Transformers files (`modules.json` and the pooling
module's `config.json`); a folder without them is pooled by the mean and normalised, which is how such encoders
are used as embedders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from magnitude.errors import ImportFailed
from magnitude.models.families.family import MAX_LAYERS, MAX_POSITIONS, HasShape, Keys
from magnitude.models.sources.folder import read_json
from magnitude.models.sources.source import ArchConfig, Pooling, refuse

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """Facts about one family of encoders."""

    name: str
    embedder_architectures: tuple[str, ...]
    reranker_architectures: tuple[str, ...]
    gguf_architecture: None = None
    gguf_interleaves_rotary: bool = False
    kind: Literal["encoder"] = "encoder"

    @property
    def huggingface_architectures(self) -> tuple[str, ...]:
        return self.embedder_architectures + self.reranker_architectures

    def from_gguf(self, fields: Mapping[str, Any], tensors: Mapping[str, HasShape]) -> ArchConfig:
        raise ImportFailed(
            f"{self.name} encoders cannot be read from GGUF", hint="Take the model's Hugging Face folder"
        )

    def from_huggingface(self, config: Mapping[str, Any], folder: Path) -> ArchConfig:
        """Configuration from `config.json` and the pooling files. Raises `ImportFailed` for unsupported settings."""
        keys = Keys(config, "config.json")
        hidden, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
        activation = str(config.get("hidden_act", "gelu"))
        positions = str(config.get("position_embedding_type", "absolute"))
        problems = [] if activation in _ACTIVATIONS else [f"activation {activation!r}"]
        if positions != "absolute":
            problems.append(f"position embedding {positions!r}")
        if hidden % heads:
            problems.append(f"{heads} heads in a width of {hidden}")
        reranker = any(name in self.reranker_architectures for name in config.get("architectures", ()))
        pooling, normalise = ("cls", False) if reranker else _pooling(folder, problems)
        refuse(
            "the folder asks for what is not supported", problems, hint="Take another model, or a ready ONNX folder"
        )
        context = keys.whole("max_position_embeddings", most=MAX_POSITIONS)
        return ArchConfig(
            family=self.name,
            kind="reranker" if reranker else "embedder",
            layers=keys.whole("num_hidden_layers", most=MAX_LAYERS),
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            ffn=keys.whole("intermediate_size"),
            vocab=keys.whole("vocab_size", most=1 << 24),
            context_length=min(context, _max_tokens(folder) or context),
            positions=context,
            eps=keys.real("layer_norm_eps"),
            token_types=keys.whole("type_vocab_size", 2),
            activation=cast("Literal['gelu', 'gelu_tanh', 'relu']", _ACTIVATIONS[activation]),
            pooling=cast("Pooling", pooling),
            normalise=normalise,
            labels=_labels(config) if reranker else 0,
            attention_bias=True,
            output_bias=True,
        )

    def tensors(self, config: ArchConfig) -> dict[str, tuple[int, ...]]:
        """Every tensor that the graph reads with its shape, without a `bert.` in front."""
        hidden, ffn = config.hidden, config.ffn
        found: dict[str, tuple[int, ...]] = {
            "embeddings.word_embeddings.weight": (config.vocab, hidden),
            "embeddings.position_embeddings.weight": (config.positions, hidden),
            "embeddings.token_type_embeddings.weight": (config.token_types, hidden),
            "embeddings.LayerNorm.weight": (hidden,),
            "embeddings.LayerNorm.bias": (hidden,),
        }
        matrices = {
            "attention.self.query": (hidden, hidden),
            "attention.self.key": (hidden, hidden),
            "attention.self.value": (hidden, hidden),
            "attention.output.dense": (hidden, hidden),
            "intermediate.dense": (ffn, hidden),
            "output.dense": (hidden, ffn),
        }
        for layer in range(config.layers):
            at = f"encoder.layer.{layer}."
            for name, shape in matrices.items():
                found[f"{at}{name}.weight"], found[f"{at}{name}.bias"] = shape, shape[:1]
            for name in ("attention.output.LayerNorm", "output.LayerNorm"):
                found[f"{at}{name}.weight"] = found[f"{at}{name}.bias"] = (hidden,)
        if config.kind == "reranker":
            found["pooler.dense.weight"], found["pooler.dense.bias"] = (hidden, hidden), (hidden,)
            found["classifier.weight"], found["classifier.bias"] = (config.labels, hidden), (config.labels,)
        return found

    def ignores(self, name: str) -> bool:
        """Position numbers, and heads for other uses: a pooler (embedders pool tokens), BERT's pre-training."""
        return name == "embeddings.position_ids" or name.startswith(("pooler.", "cls."))


def _labels(config: Mapping[str, Any]) -> int:
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, Mapping) else Keys(config, "config.json").whole("num_labels", 2)
    if not 1 <= count <= 4096:
        raise ImportFailed(f"config.json names {count} labels", hint="A reranker has one label, classifiers a few")
    return count


def _pooling(folder: Path, problems: list[str]) -> tuple[str, bool]:
    """How the folder pools its tokens and whether it normalises; unsupported modes are added to `problems`."""
    if not (folder / "modules.json").exists():
        return "mean", True
    modules = read_json(folder, "modules.json")
    pooling, normalise = "mean", False
    for module in modules if isinstance(modules, list) else []:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _pooling_mode(read_json(folder, f"{module.get('path')}/config.json"), problems)
        elif kind == "Normalize":
            normalise = True
        elif kind != "Transformer":
            problems.append(f"the module {kind[:60]!r} behind the encoder")
    return pooling, normalise


def _pooling_mode(settings: Any, problems: list[str]) -> str:
    if not isinstance(settings, Mapping):
        problems.append("a pooling configuration that is no object")
        return "mean"
    modes = [
        k.removeprefix("pooling_mode_") for k, v in settings.items() if k.startswith("pooling_mode_") and v is True
    ]
    named = {"mean_tokens": "mean", "cls_token": "cls"}
    if len(modes) == 1 and modes[0] in named:
        return named[modes[0]]
    problems.append(f"pooling by {' and '.join(modes)[:80] or json.dumps(dict(settings))[:80]}")
    return "mean"


def _max_tokens(folder: Path) -> int | None:
    """Sentence Transformers cuts longer inputs than its `max_seq_length`: the model was trained with those."""
    if not (folder / "sentence_bert_config.json").exists():
        return None
    settings = read_json(folder, "sentence_bert_config.json")
    value = settings.get("max_seq_length") if isinstance(settings, Mapping) else None
    return value if isinstance(value, int) and value > 0 else None
