"""Malformed HTTP requests from a seed: the same seed gives the same bytes.

Each kind is one function of a random source. Nothing here opens a socket; `bench/assault.py` sends them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.malformed.bodies import BODIES
from bench.malformed.framing import FRAMES
from bench.malformed.request import MalformedRequest

__all__ = ["KINDS", "MalformedRequest", "requests"]

KINDS = {maker.__name__: maker for maker in (*BODIES, *FRAMES)}


def requests(seed: int, count: int) -> Iterator[MalformedRequest]:
    """`count` requests; every kind comes up about equally often."""
    source = random.Random(seed)
    kinds = list(KINDS.items())
    for number in range(count):
        if number % len(kinds) == 0:
            source.shuffle(kinds)
        name, make = kinds[number % len(kinds)]
        payload, ending = make(source)
        yield MalformedRequest(kind=name, payload=payload, ending=ending)
