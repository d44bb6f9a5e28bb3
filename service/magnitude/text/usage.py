"""Token counts of one answer, in the words of the OpenAI API."""

from __future__ import annotations

from typing import Any

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """`cached_tokens` of the prompt were found computed in a KV slot and were not computed again."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        """The `usage` object of a response."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
