"""Embedders and rerankers: token ids in, one row of numbers a text out.

Texts of like length share a run, padded to the length's bucket, and a run has a bounded number of tokens: so
memory has a bound however long the list is, and a decode step can be served between two runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.engine.decoder import run_failed
from magnitude.engine.encoder_buckets import RunPlan, by_length, check_embed, next_run, run_token_limit
from magnitude.engine.encoder_buffers import BoundRun, EncoderBuffers
from magnitude.engine.message import Message
from magnitude.engine.protocol import Embed, Failed, StepKind, Vectors
from magnitude.engine.run_pool import RunPool
from magnitude.engine.session_set import RunShape, SessionSet
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import describe
from magnitude.engine.thread_place import ThreadPlace
from magnitude.errors import EngineError, ModelError
from magnitude.models.description import EncoderShape, ModelDescription

log = logging.getLogger(__name__)

# Weight of the newest run in the time of a token. Ten runs forget most of a disturbance.
_NEWEST = 0.2


class Encoder:
    """Runs an encoder graph. Raises `ModelError` when the graph is not what the description says.

    Runs of more than one text take at most `max_run_s`, as far as earlier runs tell. `pool` watches the memory that
    runs leave behind. `sessions` names the session of each run; `place` moves the thread to where that runs.
    """

    def __init__(
        self,
        model: ModelDescription,
        session: Any,
        *,
        max_run_s: float = 0.06,
        pool: RunPool | None = None,
        clock: Callable[[], float] = time.monotonic,
        sessions: SessionSet | None = None,
        place: ThreadPlace | None = None,
    ) -> None:
        if model.encoder is None:
            raise ModelError(f"model {model.name} is called an encoder but has no encoder shape")
        self.shape: EncoderShape = model.encoder
        self._pad = model.special.pad or 0
        self._max_run_s = max_run_s
        self._pool = pool
        self._clock = clock
        self._sessions = sessions if sessions is not None else SessionSet(session)
        self._place = place
        self._token_s: dict[SessionSpec | None, float] = {}
        self.last_run = RunShape()
        self._model = model
        self.buffers = EncoderBuffers(session, self.shape, self._check_signature(model, session))

    def _check_signature(self, model: ModelDescription, session: Any) -> tuple[str, ...]:
        """The names of the graph's inputs. Raises `ModelError` when they or its outputs are not as described."""
        wanted = ("input_ids", "attention_mask", *(("token_type_ids",) if self.shape.token_type_ids else ()))
        inputs = {info.name: info for info in describe(session.get_inputs())}
        outputs = {info.name: info for info in describe(session.get_outputs())}
        if set(inputs) != set(wanted) or self.shape.output not in outputs:
            raise ModelError(
                f"model {model.name}: the graph has inputs {sorted(inputs)} and outputs {sorted(outputs)}, "
                f"expected {sorted(wanted)} and {self.shape.output}",
                param=model.graph_file,
                hint="Import the model again; its description and its graph do not belong together",
            )
        kinds = {info.dtype for info in inputs.values()}, outputs[self.shape.output].dtype
        if kinds != ({"int64"}, "float32"):
            raise ModelError(
                f"model {model.name}: the graph takes {', '.join(sorted(kinds[0]))} and gives {kinds[1]}, "
                "expected int64 and float32",
                param=model.graph_file,
                hint="Export the graph with these types, or serve it as plain tensors",
            )
        return wanted

    def add_session(self, spec: SessionSpec, session: Any) -> None:
        """Let runs name `spec`. Raises `ModelError` when its graph is not the model's."""
        graph_file = spec.graph_file or self._model.graph_file
        self._check_signature(msgspec.structs.replace(self._model, graph_file=graph_file), session)
        self.buffers.add_session(spec, session)

    def drop_session(self, spec: SessionSpec) -> None:
        """Let go of a session and of all that is bound to it."""
        self.buffers.drop_session(spec)
        self._token_s.pop(spec, None)

    @property
    def run_tokens(self) -> int:
        """Padded tokens that a run may have now."""
        by = self._sessions.in_force("prefill")
        return run_token_limit(self._token_s.get(by) or self._token_s.get(None, 0.0), self._max_run_s)

    def run(
        self,
        inputs: Sequence[list[int]],
        token_types: Sequence[list[int]],
        padded: int,
        into: NDArray[np.float32] | None = None,
    ) -> BoundRun:
        """Run the texts by the session whose turn it is, see `run_by`; by the own one where that fails."""
        by = self._sessions.take("prefill")
        try:
            return self.run_by(by, inputs, token_types, padded, into)
        except EngineError as error:
            if by is None:
                raise
            log.warning("a run by the session of %s failed, the model's own one does it: %s", by.session_id, error)
            return self.run_by(None, inputs, token_types, padded, into)

    def run_by(
        self,
        by: SessionSpec | None,
        inputs: Sequence[list[int]],
        token_types: Sequence[list[int]],
        padded: int,
        into: NDArray[np.float32] | None = None,
    ) -> BoundRun:
        """Run the texts. The result's `output`, or `into`, holds rows `[len(inputs), width]` until the next run.

        Raises `EngineError` when the graph fails or gives no numbers.
        """
        self.last_run = RunShape(rows=len(inputs), tokens=padded, session=by)
        bound = self.buffers.bound(len(inputs), padded, by)
        _fill(bound.inputs["input_ids"], inputs, self._pad)
        _fill(bound.inputs["attention_mask"], [[1] * len(ids) for ids in inputs], 0)
        if self.shape.token_type_ids:
            _fill(bound.inputs["token_type_ids"], token_types, 0)
        if self._place is not None:
            self._place.go(by)
        started_s = self._clock()
        try:
            rows = bound.run(into)
        except MemoryError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common root
            raise run_failed(error) from error
        self._ran(by, len(inputs) * padded, self._clock() - started_s)
        if not np.isfinite(rows).all():
            raise EngineError(
                "the model computed values that are not numbers",
                code="bad_output",
                hint="Import the model again; if it stays so, use another precision",
            )
        return bound

    def _ran(self, by: SessionSpec | None, cells: int, run_s: float) -> None:
        token_s = run_s / cells
        before_s = self._token_s.get(by, token_s)
        self._token_s[by] = before_s + _NEWEST * (token_s - before_s)
        if self._pool is not None:
            self._pool.ran(cells)


