"""What all messages between the service and its engine have in common."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", array_like=False):
    """Root of all messages."""
