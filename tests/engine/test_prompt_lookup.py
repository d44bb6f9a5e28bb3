from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.prompt_lookup import MAX_MATCH_TOKENS, MIN_MATCH_TOKENS, Match, PromptLookup

few_ids = st.lists(st.integers(0, 4), max_size=60)


def longest_match(ids: list[int]) -> int:
    """By trying every place."""
    best = 0
    for place in range(MIN_MATCH_TOKENS, len(ids)):
        tokens = 0
        while tokens < min(place, MAX_MATCH_TOKENS) and ids[place - 1 - tokens] == ids[-1 - tokens]:
            tokens += 1
        best = max(best, tokens)
    return best if best >= MIN_MATCH_TOKENS else 0


def test_what_followed_the_end_of_the_text_before_is_proposed():
    lookup = PromptLookup([7, 1, 2, 3, 4, 5, 6, 9, 8, 1, 2, 3])
    assert lookup.propose(2) == [4, 5]
    assert lookup.match() == Match(4, 3)


def test_nothing_is_proposed_where_the_text_is_new():
    assert PromptLookup([]).propose(4) == []
    assert PromptLookup([1, 2]).propose(4) == []
    assert PromptLookup([1, 2, 3, 4, 5, 6]).propose(4) == []
    assert PromptLookup([1, 2, 3, 4, 9, 3]).propose(4) == []  # one token alone is no match


def test_the_longer_match_beats_the_later_one():
    lookup = PromptLookup([1, 2, 3, 4, 50, 9, 3, 4, 60, 8, 1, 2, 3, 4])
    assert lookup.propose(1) == [50]


def test_of_equal_matches_the_latest_is_taken():
    assert PromptLookup([1, 2, 50, 9, 1, 2, 60, 8, 1, 2]).propose(1) == [60]


def test_a_text_that_repeats_itself_is_continued_beyond_its_end():
    assert PromptLookup([9, 1, 2, 3, 1, 2, 3]).propose(7) == [1, 2, 3, 1, 2, 3, 1]


@given(few_ids, few_ids)
def test_text_added_later_is_found_like_text_given_at_once(first: list[int], then: list[int]):
    grown = PromptLookup(first)
    for token in then:
        grown.extend([token])
    assert grown.match() == PromptLookup(first + then).match()
    assert len(grown) == len(first) + len(then)


@given(few_ids, st.integers(1, 12))
def test_a_match_is_real_and_a_proposal_is_as_long_as_wished(ids: list[int], wished: int):
    lookup = PromptLookup(ids)
    match = lookup.match()
    if match is None:
        assert lookup.propose(wished) == []
        return
    assert ids[match.start - match.tokens : match.start] == ids[len(ids) - match.tokens :]
    proposal = lookup.propose(wished)
    assert len(proposal) == wished
    whole = ids + proposal
    assert proposal == [whole[match.start + at] for at in range(wished)]


@given(st.lists(st.integers(0, 9), max_size=40))
def test_the_longest_match_is_found_while_a_pair_stands_in_few_places(ids: list[int]):
    pairs = list(itertools.pairwise(ids))
    if any(pairs.count(pair) > 16 for pair in pairs):
        return
    match = PromptLookup(ids).match()
    assert (match.tokens if match else 0) == longest_match(ids)


def test_a_pair_in_thousands_of_places_is_searched_in_the_latest_of_them_only():
    lookup = PromptLookup([1, 2, 77] + [1, 2, 3] * 5000 + [1, 2])
    assert lookup.propose(1) == [3]
    assert lookup.match() == Match(len(lookup) - 3, MAX_MATCH_TOKENS)
