"""Timing runs of several sessions in turn while nothing else is to be done."""

from __future__ import annotations

import time
from collections.abc import Callable

from magnitude.engine.decoder import Decoder
from magnitude.engine.encoder import Encoder
from magnitude.engine.encoder_buckets import MAX_RUN_TOKENS
from magnitude.engine.kv import KvMemory, check_slot
from magnitude.engine.pace import Phase
from magnitude.engine.session_messages import Probe, Probed, ProbedRun
from magnitude.errors import RequestError

# One run to be timed: what it does and which share of the time it goes by.
TimedRun = tuple[Callable[[], object], Phase]


class ProbeJob:
    """One `Probe` request: `advance` does one run, all of them in turn.

    Whatever else the board does comes and goes; runs that follow each other meet much the same of it, and that is
    what makes them comparable. A round that is not complete counts for nothing.
    """

    def __init__(self, request: Probe, runs: list[TimedRun], clock: Callable[[], float] = time.monotonic) -> None:
        self.request_id = request.request_id
        self.model = request.model
        self.finished = False
        self._runs = runs
        self._rounds = request.rounds
        self._clock = clock
        self._at = -len(runs)  # the first round is not timed: bindings are made in it, and memory is fetched
        self._round: list[float] = []
        self._seconds: list[list[float]] = [[] for _ in runs]

    def advance(self) -> tuple[Phase, float]:
        """Do the next run. Returns its phase and its time."""
        run, phase = self._runs[self._at % len(self._runs)]
        started_s = self._clock()
        run()
        run_s = self._clock() - started_s
        if self._at >= 0:
            self._round.append(run_s)
        self._at += 1
        if len(self._round) == len(self._runs):
            for seconds, last_s in zip(self._seconds, self._round, strict=True):
                seconds.append(last_s)
            self._round.clear()
        self.finished = self._at >= self._rounds * len(self._runs)
        return phase, run_s

    def probed(self) -> Probed:
        """What is known so far."""
        return Probed(
            request_id=self.request_id,
            seconds=tuple(tuple(seconds) for seconds in self._seconds),
            complete=self.finished,
        )


def check_rounds(request: Probe) -> None:
    """Raise `RequestError` where there is nothing to time."""
    if not request.runs or request.rounds < 1:
        raise RequestError("a probe needs at least one run and one round", param="runs")


def decoder_runs(request: Probe, decoder: Decoder, kv: KvMemory, model_hash: str) -> list[TimedRun]:
    """Decode steps for runs of one token, pieces of a prompt for others. What the slot held is lost.

    Raises `RequestError` for runs that the decoder or the slot has no room for.
    """
    check_slot(request.slot, kv.layout.slots)
    past = request.past_tokens
    for run in request.runs:
        if run.rows < 1 or run.tokens < 1 or (run.rows > 1 and run.tokens > 1) or run.rows > decoder.prefill_row:
            raise RequestError(
                f"a run of {run.rows} rows of {run.tokens} tokens cannot be timed",
                param="runs",
                hint=f"Up to {decoder.prefill_row} rows of one token, or one row of several",
            )
        if past < 0 or past + run.tokens > kv.layout.max_len:
            raise RequestError(
                f"{past} + {run.tokens} tokens do not fit a slot of {kv.layout.max_len}", param="past_tokens"
            )
    kv.open_slot(request.slot, model_hash).begin([])
    for row in range(decoder.prefill_row + 1):
        decoder.show(row, request.slot)
    # All rows write the same numbers to the same place, and any ids take the same time.
    return [_decoder_run(decoder, run, past) for run in request.runs]


def _decoder_run(decoder: Decoder, run: ProbedRun, past: int) -> TimedRun:
    if run.tokens == 1:
        return lambda: decoder.step([0] * run.rows, [past] * run.rows, by=run.session), "decode"
    row, ids = decoder.prefill_row, [0] * run.tokens
    return lambda: decoder.extend(row, ids, past, by=run.session), "prefill"


def encoder_runs(request: Probe, encoder: Encoder) -> list[TimedRun]:
    """Runs of texts. Raises `RequestError` for more than a run may have."""
    longest = encoder.shape.max_tokens
    for run in request.runs:
        cells = run.rows * run.tokens
        if run.rows < 1 or not 1 <= run.tokens <= longest or (run.rows > 1 and cells > MAX_RUN_TOKENS):
            raise RequestError(
                f"a run of {run.rows} texts of {run.tokens} tokens cannot be timed",
                param="runs",
                hint=f"Up to {longest} tokens a text, and {MAX_RUN_TOKENS} a run of several",
            )
    return [_encoder_run(encoder, run) for run in request.runs]


def _encoder_run(encoder: Encoder, run: ProbedRun) -> TimedRun:
    texts = [[0] * run.tokens] * run.rows
    return lambda: encoder.run_by(run.session, texts, texts, run.tokens), "prefill"
