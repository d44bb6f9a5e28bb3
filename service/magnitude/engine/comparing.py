"""Whether a further session of a model computes what its own one does: the same texts by both, run by run.

A text goes in like a prompt and its answer: the first half in pieces, the rest token by token, and each session reads
back the KV that it has written itself. So differences that add up along a text are seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from magnitude.engine.decoder import Decoder
from magnitude.engine.encoder import Encoder
from magnitude.engine.encoder_buckets import bucket_tokens, check_ids
from magnitude.engine.kv import KvMemory, check_slot
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.message import Message
from magnitude.engine.protocol import Failed, StepKind
from magnitude.engine.sampling import F32
from magnitude.engine.session_messages import Compared, CompareSession
from magnitude.engine.session_set import RunShape
from magnitude.engine.session_spec import SessionSpec
from magnitude.errors import RequestError
from magnitude.models.description import ModelDescription

# Positions of a piece: what a running answer waits for between two of its tokens, far less than a prompt's piece,
# and the kernels for several rows are the same.
PIECE_TOKENS = 16
# Tokens of a text that are computed one by one at most, and with it the rows that are kept: 16 rows of 150,000
# logits are 10 MB.
MOST_STEPS = 16


class Differences:
    """How far rows of two sessions are apart, over all that were told; pure."""

    def __init__(self) -> None:
        self.positions = 0
        self._equal = True
        self._largest = 0.0
        self._same_best = 0
        self._least_cosine = 1.0

    def add(self, own: F32, other: F32) -> None:
        """Rows `[n, width]` for the same positions. A row with something that is no number is as different as can
        be, unless both sessions have it to the bit."""
        for mine, its in zip(own, other, strict=True):
            self.positions += 1
            if mine.tobytes() == its.tobytes():
                self._same_best += 1
                continue
            self._equal = False
            if not (np.isfinite(mine).all() and np.isfinite(its).all()):
                self._largest, self._least_cosine = float("inf"), min(self._least_cosine, 0.0)
                continue
            self._largest = max(self._largest, float(np.abs(mine - its).max()))
            self._same_best += int(mine.argmax()) == int(its.argmax())
            self._least_cosine = min(self._least_cosine, _cosine(mine, its))

    def compared(self, request_id: int) -> Compared:
        return Compared(
            request_id=request_id,
            positions=self.positions,
            equal=self._equal,
            largest_difference=self._largest,
            top1_agreement=self._same_best / self.positions if self.positions else 1.0,
            least_cosine=self._least_cosine,
        )


def _cosine(one: F32, other: F32) -> float:
    # Doubles: the product of 150,000 float32 loses the digits in which two good sessions differ.
    a, b = one.astype(np.float64), other.astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


class CompareJob:
    """One `CompareSession` request: `advance` does one run. Its runs are in no report: they are nobody's work."""

    kind: StepKind = "prefill"
    last_run: RunShape | None = None

    def __init__(
        self, request: CompareSession, session: SessionSpec | None, runs: Iterator[None], found: Differences
    ):
        self.request_id = request.request_id
        self.model = request.model
        self.session = session
        self.slot = request.slot
        self.finished = False
        self._runs = runs
        self._found = found

    def cancel(self) -> Message:
        """End at once."""
        self.finished = True
        return Failed(request_id=self.request_id, code="cancelled", message="the request was cancelled")

    def advance(self) -> list[Message]:
        """Do the next run; when there is none left, give the answer."""
        if next(self._runs, True) is None:
            return []
        self.finished = True
        return [self._found.compared(self.request_id)]


