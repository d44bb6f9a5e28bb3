"""Lost engines for tests of what they leave behind."""

from __future__ import annotations

from typing import Any

from magnitude.engine.protocol import Generate, GrammarSpec, SamplerSettings
from magnitude.feedback.bundles import ServedModel, Victim
from magnitude.feedback.circumstances import Circumstances
from magnitude.feedback.failures import Surroundings
from magnitude.governor.memory_state import MemoryState
from magnitude.models.description import DecoderShape, ModelDescription
from tests.feedback.record_samples import PLAN

SHAPE = DecoderShape(layers=1, kv_heads=1, head_dim=8, vocab_size=100, hidden_size=8, context_length=512)
MODEL = ModelDescription(
    name="m",
    kind="decoder",
    family="llama",
    folder="/models/m",
    graph_file="model.onnx",
    model_hash="ab" * 32,
    weight_bytes=1,
    decoder=SHAPE,
)
SERVED = ServedModel(description=MODEL, facts=PLAN, slots=4, max_inter_token_ms=50.0)
# Words that must never be found where content does not belong.
SECRET_IDS = [77_001, 77_002, 77_003]
SECRET_GRAMMAR = "planted-grammar-words"


def victim(request_id: int = 1, **fields: Any) -> Victim:
    message = Generate(
        request_id=request_id,
        model="m",
        slot=2,
        prompt=SECRET_IDS,
        emitted=[77_004],
        max_new_tokens=20,
        sampler=SamplerSettings(temperature=0.5, seed=9, logit_bias={77_005: 1.0}),
        grammar=GrammarSpec(kind="regex", text=SECRET_GRAMMAR),
        kv_valid_tokens=2,
    )
    values: dict[str, Any] = {
        "model": "m",
        "kind": "generate",
        "prompt_tokens": 3,
        "emitted_tokens": 1,
        "message": message,
        **fields,
    }
    return Victim(request_id=request_id, **values)


def surroundings(**fields: Any) -> Surroundings:
    values: dict[str, Any] = {
        "models": lambda: [SERVED],
        "circumstances": lambda: Circumstances(queue_depth=3),
        "last_lines": lambda: ["Fatal Python error: Segmentation fault"],
        "figures": list,
        "versions": lambda: {"magnitude": "0.1.0"},
        "memory": lambda: MemoryState(step="trim"),
        "headroom_bytes": lambda: 1 << 30,
        "step_deadline_s": 60.0,
        **fields,
    }
    return Surroundings(**values)
