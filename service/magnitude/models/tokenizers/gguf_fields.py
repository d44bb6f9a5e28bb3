"""The tokenizer fields of a GGUF file, checked once, so that what builds on them need not check again.

Field names and token types: GGUF specification, `tokenizer.ggml.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import msgspec

from magnitude.errors import ImportFailed
from magnitude.models.untrusted import (
    MERGES_MAX,
    TEMPLATE_MAX_BYTES,
    TOKEN_MAX_BYTES,
    VOCABULARY_MAX_TOKENS,
)

_PREFIX = "tokenizer.ggml."


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GgufTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """`types` and `tokens` are as long as the vocabulary; `scores` is empty or as long."""

    model: str
    pre: str | None
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    bos: int | None
    eos: int | None
    unk: int | None
    pad: int | None
    further_ends: list[int]
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool | None
    chat_template: str | None

    def of_type(self, *kinds: TokenType) -> dict[str, int]:
        """Spelling and id of all tokens of these types, in the order of their ids."""
        return {text: i for i, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True)) if kind in kinds}

    def spelling(self, token: int | None) -> str | None:
        return None if token is None else self.tokens[token]


def gguf_tokenizer(metadata: Mapping[str, Any]) -> GgufTokenizer:
    """Reads and checks the fields. Raises `ImportFailed` when they are missing, too large or do not agree."""
    model = metadata.get(_PREFIX + "model")
    if not isinstance(model, str):
        raise ImportFailed(
            "the GGUF file has no tokenizer (tokenizer.ggml.model is missing)",
            hint="It holds weights only; use a complete file",
            param="tokenizer.ggml.model",
        )
    tokens = [_not_empty(i, text) for i, text in enumerate(_list(metadata, "tokens", str, VOCABULARY_MAX_TOKENS))]
    if not tokens:
        raise _bad("tokens", "is empty")
    if len(set(tokens)) != len(tokens):
        raise _bad("tokens", "holds the same token twice")
    if max(len(text) for text in tokens) > TOKEN_MAX_BYTES:
        raise _bad("tokens", f"holds a token of more than {TOKEN_MAX_BYTES} characters")
    types = _list(metadata, "token_type", int, VOCABULARY_MAX_TOKENS) or [int(TokenType.NORMAL)] * len(tokens)
    scores = [float(s) for s in _list(metadata, "scores", (int, float), VOCABULARY_MAX_TOKENS)]
    for name, values in (("token_type", types), ("scores", scores)):
        if values and len(values) != len(tokens):
            raise _bad(name, f"has {len(values)} entries for {len(tokens)} tokens")
    further = [_id(metadata, name, len(tokens)) for name in ("eot_token_id", "eom_token_id")]
    return GgufTokenizer(
        model=model,
        pre=_optional(metadata, "pre", str),
        tokens=tokens,
        types=types,
        scores=scores,
        merges=_list(metadata, "merges", str, MERGES_MAX),
        bos=_id(metadata, "bos_token_id", len(tokens)),
        eos=_id(metadata, "eos_token_id", len(tokens)),
        unk=_id(metadata, "unknown_token_id", len(tokens)),
        pad=_id(metadata, "padding_token_id", len(tokens)),
        further_ends=[token for token in further if token is not None],
        add_bos=_optional(metadata, "add_bos_token", bool),
        add_eos=bool(_optional(metadata, "add_eos_token", bool)),
        add_space_prefix=_optional(metadata, "add_space_prefix", bool),
        chat_template=_template(metadata),
    )


def _bad(name: str, what: str) -> ImportFailed:
    return ImportFailed(
        f"the GGUF file's {_PREFIX}{name} {what}",
        hint="The file is damaged or was made by a broken converter; fetch it again",
        param=_PREFIX + name,
    )


def _not_empty(index: int, text: str) -> str:
    # Some converters leave holes; they need a spelling of their own that no text produces by accident.
    return text or f"[EMPTY_{index}]"


def _optional(metadata: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = metadata.get(_PREFIX + name)
    if value is not None and not isinstance(value, kind):
        raise _bad(name, f"is {type(value).__name__}, not {kind.__name__}")
    return value


def _list(metadata: Mapping[str, Any], name: str, kind: Any, longest: int) -> list[Any]:
    value = metadata.get(_PREFIX + name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _bad(name, "is not a list")
    if len(value) > longest:
        raise _bad(name, f"has {len(value)} entries, more than the {longest} that are read")
    if not all(isinstance(item, kind) for item in value):
        raise _bad(name, "holds a value of another type")
    return value


def _id(metadata: Mapping[str, Any], name: str, tokens: int) -> int | None:
    value = metadata.get(_PREFIX + name)
    if value is None or value == 2**32 - 1:  # converters write -1 as an unsigned number for "none"
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < tokens:
        raise _bad(name, f"is {value!r}, outside the vocabulary of {tokens} tokens")
    return value


def _template(metadata: Mapping[str, Any]) -> str | None:
    value = metadata.get("tokenizer.chat_template")
    if value is None:
        return None
    if not isinstance(value, str) or len(value.encode()) > TEMPLATE_MAX_BYTES:
        raise ImportFailed(
            f"the GGUF file's tokenizer.chat_template is not a text of at most {TEMPLATE_MAX_BYTES} bytes",
            hint="The file is damaged; fetch it again",
            param="tokenizer.chat_template",
        )
    return value or None
