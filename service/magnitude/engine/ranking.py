"""A query against documents, by an embedder, inside the engine: vectors never leave its buffers.

The query's vector is computed into memory of its own, which the graph is bound to. Each run of documents is
multiplied with it where the graph left its output; only scores are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from magnitude.engine.encoder import Encoder, TextRuns
from magnitude.engine.encoder_buckets import bucket_tokens, check_ids
from magnitude.engine.message import Message
from magnitude.engine.protocol import EmbedAndRank, Failed, Ranked, StepKind
from magnitude.engine.session_set import RunShape
from magnitude.errors import RequestError


class RankJob:
    """One `EmbedAndRank` request: `advance` does one run, of the query first."""

    def __init__(self, request: EmbedAndRank, encoder: Encoder, clock: Callable[[], float] = time.monotonic) -> None:
        check_ids(request.query, encoder.shape.max_tokens, "query")
        for index, ids in enumerate(request.documents):
            check_ids(ids, encoder.shape.max_tokens, f"documents[{index}]")
        if request.top_k < 1:
            raise RequestError(f"top_k is {request.top_k}, it must be at least 1", param="top_k")
        self.request_id = request.request_id
        self.model = request.model
        self.kind: StepKind = "encode"
        self.finished = False
        self._request = request
        self._encoder = encoder
        self._clock = clock
        self._query: NDArray[np.float32] | None = None
        self._documents = TextRuns(encoder, request.documents, [])
        self._scores = np.zeros(len(request.documents), np.float32)
        self._run_s = 0.0

    @property
    def last_run(self) -> RunShape:
        """What the last `advance` ran."""
        return self._encoder.last_run

    def cancel(self) -> Message:
        """End at once."""
        self.finished = True
        return Failed(request_id=self.request_id, code="cancelled", message="the request was cancelled")

    def advance(self) -> list[Message]:
        """Do the next run; the last one gives the answer."""
        started_s = self._clock()
        if self._query is None:
            self._query = self._run_query()
        elif self._documents.left:
            self._score_documents(self._query)
        self._run_s += self._clock() - started_s
        if self._documents.left:
            return []
        self.finished = True
        order = best_first(self._scores, self._request.top_k)
        return [
            Ranked(
                request_id=self.request_id,
                indices=order,
                scores=[float(self._scores[index]) for index in order],
                run_s=self._run_s,
            )
        ]

    def _run_query(self) -> NDArray[np.float32]:
        shape, ids = self._encoder.shape, self._request.query
        vector = np.zeros((1, shape.width), np.float32)
        self._encoder.run([ids], [], bucket_tokens(len(ids), shape.max_tokens), into=vector)
        if not shape.normalised:
            vector /= _lengths_of(vector)[:, None]
        return vector

    def _score_documents(self, query: NDArray[np.float32]) -> None:
        plan, bound = self._documents.next()
        np.matmul(bound.output, query[0], out=bound.scores)
        if not self._encoder.shape.normalised:
            bound.scores[:] /= _lengths_of(bound.output)
        self._scores[plan.indices] = bound.scores


def best_first(scores: NDArray[np.float32], top_k: int) -> list[int]:
    """Indices of the `top_k` highest scores, highest first; equal ones in their own order."""
    return [int(index) for index in np.argsort(-scores, kind="stable")[:top_k]]


def _lengths_of(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Euclidean lengths; a row of zeros counts as length 1, so that its cosine is 0."""
    lengths: NDArray[np.float32] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    lengths[lengths == 0] = 1.0
    return lengths
