"""Which cached token sequence begins like a new one: a radix tree over token ids, and what was evicted lately.

Sequences are views of int arrays and edges are slices of them, compared as blocks: a tree over n sequences has fewer
than 2n edges, however long the sequences are. Pure; nothing here knows slots or files. (NumPy would do it as well,
but costs the service 30 MB that nothing else in it needs.)
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

# A view of an `array("i")`. Slices of it are no copies.
Ids = memoryview
K = TypeVar("K", bound=Hashable)

# Tokens of one remembered piece of an evicted sequence: what was lost is told to this exactness, and an evicted
# sequence of 8,192 tokens takes 128 places in the memory below.
BLOCK_TOKENS = 64
# Pieces that are remembered: the sequences of 64 slots of 8,192 tokens, about 1 MB.
REMEMBERED_BLOCKS = 8192


def as_ids(ids: Sequence[int] | Ids) -> Ids:
    """`ids` as an array of its own. Token ids fit 31 bits; `OverflowError` when one does not."""
    return memoryview(array("i", ids))


def common_tokens(one: Ids, other: Ids) -> int:
    """Length of the longest common beginning. Halves the range, so that it is compared twice at most."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Match(NamedTuple, Generic[K]):
    """The sequence of `key` begins with the first `tokens` ids that were asked for, and not with more of them."""

    key: K
    tokens: int


class _Node(Generic[K]):
    """`edge` leads from the parent to here, `depth` tokens from the root; `keys` are the sequences that end here.

    But for the root, a node without keys has at least two children.
    """

    __slots__ = ("children", "depth", "edge", "keys", "parent")

    def __init__(self, edge: Ids, depth: int, parent: _Node[K] | None) -> None:
        self.edge = edge
        self.depth = depth
        self.parent = parent
        self.children: dict[int, _Node[K]] = {}
        self.keys: set[K] = set()


class PrefixTree(Generic[K]):
    """Sequences by key. The arrays are kept, not copied: nobody may write to them."""

    def __init__(self) -> None:
        self._root: _Node[K] = _Node(as_ids(()), 0, None)
        self._ends: dict[K, _Node[K]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, key: K) -> bool:
        return key in self._ends

    def put(self, key: K, ids: Ids) -> None:
        """From now on `key` stands for `ids`, whatever it stood for."""
        self.remove(key)
        node = self._root
        while node.depth < len(ids):
            rest = ids[node.depth :]
            child = node.children.get(rest[0])
            if child is None:
                child = _Node(rest, len(ids), node)
                node.children[rest[0]] = child
                node = child
                break
            shared = common_tokens(child.edge, rest)
            node = child if shared == len(child.edge) else _split(child, shared)
        node.keys.add(key)
        self._ends[key] = node

    def remove(self, key: K) -> None:
        """Forget `key`; nothing happens when it is not there."""
        node = self._ends.pop(key, None)
        if node is not None:
            node.keys.discard(key)
            _tidy(node)

    def longest(self, ids: Ids) -> int:
        """Length of the longest beginning of `ids` that some sequence has."""
        path = self._path(ids)
        return path[-1][1] if path else 0

    def matches(self, ids: Ids) -> Iterator[Match[K]]:
        """All sequences that share at least one token, longest match first. The tree must not change meanwhile."""
        below: _Node[K] | None = None
        for node, tokens in reversed(self._path(ids)):
            for key in node.keys:
                yield Match(key, tokens)
            for child in node.children.values():
                if child is not below:
                    for key in _keys_under(child):
                        yield Match(key, tokens)
            below = node

    def beginnings(self, ids: Ids) -> list[K]:
        """Keys whose whole sequence is a beginning of `ids` (or equal to it)."""
        return [key for node, tokens in self._path(ids) if tokens == node.depth for key in node.keys]

    def unique_tokens(self, key: K) -> int:
        """Tokens at the end of the sequence of `key` that no other sequence has at the same place."""
        node = self._ends[key]
        return 0 if node.children or len(node.keys) > 1 else len(node.edge)

    def _path(self, ids: Ids) -> list[tuple[_Node[K], int]]:
        """Nodes below the root along `ids`, each with the tokens that all sequences under it share with `ids`."""
        path: list[tuple[_Node[K], int]] = []
        node = self._root
        while node.depth < len(ids):
            child = node.children.get(ids[node.depth])
            if child is None:
                break
            tokens = node.depth + common_tokens(child.edge, ids[node.depth :])
            path.append((child, tokens))
            if tokens < child.depth:
                break
            node = child
        return path


def _keys_under(node: _Node[K]) -> Iterator[K]:
    nodes = [node]
    while nodes:
        node = nodes.pop()
        yield from node.keys
        nodes.extend(node.children.values())


def _split(node: _Node[K], tokens: int) -> _Node[K]:
    """Put a node `tokens` along the edge to `node`, and return it."""
    parent = node.parent
    assert parent is not None, "the root has no edge"
    middle = _Node(node.edge[:tokens], parent.depth + tokens, parent)
    parent.children[middle.edge[0]] = middle
    node.edge = node.edge[tokens:]
    node.parent = middle
    middle.children[node.edge[0]] = node
    return middle


def _tidy(node: _Node[K]) -> None:
    """Take `node` out when no sequence ends or branches there."""
    parent = node.parent
    if parent is None or node.keys or len(node.children) > 1:
        return
    first = node.edge[0]
    if node.children:
        (child,) = node.children.values()
        child.edge = as_ids([*node.edge, *child.edge])
        child.parent = parent
        parent.children[first] = child
    else:
        del parent.children[first]
        _tidy(parent)


class EvictedPrefixes(Generic[K]):
    """A bounded memory of sequences that are no longer held, by hash: enough to say that one was, no more.

    Only for figures: two sequences with one hash would only mislabel a miss.
    """

    def __init__(self, limit: int = REMEMBERED_BLOCKS) -> None:
        self._limit = limit
        # Whose the block was, by tree and hash of everything up to its end; oldest first.
        self._blocks: OrderedDict[tuple[K, int], str] = OrderedDict()

    def add(self, tree: K, owner: str, ids: Ids) -> None:
        for value in _block_hashes(ids):
            self._blocks[tree, value] = owner
            self._blocks.move_to_end((tree, value))
        while len(self._blocks) > self._limit:
            self._blocks.popitem(last=False)

    def longest(self, tree: K, ids: Ids) -> int:
        """Tokens at the beginning of `ids` that were held once, in whole blocks."""
        if not self._blocks:
            return 0
        tokens = 0
        for value in _block_hashes(ids):
            if (tree, value) not in self._blocks:
                break
            tokens += BLOCK_TOKENS
        return tokens

    def forget(self, owner: str | None) -> None:
        """Forget what was `owner`'s; None: everything."""
        kept = {} if owner is None else {block: whose for block, whose in self._blocks.items() if whose != owner}
        self._blocks = OrderedDict(kept)


def _block_hashes(ids: Ids) -> Iterator[int]:
    value = 0
    for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        value = hash((value, ids[start : start + BLOCK_TOKENS].tobytes()))
        yield value
