"""`genai_config.json`, the description that ONNX Runtime GenAI keeps beside a decoder.

Written for folders that we import, so that they run there; read for folders that people already have.
Field names: ONNX Runtime GenAI, `src/config.h`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from magnitude.errors import ModelError
from magnitude.models.description import DecoderShape, SpecialTokens
from magnitude.models.untrusted import CONFIG_MAX_BYTES, inside, read_capped
from magnitude.persist import write_atomic

GENAI_FILE = "genai_config.json"

# Layers and heads beyond any model that a board could hold; larger numbers are damage.
_MOST_LAYERS = 512
_MOST_HEADS = 1024
_WIDEST = 1 << 20
_LONGEST = 1 << 24


class _Inputs(msgspec.Struct):
    input_ids: str = "input_ids"
    attention_mask: str = "attention_mask"
    position_ids: str = "position_ids"
    past_key_names: str = "past_key_values.%d.key"
    past_value_names: str = "past_key_values.%d.value"


class _Outputs(msgspec.Struct):
    logits: str = "logits"
    present_key_names: str = "present.%d.key"
    present_value_names: str = "present.%d.value"


class _Decoder(msgspec.Struct):
    filename: str = "model.onnx"
    hidden_size: int = 0
    head_size: int = 0
    num_attention_heads: int = 0
    num_hidden_layers: int = 0
    num_key_value_heads: int = 0
    inputs: _Inputs = msgspec.field(default_factory=_Inputs)
    outputs: _Outputs = msgspec.field(default_factory=_Outputs)
    pipeline: Any = None


class _Model(msgspec.Struct):
    type: str = ""
    context_length: int = 0
    vocab_size: int = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    decoder: _Decoder | None = None


class GenaiConfig(msgspec.Struct):
    """The part of `genai_config.json` that says what the graph looks like."""

    model: _Model

    def special(self, *, add_bos: bool) -> SpecialTokens:
        eos = self.model.eos_token_id
        ends = (eos,) if isinstance(eos, int) else tuple(eos or ())
        bos = self.model.bos_token_id if (self.model.bos_token_id or 0) >= 0 else None
        return SpecialTokens(
            bos=bos,
            eos=tuple(dict.fromkeys(token for token in ends if token >= 0)),
            pad=self.model.pad_token_id,
            add_bos=add_bos and bos is not None,
        )


def read_genai_config(folder: Path) -> GenaiConfig:
    """Reads and checks the configuration of a decoder folder. Raises `ModelError`."""
    path = folder / GENAI_FILE
    data = read_capped(path, CONFIG_MAX_BYTES, what="configuration")
    try:
        config = msgspec.json.decode(data, type=GenaiConfig)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path}: this is not a configuration of ONNX Runtime GenAI ({error})",
            hint="The file is cut off or damaged; fetch or build the folder again",
            param=str(path),
        ) from error
    decoder = config.model.decoder
    if decoder is None or decoder.pipeline is not None:
        raise ModelError(
            f"{path}: only plain decoders are supported, this is {config.model.type or 'of no type'!r}",
            hint="Encoders, speech, vision and pipelines in this layout cannot be served yet",
            param=str(path),
        )
    limits = (
        ("num_hidden_layers", decoder.num_hidden_layers, _MOST_LAYERS),
        ("num_key_value_heads", decoder.num_key_value_heads, _MOST_HEADS),
        ("head_size", decoder.head_size, _WIDEST),
        ("hidden_size", decoder.hidden_size, _WIDEST),
        ("vocab_size", config.model.vocab_size, _WIDEST),
        ("context_length", config.model.context_length, _LONGEST),
    )
    for name, value, most in limits:
        if not 1 <= value <= most:
            raise ModelError(
                f"{path}: {name} is {value}, outside 1 to {most}",
                hint="The file is damaged; fetch or build the folder again",
                param=str(path),
            )
    inside(folder, decoder.filename, what=GENAI_FILE)
    names = (
        decoder.inputs.past_key_names,
        decoder.inputs.past_value_names,
        decoder.outputs.present_key_names,
        decoder.outputs.present_value_names,
    )
    for pattern in names:
        if pattern.count("%d") != 1 or pattern.count("%") != 1:
            raise ModelError(
                f"{path}: the KV name {pattern!r} does not hold exactly one %d",
                hint="The file is damaged; fetch or build the folder again",
                param=str(path),
            )
    return config


def shape_from_config(config: GenaiConfig) -> DecoderShape:
    """The decoder's shape as far as the configuration knows it: KV type and inputs must come from the graph."""
    model, decoder = config.model, config.model.decoder
    assert decoder is not None  # read_genai_config refuses a configuration without one
    return DecoderShape(
        layers=decoder.num_hidden_layers,
        kv_heads=decoder.num_key_value_heads,
        head_dim=decoder.head_size,
        vocab_size=model.vocab_size,
        hidden_size=decoder.hidden_size,
        context_length=model.context_length,
        logits_all_positions=True,
        input_ids=decoder.inputs.input_ids,
        attention_mask=decoder.inputs.attention_mask,
        position_ids=decoder.inputs.position_ids,
        past_key=decoder.inputs.past_key_names,
        past_value=decoder.inputs.past_value_names,
        present_key=decoder.outputs.present_key_names,
        present_value=decoder.outputs.present_value_names,
        logits=decoder.outputs.logits,
    )


def genai_config(
    shape: DecoderShape, special: SpecialTokens, *, family: str, graph_file: str, heads: int
) -> dict[str, Any]:
    """The configuration of a decoder that we wrote. Greedy by default; KV buffers are shared in place."""
    inputs = {
        "input_ids": shape.input_ids,
        **({"attention_mask": shape.attention_mask} if shape.attention_mask else {}),
        **({"position_ids": shape.position_ids} if shape.position_ids else {}),
        "past_key_names": shape.past_key,
        "past_value_names": shape.past_value,
    }
    eos = list(special.eos)
    pad = special.pad if special.pad is not None else (eos[0] if eos else 0)
    model: dict[str, Any] = {
        "context_length": shape.context_length,
        "decoder": {
            "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
            "filename": graph_file,
            "head_size": shape.head_dim,
            "hidden_size": shape.hidden_size,
            "inputs": inputs,
            "outputs": {
                "logits": shape.logits,
                "present_key_names": shape.present_key,
                "present_value_names": shape.present_value,
            },
            "num_attention_heads": heads,
            "num_hidden_layers": shape.layers,
            "num_key_value_heads": shape.kv_heads,
        },
        "eos_token_id": eos,
        "pad_token_id": pad,
        "type": family,
        "vocab_size": shape.vocab_size,
    }
    if special.bos is not None:
        model["bos_token_id"] = special.bos
    search = {
        "do_sample": False,
        "max_length": shape.context_length,
        "min_length": 0,
        "num_beams": 1,
        "num_return_sequences": 1,
        "past_present_share_buffer": True,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
    }
    return {"model": model, "search": search}


def write_genai_config(folder: Path, config: dict[str, Any]) -> None:
    write_atomic(folder / GENAI_FILE, json.dumps(config, indent=2).encode() + b"\n")
