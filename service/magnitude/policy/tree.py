"""The decision tree: what to try first in a situation that no table knows, by features that every board has.

A few plain comparisons, looked up on the device. The tree that is shipped tells memory-bound work from compute-bound
by its roofline position; `magnitude strategy train` grows others from records. The roofline model: Williams, Waterman
and Patterson, "Roofline: an insightful visual performance model for multicore architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from magnitude.board.profile import BoardProfile
from magnitude.policy.situation import Heat, Situation

# Parts that threads and pieces are advised for. Weights are chosen by outcomes of tasks, which no roofline tells.
TreePart = Literal["decode", "prefill", "encode"]
TREE_PARTS: tuple[TreePart, ...] = ("decode", "prefill", "encode")

Feature = Literal["bandwidth_use", "rows", "tokens", "cores", "big_share", "clock_share", "heat", "weight_bytes"]
FEATURES: tuple[Feature, ...] = (
    "bandwidth_use",
    "rows",
    "tokens",
    "cores",
    "big_share",
    "clock_share",
    "heat",
    "weight_bytes",
)
HEAT_LEVEL: dict[Heat, float] = {"cool": 0.0, "warm": 1.0, "hot": 2.0}

# The classic threshold: above this share of memory's bandwidth more threads only wait for each other.
BANDWIDTH_THRESHOLD = 0.7
# Of 4-bit weights with their scales (a block of 32 with a scale and a minimum of 16 bits each takes 5, one with a
# scale alone 4.5). Weights of more bits are fewer products a byte.
BITS_PER_WEIGHT = 4.5


class BoardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A board as the tree sees it. `big_cores` are the cores on which a graph runs fastest together, `cores` all that
    may be used. `read_bytes_s` is what memory gives at most, `macs_s` the multiply-accumulates that the big cores do
    a second at their highest clocks; None: not known of this board."""

    big_cores: Annotated[int, Meta(ge=1)]
    cores: Annotated[int, Meta(ge=1)]
    read_bytes_s: float | None = None
    macs_s: float | None = None


def facts_of_board(profile: BoardProfile, cpus: Collection[int]) -> BoardFacts:
    """What a profile says of a board of which `cpus` may be used. Big are the clusters, from the fastest down, as
    long as the number of cores times the slowest one's speed grows: a graph's work is split evenly."""
    taken = big = 0
    best_rate = macs_s = 0.0
    per_core = math.inf
    for cluster in sorted(profile.clusters, key=lambda cluster: -cluster.capacity):
        members = len(set(cluster.cpus) & set(cpus))
        taken += members
        if members:
            per_core = min(per_core, cluster.macs_per_cycle * cluster.opps[-1].khz * 1e3)
        if taken * cluster.capacity > best_rate:
            best_rate, big, macs_s = taken * cluster.capacity, taken, taken * per_core
    if not big:
        return BoardFacts(big_cores=max(1, len(cpus)), cores=max(1, len(cpus)))
    memory = profile.memory
    return BoardFacts(
        big_cores=big,
        cores=max(big, len(cpus)),
        read_bytes_s=max(memory.read_gb_s.values()) * memory.weights_share * 1e9,
        macs_s=macs_s,
    )


class ModelWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a model asks for: all its weights are read in each run, each is one multiply-accumulate a position."""

    weight_bytes: int
    bits_per_weight: float = BITS_PER_WEIGHT


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What comparisons ask for. `bandwidth_use` is the share of memory's bandwidth that the work takes (1: it waits
    for memory only; None: not known), `cores` those that may be used at once, `big_share` how many of these are big,
    `heat` 0 cool, 1 warm, 2 hot."""

    bandwidth_use: float | None = None
    rows: float = 1.0
    tokens: float = 1.0
    cores: float = 1.0
    big_share: float = 1.0
    clock_share: float = 1.0
    heat: float = 0.0
    weight_bytes: float = 0.0


class Leaf(msgspec.Struct, frozen=True, kw_only=True, tag="leaf"):
    """What to do: so many threads as a share of the big cores or of all of them; a prompt in pieces of `chunk` tokens
    (0: as configured)."""

    threads_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    of: Literal["big", "all"] = "big"
    chunk: Annotated[int, Meta(ge=0)] = 0
    saving_memory: bool = False
    reason: str = ""

    @property
    def in_words(self) -> str:
        cores = "big cores" if self.of == "big" else "cores"
        share = f"all {cores}" if self.threads_share == 1 else f"{self.threads_share:.0%} of the {cores}"
        pieces = f", pieces of {self.chunk}" if self.chunk else ""
        return f"{share}{pieces}{', saving memory' if self.saving_memory else ''}"


