"""`models:` where model folders lie, and which answer when a request names an alias."""

from __future__ import annotations

import msgspec


class ModelsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Unset: /var/lib/magnitude/models for the system service, ~/.local/share/magnitude/models for a person.
    folder: str | None = None
    # Names of models to load at start besides the chat model. Unset: every embedder and reranker in the folder.
    load: list[str] | None = None
    # Further names for models, for clients with a name built in: {"gpt-4o-mini": "smollm2-135m-instruct"}.
    aliases: dict[str, str] = {}
