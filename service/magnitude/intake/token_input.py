"""Token ids that a client sends instead of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magnitude.errors import RequestError


def token_ids(given: Sequence[Any], vocab_size: int, param: str) -> list[int]:
    """`given` as ids of a vocabulary with `vocab_size` entries. Raises `RequestError` naming `param`."""
    for value in given:
        if isinstance(value, bool) or not isinstance(value, int):
            raise RequestError(
                f"{param} must be text or token ids; it mixes them with something else",
                param=param,
                code="invalid_type",
            )
        if not 0 <= value < vocab_size:
            raise RequestError(
                f"{param} holds the token id {value}; the model's ids go from 0 to {vocab_size - 1}",
                param=param,
                code="invalid_value",
            )
    return list(given)
