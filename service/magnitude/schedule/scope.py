"""What must be the same before KV that one request computed may serve another."""

from __future__ import annotations

import msgspec

from magnitude.models.adapters import kv_hash


class Scope(msgspec.Struct, frozen=True):
    """What must be equal for KV to be used again. `adapter` is its hash ("": the base alone), `owner` the name of the
    API key."""

    model: str
    model_hash: str
    layout_id: str
    plan: str
    adapter: str
    owner: str

    @property
    def header_hash(self) -> str:
        """The model hash in headers of slots that hold such KV."""
        return kv_hash(self.model_hash, self.adapter)
