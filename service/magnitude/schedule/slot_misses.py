"""Why a prompt has to be computed from some token on. For figures: `other_key` must never reach a client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from magnitude.schedule.prefix_tree import EvictedPrefixes, Ids, PrefixTree
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_choice import Source
from magnitude.schedule.slot_terms import Miss, MissReason, Wanted


class Lookup(NamedTuple):
    """A request that is being placed: its ids as an array, the scope under which its contents are found, and the
    longest matches there, in slots and on disk."""

    wanted: Wanted
    tree: Scope
    ids: Ids
    sources: Sequence[Source]


def why_missed(
    lookup: Lookup,
    used: Source | None,
    *,
    evicted: EvictedPrefixes[Scope],
    trees: Iterable[tuple[Scope, PrefixTree[int] | PrefixTree[str]]],
    min_reuse_tokens: int,
) -> Miss | None:
    """None: nothing was missing but new tokens. `trees` are all scopes' sequences, this one's included."""
    wanted, ids, sources = lookup.wanted, lookup.ids, lookup.sources
    if not wanted.reuse:
        return Miss("off", 0)
    most = len(ids) - 1  # the last token is always computed: its logits are wanted
    at = min(used.tokens, most) if used is not None else 0
    if at >= most:
        return None
    in_memory = max((source.tokens for source in sources if source.slot is not None), default=0)
    known = max((source.tokens for source in sources), default=0)
    reach = max(at, in_memory)
    given_up = min(known, most) > at and min(known, most) >= min_reuse_tokens
    if given_up or evicted.longest(lookup.tree, ids) > reach:
        return Miss("evicted", at)
    elsewhere = _elsewhere(lookup, trees, reach + min_reuse_tokens - 1)
    if elsewhere is not None:
        return Miss(elsewhere, at)
    if used is not None and used.tokens == _length_of(used):
        return None
    if not wanted.keep:
        return Miss("off", at)
    computing = [source.slot for source in sources if source.slot is not None and source.slot.state == "running"]
    if any(slot.valid_tokens == reach < len(slot.ids) for slot in computing):
        return Miss("cold", at)
    return Miss("differs", reach) if reach else Miss("cold", 0)


def _length_of(source: Source) -> int:
    """Tokens that the source has, or will have."""
    return len(source.slot.ids) if source.slot is not None else source.saved_tokens


def _elsewhere(
    lookup: Lookup, trees: Iterable[tuple[Scope, PrefixTree[int] | PrefixTree[str]]], longest: int
) -> MissReason | None:
    """How the scope differs that has the longest match, if one has more than `longest` tokens."""
    found: MissReason | None = None
    for other, sequences in trees:
        if other != lookup.tree and (tokens := sequences.longest(lookup.ids)) > longest:
            longest, found = tokens, _difference(lookup.tree, other)
    return found


def _difference(scope: Scope, other: Scope) -> MissReason:
    """What keeps contents of `other` from `scope`, the most general reason first."""
    # The hash of a model with an adapter is another than its base's.
    if scope.model != other.model or (scope.model_hash != other.model_hash and scope.adapter == other.adapter):
        return "other_model"
    if (scope.layout_id, scope.plan) != (other.layout_id, other.plan):
        return "other_layout"
    return "other_adapter" if scope.adapter != other.adapter else "other_key"
