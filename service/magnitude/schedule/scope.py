"""What must be the same before KV that one request computed may serve another."""

from __future__ import annotations

import msgspec


class Scope(msgspec.Struct, frozen=True):
    """What must be equal for KV to be used again. `owner` is the name of the API key."""

    model: str
    model_hash: str
    layout_id: str
    plan: str
    adapter: str
    owner: str
