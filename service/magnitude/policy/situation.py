"""What is known when a strategy is chosen, in buckets coarse enough to be met again."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal

import msgspec

from magnitude.governor.thermal_terms import HeatState

TaskKind = Literal["generate", "embed", "infer"]
# A part of a strategy that is judged by itself, by what it alone changes: time of a decode step, time of a prompt's
# token, time of an encoder's position, and outcome and time of whole tasks by the weights that they ran with.
Part = Literal["decode", "prefill", "encode", "variant"]
PARTS: tuple[Part, ...] = ("decode", "prefill", "encode", "variant")
Heat = Literal["cool", "warm", "hot"]
MemoryLevel = Literal["ample", "short"]
Supply = Literal["full", "saving", "least"]
PrefixHit = Literal["none", "part", "most"]

# Lower edges. What a token costs changes most between a prompt that fits one piece and one that takes many.
TOKEN_EDGES = (1, 33, 129, 513, 2049)
ROW_EDGES = (1, 2, 3, 5, 9, 17, 33)
# Shares of the highest clock. Below half of it a board is in trouble that no strategy mends.
CLOCK_EDGES = (0.0, 0.5, 0.7, 0.9)

# Nobody knows how warm a board is whose sensors are silent; it is treated as what it may well be.
_HEAT: Mapping[HeatState, Heat] = {"cool": "cool", "warm": "warm", "hot": "hot", "blind": "warm"}


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """One moment, for one task (or for the steps of the moment).

    `tokens` are those to be computed, `rows` sequences decode together, `queue` tasks wait, `cores` may be used at
    once (affinity and quota as they are now), `clock_share` is what limits in force leave of the highest clock.
    """

    task: TaskKind = "generate"
    tokens: int = 1
    rows: int = 1
    queue: int = 0
    cores: int = 1
    heat: Heat = "cool"
    clock_share: float = 1.0
    memory: MemoryLevel = "ample"
    supply: Supply = "full"
    prefix: PrefixHit = "none"


def heat_of(state: HeatState | None) -> Heat:
    """Of what the thermal governor says. None: nobody governs heat here."""
    return "cool" if state is None else _HEAT[state]


def bucket(value: float, edges: tuple[float, ...]) -> float:
    """The largest edge that `value` reaches; the first one below all."""
    return max((edge for edge in edges if value >= edge), default=edges[0])


def key_of(part: Part, at: Situation) -> str:
    """What tells situations apart for a part, as tables and logs write it: "rows=2 cores=4 clock=0.9".

    Only what can change that part's best choice: more would split the samples over situations that are alike.
    """
    board = f"cores={at.cores} clock={bucket(at.clock_share, CLOCK_EDGES):g}"
    match part:
        case "decode":
            return f"rows={bucket(at.rows, ROW_EDGES):g} {board}"
        case "prefill" | "encode":
            return f"tokens={bucket(at.tokens, TOKEN_EDGES):g} {board}"
        case "variant":
            return f"task={at.task} heat={at.heat} memory={at.memory} supply={at.supply}"


def fields_of(key: str) -> dict[str, str]:
    """A key's fields by name."""
    return dict(field.split("=", 1) for field in key.split())


def clockless(key: str) -> str:
    """A key without its clock."""
    return " ".join(field for field in key.split() if not field.startswith("clock="))


def board_part(key: str) -> str:
    """Of a key, what the board sets."""
    return " ".join(field for field in key.split() if field.startswith(("cores=", "clock=")))


@functools.lru_cache(maxsize=512)
def wider(key: str) -> tuple[str, ...]:
    """Keys of situations near `key`, the nearest first: what was learned there is better than nothing.

    Clock first: the same choice is mostly best at another clock. Then rows or tokens. Never other cores: what is
    right with four cores is wrong with one.
    """
    fields = fields_of(key)
    found: list[str] = []
    if "clock" in fields:
        found += [_with(fields, clock=f"{edge:g}") for edge in reversed(CLOCK_EDGES)]
    for name, edges in (("rows", ROW_EDGES), ("tokens", TOKEN_EDGES)):
        if name in fields:
            here = float(fields[name])
            near = sorted(edges, key=lambda edge: (abs(edge - here), edge))
            found += [_with(fields, **{name: f"{edge:g}"}) for edge in near]
    return tuple(other for other in dict.fromkeys(found) if other != key)


def _with(fields: dict[str, str], **changed: str) -> str:
    return " ".join(f"{name}={value}" for name, value in {**fields, **changed}.items())
