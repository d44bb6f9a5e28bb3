"""What every kind of tokenizer source is turned into."""

from __future__ import annotations

from typing import Any

import msgspec

from magnitude.models.description import SpecialTokens

# Tokens that end a turn or a text, by their spelling: GGUF files and many configurations name one only, while
# chat models end a turn with one and a text with another. Each is used only where it is a control token.
END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<|eot|>",
    "</s>",
)


class TokenizerParts(msgspec.Struct, frozen=True, kw_only=True):
    """`tokenizer_json` and the configuration are file contents. `tokens` counts ids, added ones included."""

    tokenizer_json: str
    tokenizer_config: dict[str, Any]
    special: SpecialTokens
    tokens: int
    special_tokens_map: dict[str, Any] = {}
    chat_template: str | None = None
    notes: tuple[str, ...] = ()


def end_ids(named: list[int], controls: dict[str, int]) -> tuple[int, ...]:
    """Ids that end a generation: the `named` ones first, then the control tokens that are spelled like an end."""
    found = list(dict.fromkeys(named))
    found += [controls[text] for text in END_TOKENS if text in controls and controls[text] not in found]
    return tuple(found)