def _fill(view: NDArray[np.int64], rows: Sequence[list[int]], rest: int) -> None:
    view.fill(rest)
    for row, values in enumerate(rows):
        view[row, : len(values)] = values


class EncodeJob:
    """One `Embed` request: `advance` does one run."""

    def __init__(self, request: Embed, encoder: Encoder, clock: Callable[[], float] = time.monotonic) -> None:
        check_embed(request, encoder.shape.max_tokens)
        self.request_id = request.request_id
        self.model = request.model
        self.kind: StepKind = "encode"
        self.finished = False
        self._request = request
        self._encoder = encoder
        self._clock = clock
        self._texts = TextRuns(encoder, request.inputs, request.token_types)
        self._rows = np.zeros((len(request.inputs), encoder.shape.width), "<f4")
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
        if self._texts.left:
            started_s = self._clock()
            plan, bound = self._texts.next()
            self._rows[plan.indices] = bound.output
            self._run_s += self._clock() - started_s
        if self._texts.left:
            return []
        self.finished = True
        return [
            Vectors(
                request_id=self.request_id,
                count=self._rows.shape[0],
                width=self._rows.shape[1],
                data=self._rows.tobytes(),
                run_s=self._run_s,
            )
        ]


class TextRuns:
    """Texts on their way through an encoder, run by run, shortest first."""

    def __init__(self, encoder: Encoder, inputs: Sequence[list[int]], token_types: Sequence[list[int]]) -> None:
        self._encoder = encoder
        self._inputs = inputs
        self._token_types = token_types
        self._lengths = [len(ids) for ids in inputs]
        self._order = by_length(self._lengths)
        self._place = 0

    @property
    def left(self) -> bool:
        return self._place < len(self._order)

    def next(self) -> tuple[RunPlan, BoundRun]:
        """Do the next run: which texts it had, and where their rows are until the next one."""
        encoder = self._encoder
        plan = next_run(
            self._lengths,
            self._order,
            self._place,
            max_tokens=encoder.shape.max_tokens,
            max_run_tokens=encoder.run_tokens,
        )
        types = self._token_types
        bound = encoder.run(
            [self._inputs[i] for i in plan.indices],
            [types[i] for i in plan.indices] if types else [],
            plan.padded_tokens,
        )
        self._place += len(plan.indices)
        return plan, bound
