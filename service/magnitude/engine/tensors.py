"""Plain ONNX models: tensors in, tensors out, with every input checked before the graph sees it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magnitude.engine.decoder import run_failed
from magnitude.engine.message import Message
from magnitude.engine.protocol import Failed, InferTensors, StepKind, Tensor, TensorInfo, TensorsOut
from magnitude.engine.session_set import RunShape, SessionSet
from magnitude.engine.sessions import DTYPES, describe
from magnitude.engine.thread_place import ThreadPlace
from magnitude.errors import EngineError, RequestError

_KNOWN_DTYPES = frozenset(DTYPES.values())


def to_array(tensor: Tensor, wanted: TensorInfo) -> NDArray[Any]:
    """The tensor as an array that the graph's input `wanted` accepts. Raises `RequestError` naming the input."""
    name = tensor.name
    if tensor.dtype != wanted.dtype or wanted.dtype not in _KNOWN_DTYPES:
        raise RequestError(f"input {name} must be {wanted.dtype}, not {tensor.dtype}", param=name)
    shown = ["any" if dim < 0 else dim for dim in wanted.shape]
    if len(tensor.shape) != len(wanted.shape):
        raise RequestError(
            f"input {name} must have {len(wanted.shape)} dimensions {shown}, not {len(tensor.shape)}", param=name
        )
    for axis, (got, want) in enumerate(zip(tensor.shape, wanted.shape, strict=True)):
        if got < 0 or (want >= 0 and got != want):
            raise RequestError(f"input {name} must have shape {shown}, not {got} in dimension {axis}", param=name)
    dtype = np.dtype(tensor.dtype).newbyteorder("<")
    expected_bytes = math.prod(tensor.shape) * dtype.itemsize
    if len(tensor.data) != expected_bytes:
        raise RequestError(
            f"input {name} has {len(tensor.data)} bytes, its shape and type need {expected_bytes}", param=name
        )
    return np.frombuffer(tensor.data, dtype).reshape(tensor.shape)


def feed_of(tensors: Sequence[Tensor], wanted: Sequence[TensorInfo]) -> dict[str, NDArray[Any]]:
    """All inputs by name. Raises `RequestError` for a missing, unknown, doubled or unfitting input."""
    by_name = {info.name: info for info in wanted}
    feed: dict[str, NDArray[Any]] = {}
    for tensor in tensors:
        if tensor.name not in by_name:
            raise RequestError(
                f"the model has no input {tensor.name}",
                param=tensor.name,
                hint=f"Its inputs are: {', '.join(by_name)}",
            )
        if tensor.name in feed:
            raise RequestError(f"input {tensor.name} is given twice", param=tensor.name)
        feed[tensor.name] = to_array(tensor, by_name[tensor.name])
    for name in by_name:
        if name not in feed:
            raise RequestError(f"input {name} is missing", param=name, hint=f"Send all of: {', '.join(by_name)}")
    return feed


class TensorJob:
    """One `InferTensors` request: one run, by the session that `sessions` names."""

    def __init__(
        self,
        request: InferTensors,
        session: Any,
        clock: Callable[[], float] = time.monotonic,
        sessions: SessionSet | None = None,
        place: ThreadPlace | None = None,
    ) -> None:
        self.request_id = request.request_id
        self.model = request.model
        self.kind: StepKind = "tensors"
        self.finished = False
        self.last_run = RunShape()
        self._sessions = sessions if sessions is not None else SessionSet(session)
        self._place = place
        self._clock = clock
        self._feed = feed_of(request.inputs, describe(session.get_inputs()))
        names = [info.name for info in describe(session.get_outputs())]
        for name in request.outputs:
            if name not in names:
                raise RequestError(
                    f"the model has no output {name}", param=name, hint=f"Its outputs are: {', '.join(names)}"
                )
        self._outputs = request.outputs or names

    def cancel(self) -> Message:
        """End at once."""
        self.finished = True
        return Failed(request_id=self.request_id, code="cancelled", message="the request was cancelled")

    def advance(self) -> list[Message]:
        by = self._sessions.take("prefill")
        self.last_run = RunShape(session=by)
        if self._place is not None:
            self._place.go(by)
        started_s = self._clock()
        try:
            arrays = self._sessions.get(by).run(self._outputs, self._feed)
        except MemoryError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common root
            failure = run_failed(error)
            if failure.code == "out_of_memory":
                raise failure from error
            # Types and known dimensions fit; what is left are values or free dimensions that do not.
            raise RequestError(
                failure.message,
                code="inputs_do_not_fit",
                param="inputs",
                hint="Check that the inputs' free dimensions and values fit together",
            ) from error
        run_s = self._clock() - started_s
        self.finished = True
        outputs = [to_tensor(name, array) for name, array in zip(self._outputs, arrays, strict=True)]
        return [TensorsOut(request_id=self.request_id, outputs=outputs, run_s=run_s)]


def to_tensor(name: str, value: Any) -> Tensor:
    """An output as a message. Raises `EngineError` for what is no plain tensor of numbers."""
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.name not in _KNOWN_DTYPES:
        raise EngineError(
            f"output {name} is not a tensor of numbers",
            code="unsupported_output",
            hint="Name only the other outputs in the request",
        )
    data = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return Tensor(name=name, dtype=value.dtype.name, shape=tuple(value.shape), data=data.tobytes())
