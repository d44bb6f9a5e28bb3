"""From a query and its documents to those that an answer is written from: what goes on from stage to stage. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

# A reranker reads each candidate together with the query, as a run of its own text. Four times as many candidates
# as are wanted in the end, and 16 at least (one full run of short texts), leave it something to put right.
CANDIDATES_PER_CHOSEN = 4
LEAST_CANDIDATES = 16


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Document `index` of the request. `embedding_score` is the cosine to the query, `rerank_score` between 0 and 1;
    None without a reranker."""

    index: int
    embedding_score: float
    rerank_score: float | None = None


def candidates_wanted(documents: int, top_k: int, *, reranking: bool) -> int:
    """How many of `documents` the first stage passes on."""
    if not reranking:
        return min(documents, top_k)
    return min(documents, max(CANDIDATES_PER_CHOSEN * top_k, LEAST_CANDIDATES))


def choose(
    indices: Sequence[int], cosines: Sequence[float], rerank_scores: Sequence[float] | None, top_k: int
) -> list[Candidate]:
    """The `top_k` best candidates, best first. `indices` are ranked already; equal rerank scores keep that order."""
    candidates = [
        Candidate(index=index, embedding_score=cosine, rerank_score=rerank_scores[place] if rerank_scores else None)
        for place, (index, cosine) in enumerate(zip(indices, cosines, strict=True))
    ]
    if rerank_scores is not None:
        candidates.sort(key=lambda candidate: -(candidate.rerank_score or 0.0))
    return candidates[:top_k]


def fitting(tokens: Sequence[int], room_tokens: int) -> list[int]:
    """Which documents of these lengths, best first, fit into `room_tokens` together. One that is too long is left
    out, and a shorter one behind it may take its place."""
    kept: list[int] = []
    for place, length in enumerate(tokens):
        if length <= room_tokens:
            kept.append(place)
            room_tokens -= length
    return kept
