"""`engine:` what runs the model, and how."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # A model folder, or the `model.onnx` inside one; unset: the first chat model of `models.folder`.
    model_path: str | None = None
    # KV slots: so many generations may be open at once.
    max_batch_size: Annotated[int, Meta(ge=1, le=64)] = 4
    # Tokens of a prompt that one graph run takes in.
    prefill_chunk_size: Annotated[int, Meta(ge=1, le=4096)] = 128
    # The strategy loop: parsed, and fixed to the default strategy for now.
    self_optimize: bool = True
    optimization_window: Annotated[int, Meta(ge=1, le=100_000)] = 50
    # Positions of a KV slot (prompt + answer). The model's own limit is the upper bound.
    context_length: Annotated[int, Meta(ge=64, le=1_048_576)] = 8192
    # 0: min(cores this process may use, CPU quota).
    threads: Annotated[int, Meta(ge=0, le=256)] = 0
    # New tokens when a request names no limit (small models do best with short answers).
    default_max_tokens: Annotated[int, Meta(ge=1, le=1_048_576)] = 256
    default_temperature: Annotated[float, Meta(ge=0, le=2)] = 0.3
    # No graph run may take longer: an engine past it is taken for hung and replaced.
    step_deadline_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0
