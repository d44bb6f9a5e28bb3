"""A model that is to be served: how it runs, its KV memory, and what became of loading it."""

from __future__ import annotations

from magnitude.engine.protocol import TensorInfo
from magnitude.errors import MagnitudeError
from magnitude.models.description import ModelDescription
from magnitude.policy.strategy import Strategy
from magnitude.schedule.kv_memory import KvMemory


class ModelPlan:
    """`failure` says why the model cannot serve, `degraded` why it serves on its fallback graph or without its draft
    model `draft` ("" while it does not); `signature` are its graph's inputs and outputs once it is loaded."""

    def __init__(
        self,
        description: ModelDescription,
        strategy: Strategy,
        kv: KvMemory | None,
        draft: ModelDescription | None = None,
    ) -> None:
        self.description = description
        self.strategy = strategy
        self.kv = kv
        self.draft = draft
        self.failure: MagnitudeError | None = None
        self.degraded = ""
        self.signature: tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]] | None = None
