"""Parameters in the query of an admin route: only known ones, so that a slip of the pen is told."""

from __future__ import annotations

from starlette.requests import Request

from magnitude.errors import RequestError

# A row of a list is up to 700 bytes of JSON: an answer of 7 MB at most.
MAX_LIMIT = 10_000


def check_known(request: Request, *known: str) -> None:
    """Raises `RequestError` for a parameter that is not among `known`."""
    if unknown := sorted(set(request.query_params) - set(known)):
        name = unknown[0][:40]
        raise RequestError(
            f"The parameter {name!r} is not known",
            hint=f"Known ones are {', '.join(known[:-1])} and {known[-1]}.",
            param=name,
        )


def limit_of(request: Request, default: int) -> int:
    """How many rows at most, by `?limit=`. Raises `RequestError`."""
    text = request.query_params.get("limit", str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_LIMIT:
        raise RequestError(f"limit must be a whole number from 1 to {MAX_LIMIT}", param="limit")
    return int(text)
