from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.schedule.pipeline import Candidate, candidates_wanted, choose, fitting


def test_a_reranker_sees_more_candidates_than_are_wanted_and_never_more_than_there_are():
    assert candidates_wanted(100, 3, reranking=False) == 3
    assert candidates_wanted(100, 3, reranking=True) == 16
    assert candidates_wanted(100, 8, reranking=True) == 32
    assert candidates_wanted(5, 8, reranking=True) == candidates_wanted(5, 8, reranking=False) == 5


def test_without_a_reranker_the_order_of_the_embeddings_stands():
    assert choose([4, 1, 7], [0.9, 0.8, 0.1], None, 2) == [
        Candidate(index=4, embedding_score=0.9),
        Candidate(index=1, embedding_score=0.8),
    ]


def test_a_reranker_has_the_last_word_and_equal_scores_keep_the_order():
    chosen = choose([4, 1, 7], [0.9, 0.8, 0.1], [0.2, 0.5, 0.5], 2)
    assert [(c.index, c.rerank_score) for c in chosen] == [(1, 0.5), (7, 0.5)]


def test_a_document_that_is_too_long_makes_room_for_shorter_ones():
    assert fitting([60, 50, 30], 100) == [0, 2]
    assert fitting([200], 100) == []


@given(st.lists(st.integers(1, 100), max_size=20), st.integers(-10, 300))
def test_what_fits_stays_within_the_room_and_the_best_that_could_fit_is_in(tokens: list[int], room: int):
    kept = fitting(tokens, room)
    assert kept == sorted(set(kept))
    assert sum(tokens[place] for place in kept) <= max(room, 0)
    first = next((place for place, length in enumerate(tokens) if length <= room), None)
    assert kept[:1] == ([] if first is None else [first])
