"""Long prompts are the first that is refused when memory is short: the KV of one takes as much as many short ones."""

from __future__ import annotations

from magnitude.errors import MemoryPressure

# When it is worth sending one again: a step against the shortage holds for half a minute at least.
RETRY_S = 30.0


class LongPrompts:
    """While they are `refused`, a prompt may have at most `most_tokens` to compute."""

    def __init__(self) -> None:
        self.refused = False
        self.most_tokens = 0

    def check(self, tokens: int) -> None:
        """Raises `MemoryPressure` for a prompt of which more tokens than that have to be computed."""
        if self.refused and tokens > self.most_tokens:
            raise MemoryPressure(
                f"memory is short: prompts with more than {self.most_tokens} tokens to compute are refused for now, "
                f"this one has {tokens}",
                retry_after_s=RETRY_S,
                hint="Send it again later, or a shorter one; 'magnitude ps' shows how the memory is",
            )
