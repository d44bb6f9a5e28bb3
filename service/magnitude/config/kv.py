"""`kv:` the memory of conversations: how much of it there is, who shares it, and what of it is kept on disk."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class KvSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    slots: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="Conversations whose KV can be held at once, running or waiting. "
            "0: eight for each one of engine.max_batch_size. A slot costs memory only for the tokens in it.",
        ),
    ] = 0
    budget_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Memory for all KV of a model. 0: what engine.max_batch_size conversations of full length "
            "take, as far as the board has it.",
        ),
    ] = 0
    share_prefixes: Annotated[
        bool,
        Meta(
            description="Whether one API key may reuse the KV that another one's request computed. It is faster, but "
            "response times then tell whether somebody else sent the same beginning."
        ),
    ] = False
    save: Annotated[
        bool, Meta(description="Whether the KV of idle conversations may be written to the disk and read again.")
    ] = True
    save_after_s: Annotated[
        float,
        Meta(ge=0, le=86400, description="A conversation that was idle for so long is saved, its memory freed."),
    ] = 300.0
    saved_max_bytes: Annotated[int, Meta(ge=0, description="Disk space for saved conversations.")] = 512 * 1024 * 1024
    saved_min_tokens: Annotated[
        int,
        Meta(ge=1, description="Shorter beginnings are computed again instead of being written to flash."),
    ] = 256
    saved_hourly_bytes: Annotated[
        int, Meta(ge=0, description="Most that is written to the disk in an hour: flash wears out.")
    ] = 1024 * 1024 * 1024
