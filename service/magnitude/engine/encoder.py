"""Embedders and rerankers: token ids in, one row of numbers a text out.

Texts of like length share a run, padded to the length's bucket, and a run has a bounded number of tokens: so
memory has a bound however long the list is, and a decode step can be served between two runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.engine.decoder import run_failed
from magnitude.engine.protocol import Embed, Failed, Message, StepKind, Vectors
from magnitude.engine.sessions import describe
from magnitude.errors import ContextLengthExceeded, EngineError, ModelError, RequestError
from magnitude.models.description import EncoderShape, ModelDescription

# Padded tokens a run, which is what an open generation has to wait for: one text of MiniLM's full length. Larger
# runs (1024, 2048) were not faster on two x86 cores.
MAX_RUN_TOKENS = 512
# Lengths are padded to multiples of this. Finer buckets pad less but put fewer texts into one run.
LENGTH_STEP = 16


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run: which inputs, and the length to which they are padded."""

    indices: list[int]
    padded_tokens: int


def plan_runs(
    lengths: Sequence[int], max_tokens: int, max_run_tokens: int = MAX_RUN_TOKENS, step: int = LENGTH_STEP
) -> list[RunPlan]:
    """Group inputs of like length into runs of at most `max_run_tokens` padded tokens (or one input)."""
    plans: list[RunPlan] = []
    indices: list[int] = []
    bucket = 0
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        padded = min(-(-lengths[index] // step) * step, max_tokens)
        if indices and (padded != bucket or (len(indices) + 1) * padded > max_run_tokens):
            plans.append(RunPlan(indices=indices, padded_tokens=bucket))
            indices = []
        bucket = padded
        indices.append(index)
    if indices:
        plans.append(RunPlan(indices=indices, padded_tokens=bucket))
    return plans


def check_embed(request: Embed, max_tokens: int) -> None:
    """Raise `RequestError` for inputs that the encoder cannot take."""
    if request.token_types and [len(t) for t in request.token_types] != [len(i) for i in request.inputs]:
        raise RequestError("token_types must be as long as inputs", param="token_types")
    for index, ids in enumerate(request.inputs):
        if not ids:
            raise RequestError(f"input {index} is empty", param=f"input[{index}]", hint="Send at least one token")
        if len(ids) > max_tokens:
            raise ContextLengthExceeded(
                f"input {index} has {len(ids)} tokens, the model takes {max_tokens}",
                param=f"input[{index}]",
                hint="Shorten or split the text",
            )
        if min(ids) < 0:
            raise RequestError(f"input {index} has a negative token id", param=f"input[{index}]")


class Encoder:
    """Runs an encoder graph. Raises `ModelError` when the graph is not what the description says."""

    def __init__(self, model: ModelDescription, session: Any) -> None:
        if model.encoder is None:
            raise ModelError(f"model {model.name} is called an encoder but has no encoder shape")
        self.shape: EncoderShape = model.encoder
        self._pad = model.special.pad or 0
        self._session = session
        wanted = ["input_ids", "attention_mask", *(["token_type_ids"] if self.shape.token_type_ids else [])]
        inputs = {info.name: info for info in describe(session.get_inputs())}
        outputs = {info.name for info in describe(session.get_outputs())}
        if set(inputs) != set(wanted) or self.shape.output not in outputs:
            raise ModelError(
                f"model {model.name}: the graph has inputs {sorted(inputs)} and outputs {sorted(outputs)}, "
                f"expected {sorted(wanted)} and {self.shape.output}",
                param=model.graph_file,
                hint="Import the model again; its description and its graph do not belong together",
            )

    def run(self, inputs: Sequence[list[int]], token_types: Sequence[list[int]], padded: int) -> NDArray[np.float32]:
        """Rows `[len(inputs), width]`. Raises `EngineError` when the graph fails or gives no numbers."""
        ids = np.full((len(inputs), padded), self._pad, np.int64)
        mask = np.zeros((len(inputs), padded), np.int64)
        for row, tokens in enumerate(inputs):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        feed = {"input_ids": ids, "attention_mask": mask}
        if self.shape.token_type_ids:
            types = np.zeros((len(inputs), padded), np.int64)
            for row, tokens in enumerate(token_types):
                types[row, : len(tokens)] = tokens
            feed["token_type_ids"] = types
        try:
            (output,) = self._session.run([self.shape.output], feed)
        except MemoryError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common root
            raise run_failed(error) from error
        rows = np.asarray(output, np.float32).reshape(len(inputs), -1)
        if rows.shape[1] != self.shape.width:
            raise EngineError(f"the model gave rows of {rows.shape[1]} numbers, not {self.shape.width}")
        if not np.isfinite(rows).all():
            raise EngineError(
                "the model computed values that are not numbers",
                code="bad_output",
                hint="Import the model again; if it stays so, use another precision",
            )
        return rows


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
        self._plans = plan_runs([len(ids) for ids in request.inputs], encoder.shape.max_tokens)
        self._rows = np.zeros((len(request.inputs), encoder.shape.width), "<f4")
        self._run_s = 0.0

    def cancel(self) -> Message:
        """End at once."""
        self.finished = True
        return Failed(request_id=self.request_id, code="cancelled", message="the request was cancelled")

    def advance(self) -> list[Message]:
        """Do the next run; the last one gives the answer."""
        if self._plans:
            plan = self._plans.pop(0)
            types = self._request.token_types
            started_s = self._clock()
            self._rows[plan.indices] = self._encoder.run(
                [self._request.inputs[i] for i in plan.indices],
                [types[i] for i in plan.indices] if types else [],
                plan.padded_tokens,
            )
            self._run_s += self._clock() - started_s
        if self._plans:
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