def compare_decoders(
    request: CompareSession, session: SessionSpec | None, decoder: Decoder, kv: KvMemory, model_hash: str
) -> CompareJob:
    """Raises `RequestError` for texts that do not fit the slot, or a slot that does not exist."""
    check_slot(request.slot, kv.layout.slots)
    for text in request.texts:
        if not 1 <= len(text) <= kv.layout.max_len:
            raise RequestError(
                f"a text of {len(text)} tokens does not fit a slot of {kv.layout.max_len}", param="texts"
            )
        if min(text) < 0 or max(text) >= decoder.shape.vocab_size:
            raise RequestError(f"token ids must be from 0 to {decoder.shape.vocab_size - 1}", param="texts")
    kv.open_slot(request.slot, model_hash).begin([])
    found = Differences()

    def runs() -> Iterator[None]:
        for text in request.texts:
            own: list[Any] = []
            yield from _rows_of(decoder, request.slot, text, None, own)
            other: list[Any] = []
            yield from _rows_of(decoder, request.slot, text, session, other)
            found.add(np.stack(own), np.stack(other))

    return CompareJob(request, session, runs(), found)


def _rows_of(
    decoder: Decoder, slot: int, text: Sequence[int], by: SessionSpec | None, rows: list[Any]
) -> Iterator[None]:
    """Compute `text`, a run at a time; the logits behind its pieces and tokens go to `rows`."""
    row = decoder.prefill_row
    in_pieces = max(1, len(text) // 2)
    for start in range(0, in_pieces, PIECE_TOKENS):
        piece = text[start : min(start + PIECE_TOKENS, in_pieces)]
        decoder.show(row, slot)  # a prompt may have been here since
        # Logits at every position take another path through the graph than those at the last one alone.
        every = decoder.can_verify and start + PIECE_TOKENS >= in_pieces
        rows.extend(decoder.extend(row, piece, start, "all" if every else "last", by).copy())
        yield
    for past in range(in_pieces, min(len(text), in_pieces + MOST_STEPS)):
        decoder.show(row, slot)
        rows.extend(decoder.step([text[past]], [past], row, by).copy())
        yield


def compare_encoders(request: CompareSession, session: SessionSpec | None, encoder: Encoder) -> CompareJob:
    """Raises `RequestError` for texts that the encoder cannot take."""
    for at, text in enumerate(request.texts):
        check_ids(text, encoder.shape.max_tokens, f"texts[{at}]")
    found = Differences()

    def runs() -> Iterator[None]:
        for text in request.texts:
            padded = bucket_tokens(len(text), encoder.shape.max_tokens)
            types = [[0] * len(text)]
            own = encoder.run_by(None, [text], types, padded).output.copy()
            yield
            found.add(own, encoder.run_by(session, [text], types, padded).output)
            yield

    return CompareJob(request, session, runs(), found)


# Long enough for pieces and steps, and for positions to read what earlier ones left behind.
_TRIED_TOKENS = 24
_TRIED_IDS = 251  # a prime: no id comes twice


def same_results(model: ModelDescription, one: Any, other: Any) -> bool:
    """Whether two sessions of a decoder's or an encoder's graph compute the same, to the bit, in memory of their own.

    Raises `ModelError` for a session that is not the model's.
    """
    spec = SessionSpec(threads=1)  # a name for the other one
    # Any ids do: what is compared is arithmetic.
    most = _TRIED_IDS if model.decoder is None else min(_TRIED_IDS, model.decoder.vocab_size)
    text = [[(7919 * at) % most for at in range(1, _TRIED_TOKENS + 1)]]
    request = CompareSession(request_id=0, model=model.name, session=spec, slot=0, texts=text)
    if model.decoder is None:
        encoder = Encoder(model, one)
        encoder.add_session(spec, other)
        return _all_equal(compare_encoders(request, spec, encoder))
    layout = KvLayout.of(model.decoder, slots=1, max_len=_TRIED_TOKENS)
    fd = os.memfd_create(f"trial-kv-{model.name}")
    try:
        os.ftruncate(fd, layout.total_bytes)
        kv = KvMemory(fd, layout)
    finally:
        os.close(fd)
    try:
        decoder = Decoder(model, one, kv)
        try:
            decoder.add_session(spec, other)
            return _all_equal(compare_decoders(request, spec, decoder, kv, model.model_hash))
        finally:
            decoder.close()
    finally:
        kv.close()


def _all_equal(job: CompareJob) -> bool:
    answers: list[Message] = []
    while not job.finished:
        answers = job.advance()
    return all(isinstance(answer, Compared) and answer.equal for answer in answers)
