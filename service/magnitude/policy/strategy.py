"""How work is run: sessions by phase, and all settings that may change while the service runs."""

from __future__ import annotations

import hashlib
from functools import cached_property

import msgspec

from magnitude.engine.session_spec import SessionSpec
from magnitude.models.description import KvType


class Strategy(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Settings of one execution. Encoders and plain tensors run as prompts do: by `prefill`.

    `variant` names the model folder whose weights are used ("": the model's own). `prefill_chunk` tokens of a prompt
    enter in one run, `max_batch` generations decode together, at most `max_draft` tokens are drafted ahead.
    `kv_budget_bytes`, and whether the sessions keep the memory of runs (`SessionSpec.arena`), are the memory plan.
    Clock limits by phase are the thermal governor's (`governor/operating_point.py`): it knows what heat follows.
    """

    prefill: SessionSpec
    decode: SessionSpec
    variant: str = ""
    kv_type: KvType | None = None
    prefill_chunk: int = 128
    max_batch: int = 1
    max_draft: int = 0
    kv_budget_bytes: int = 0

    @cached_property
    def strategy_id(self) -> str:
        """The same for the same settings, over restarts too."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:12]

    @property
    def in_words(self) -> str:
        """One line for logs and people."""
        if self.max_batch:
            parts = [
                f"prompts {self.prefill.session_id} in pieces of {self.prefill_chunk}",
                f"answers {self.decode.session_id}, {self.max_batch} at once",
            ]
        else:
            parts = [f"texts {self.prefill.session_id}"]  # of an encoder, or tensors
        if self.max_draft:
            parts.append(f"drafts of {self.max_draft}")
        if self.variant:
            parts.append(f"weights of {self.variant}")
        return "; ".join(parts)
