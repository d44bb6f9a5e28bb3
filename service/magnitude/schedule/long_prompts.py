"""Long prompts are the first that is refused when memory is short: the KV of one takes as much as many short ones."""

from __future__ import annotations

from magnitude.errors import MemoryPressure

# When it is worth sending one again: a step against the shortage holds for half a minute at least.
RETRY_S = 30.0


class LongPrompts:
    """`most_tokens` is what a prompt may have to compute; None: whatever fits."""

    def __init__(self) -> None:
        self.most_tokens: int | None = None

    def check(self, tokens: int) -> None:
        """Raises `MemoryPressure` for a prompt of which more tokens than that have to be computed."""
        if self.most_tokens is not None and tokens > self.most_tokens:
            raise MemoryPressure(
                f"memory is short: prompts with more than {self.most_tokens} tokens to compute are refused for now, "
                f"this one has {tokens}",
                retry_after_s=RETRY_S,
                hint="Send it again later, or a shorter one; 'magnitude ps' shows how the memory is",
            )
