"""`models:` where model folders lie, and which answer when a request names an alias."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ModelsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    folder: Annotated[
        str | None,
        Meta(
            description="Folder with one folder a model. Unset: /var/lib/magnitude/models for the system service, "
            "~/.local/share/magnitude/models for a person."
        ),
    ] = None
    load: Annotated[
        list[str] | None,
        Meta(
            description="Names of models to load at start besides the chat model. "
            "Unset: every model in the folder that is no chat model. The others are loaded on request."
        ),
    ] = None
    aliases: Annotated[
        dict[str, str], Meta(description="Further names for models, for clients that have a name built in.")
    ] = {}
    pinned: Annotated[list[str], Meta(description="Models that stay in memory. The chat model always does.")] = []
    keep_alive_s: Annotated[
        float,
        Meta(
            ge=0,
            le=31_536_000,
            description="A model that was loaded on request and is not pinned leaves memory after so long unused.",
        ),
    ] = 900.0
