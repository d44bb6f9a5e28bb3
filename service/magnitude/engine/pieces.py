"""How a prompt is cut, and where a generation that began earlier goes on. Both sides of the engine's socket ask."""

from __future__ import annotations

# A prompt never enters in a piece of one token. The attention of a single token adds up in another order than that
# of several (logits up to 0.6 apart with float KV and INT8 activations), while pieces from two tokens on agree to the
# bit with the prompt in one: so a prompt gives the same answer however much of it was cached and however it was cut.
LEAST_PIECE = 2


def first_position(prompt: int, emitted: int, valid: int) -> int:
    """The position at which to go on, when the first `valid` positions of the slot are right.

    The step whose logits give the next token is always done again. What is left of the prompt is never less than a
    piece.
    """
    start = min(valid, prompt + emitted - 1)
    return start if start >= prompt else max(0, min(start, prompt - LEAST_PIECE))
