"""What must be the same before KV that one request computed may serve another."""

from __future__ import annotations

import msgspec


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what the numbers in a slot mean, and whose they are. Two scopes never share KV."""

    model: str
    model_hash: str
    layout_id: str  # `KvLayout.layout_id`, with the type of the numbers
    plan: str = ""  # how the graph is run, as far as it changes rounding
    adapter: str = ""
    owner: str = ""  # name of the API key; "" for local clients without one
