"""`agent:` the agent run time. Read and checked, not active yet."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=64, description="Name the model calls the tool by.")]
    type: Annotated[Literal["local", "builtin"], Meta(description="Where the tool runs.")]


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tools: Annotated[list[ToolSettings], Meta(description="Tools that the agent may call.")] = []
    max_iterations: Annotated[
        int, Meta(ge=1, le=1000, description="Rounds of model and tools after which a run ends in any case.")
    ] = 10
