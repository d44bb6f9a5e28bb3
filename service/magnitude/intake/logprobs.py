"""Log probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magnitude.intake.answer import TokenChoice
from magnitude.text.tokenizer import TextTokenizer

# JSON has no minus infinity. A token that the sampler ruled out gets this, as OpenAI does.
_RULED_OUT = -9999.0


def chat_logprobs(tokenizer: TextTokenizer, choices: Sequence[TokenChoice], top: int) -> dict[str, Any]:
    """`logprobs` of a chat choice: each token with its bytes and the `top` best alternatives."""
    return {
        "content": [
            {
                **_token(tokenizer, choice.token, choice.logprob.logprob),
                "top_logprobs": [_token(tokenizer, token, value) for token, value in choice.logprob.top[:top]],
            }
            for choice in choices
        ],
        "refusal": None,
    }


def completion_logprobs(
    tokenizer: TextTokenizer, choices: Sequence[TokenChoice], top: int, *, offset: int
) -> dict[str, Any]:
    """`logprobs` of a completion choice; `offset` is where the first token's text begins in the answer."""
    tokens = [_text(tokenizer, choice.token) for choice in choices]
    offsets: list[int] = []
    for text in tokens:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(choice.logprob.logprob) for choice in choices],
        "top_logprobs": [
            {_text(tokenizer, token): _finite(value) for token, value in choice.logprob.top[:top]}
            for choice in choices
        ],
        "text_offset": offsets,
    }


def _token(tokenizer: TextTokenizer, token: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(raw)}


def _text(tokenizer: TextTokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def _finite(value: float) -> float:
    return value if value > _RULED_OUT else _RULED_OUT
