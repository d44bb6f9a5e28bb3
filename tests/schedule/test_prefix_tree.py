from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.schedule.prefix_tree import BLOCK_TOKENS, EvictedPrefixes, Ids, PrefixTree, as_ids, common_tokens

# Few tokens, so that sequences share beginnings of every length.
sequences = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def lcp(one: Sequence[int], other: Sequence[int]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


def tree_of(*known: Sequence[int]) -> PrefixTree[int]:
    tree: PrefixTree[int] = PrefixTree()
    for key, ids in enumerate(known):
        tree.put(key, as_ids(ids))
    return tree


@given(sequences, sequences)
def test_the_common_beginning_is_that_of_a_token_by_token_comparison(one: list[int], other: list[int]) -> None:
    assert common_tokens(as_ids(one), as_ids(other)) == lcp(one, other)


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), sequences)), max_size=30), sequences)
def test_matches_agree_with_comparing_every_sequence_after_any_changes(
    changes: list[tuple[int, list[int] | None]], asked: list[int]
) -> None:
    tree: PrefixTree[int] = PrefixTree()
    held: dict[int, list[int]] = {}
    for key, ids in changes:
        if ids is None:
            tree.remove(key)
            held.pop(key, None)
        else:
            tree.put(key, as_ids(ids))
            held[key] = ids
    found = list(tree.matches(as_ids(asked)))
    assert [match.tokens for match in found] == sorted((match.tokens for match in found), reverse=True)
    expected = {key: lcp(ids, asked) for key, ids in held.items() if lcp(ids, asked)}
    assert {match.key: match.tokens for match in found} == expected
    assert len(found) == len(expected)
    assert tree.longest(as_ids(asked)) == max(expected.values(), default=0)
    assert sorted(tree.beginnings(as_ids(asked))) == [
        k for k, ids in sorted(held.items()) if asked[: len(ids)] == ids
    ]
    assert len(tree) == len(held)
    for key, ids in held.items():
        shared = max((lcp(ids, other) for k, other in held.items() if k != key), default=0)
        assert tree.unique_tokens(key) == len(ids) - shared


def test_a_sequence_that_ends_inside_another_is_found_for_both() -> None:
    tree = tree_of([1, 2, 3], [1, 2, 3, 4, 5])
    found = {match.key: match.tokens for match in tree.matches(as_ids([1, 2, 3, 4, 9]))}
    assert found == {0: 3, 1: 4}


def test_putting_a_key_again_replaces_its_sequence() -> None:
    tree = tree_of([1, 2, 3])
    tree.put(0, as_ids([7, 8]))
    assert tree.longest(as_ids([1, 2, 3])) == 0
    assert tree.longest(as_ids([7, 8, 9])) == 2


def test_a_token_id_beyond_31_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        as_ids([1 << 31])


def blocks(count: int, start: int = 0) -> Ids:
    return as_ids(range(start, start + count * BLOCK_TOKENS))


def test_an_evicted_sequence_is_remembered_up_to_where_a_new_one_differs() -> None:
    evicted: EvictedPrefixes[str] = EvictedPrefixes()
    evicted.add("tree", "ann", blocks(3))
    asked = as_ids(blocks(3))
    asked[2 * BLOCK_TOKENS + 5] = -1
    assert evicted.longest("tree", blocks(3)) == 3 * BLOCK_TOKENS
    assert evicted.longest("tree", asked) == 2 * BLOCK_TOKENS
    assert evicted.longest("another", blocks(3)) == 0


def test_the_memory_of_evicted_sequences_is_bounded_and_loses_the_oldest() -> None:
    evicted: EvictedPrefixes[str] = EvictedPrefixes(limit=4)
    evicted.add("tree", "ann", blocks(2))
    evicted.add("tree", "ann", blocks(4, start=10_000))
    assert evicted.longest("tree", blocks(2)) == 0
    assert evicted.longest("tree", blocks(4, start=10_000)) == 4 * BLOCK_TOKENS


def test_what_was_evicted_of_one_owner_can_be_forgotten_without_the_others() -> None:
    evicted: EvictedPrefixes[str] = EvictedPrefixes()
    evicted.add("a", "ann", blocks(1))
    evicted.add("b", "bob", blocks(1))
    evicted.forget("ann")
    assert [evicted.longest("a", blocks(1)), evicted.longest("b", blocks(1))] == [0, BLOCK_TOKENS]
    evicted.forget(None)
    assert evicted.longest("b", blocks(1)) == 0