class Split(msgspec.Struct, frozen=True, kw_only=True, tag="split"):
    """`then` where `feature` is below `below`, else `otherwise`. `unknown` is the way of what is not known."""

    feature: Feature
    below: float
    then: Split | Leaf
    otherwise: Split | Leaf
    unknown: Literal["then", "otherwise"] = "then"


Node = Split | Leaf


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A tree for each part. `name` says where it is from."""

    name: str
    decode: Split | Leaf
    prefill: Split | Leaf
    encode: Split | Leaf

    def root(self, part: TreePart) -> Node:
        match part:
            case "decode":
                return self.decode
            case "prefill":
                return self.prefill
            case "encode":
                return self.encode


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What a tree says, and the comparisons that led there in `reason`. Fields are a leaf's."""

    threads_share: float
    of: Literal["big", "all"]
    chunk: int
    saving_memory: bool
    reason: str

    def threads(self, board: BoardFacts) -> int:
        """Of this board: at least one, rounded up, and never more than may be used."""
        count = board.big_cores if self.of == "big" else board.cores
        # A share like 1/3 of 3 cores must not become 2 by a rounding error.
        return max(1, min(math.ceil(self.threads_share * count - 1e-6), board.cores))


def default_tree(bandwidth_threshold: float = BANDWIDTH_THRESHOLD) -> Tree:
    """The tree that is shipped: work that takes more than that share of memory's bandwidth gets half of the big
    cores, everything else all of them. So does work of which that is not known: they are right for most of it."""
    computing = Leaf(reason="compute-bound")
    reading = Leaf(threads_share=0.5, saving_memory=True, reason="memory-bound")
    by_roofline = Split(feature="bandwidth_use", below=bandwidth_threshold, then=computing, otherwise=reading)
    return Tree(name="shipped", decode=by_roofline, prefill=by_roofline, encode=by_roofline)


def features_of(
    part: TreePart,
    at: Situation,
    board: BoardFacts,
    model: ModelWork,
    *,
    read_bytes_s: float | None = None,
) -> Features:
    """The features of work of `part` at that moment. `read_bytes_s` is what it was seen to read; None: the roofline
    says it, where the board's two ceilings are known."""
    return Features(
        bandwidth_use=_bandwidth_use(part, at, board, model, read_bytes_s),
        rows=at.rows,
        tokens=at.tokens,
        cores=at.cores,
        big_share=min(1.0, board.big_cores / max(1, at.cores)),
        clock_share=at.clock_share,
        heat=HEAT_LEVEL[at.heat],
        weight_bytes=model.weight_bytes,
    )


def _bandwidth_use(
    part: TreePart, at: Situation, board: BoardFacts, model: ModelWork, seen_bytes_s: float | None
) -> float | None:
    if not board.read_bytes_s:
        return None
    if seen_bytes_s is not None:
        return seen_bytes_s / board.read_bytes_s
    if not board.macs_s or at.clock_share <= 0 or model.weight_bytes <= 0:
        return None
    positions = at.rows if part == "decode" else at.tokens
    reading_s = model.weight_bytes / board.read_bytes_s
    # Fewer cores than there are big ones compute less; memory gives what it gives.
    usable = min(1.0, at.cores / board.big_cores)
    computing_s = (
        positions * model.weight_bytes * 8 / model.bits_per_weight / (board.macs_s * at.clock_share * usable)
    )
    return reading_s / max(reading_s, computing_s)


def advise(tree: Tree, part: TreePart, features: Features) -> Advice:
    """What `tree` says of work with these features."""
    node = tree.root(part)
    path: list[str] = []
    while isinstance(node, Split):
        value: float | None = getattr(features, node.feature)
        if value is None:
            below = node.unknown == "then"
            path.append(f"{node.feature} not known")
        else:
            below = value < node.below
            path.append(f"{node.feature} {value:.3g} {'<' if below else '>='} {node.below:.3g}")
        node = node.then if below else node.otherwise
    reason = ", ".join(path)
    return Advice(
        threads_share=node.threads_share,
        of=node.of,
        chunk=node.chunk,
        saving_memory=node.saving_memory,
        reason=f"{node.reason}: {reason}" if node.reason and reason else node.reason or reason or "always",
    )


def in_words(tree: Tree) -> str:
    """All of it as people read it, a comparison a line."""
    lines = [f"tree: {tree.name}"]
    for part in TREE_PARTS:
        lines += [f"{part}:", *_lines(tree.root(part), "  ")]
    return "\n".join(lines)


def _lines(node: Node, indent: str) -> list[str]:
    if isinstance(node, Leaf):
        return [f"{indent}{node.in_words}{f' ({node.reason})' if node.reason else ''}"]
    unknown = " or not known" if node.unknown == "then" else ""
    return [
        f"{indent}if {node.feature} < {node.below:.3g}{unknown}:",
        *_lines(node.then, indent + "  "),
        f"{indent}else:",
        *_lines(node.otherwise, indent + "  "),
    ]
