"""Inputs and outputs of an encoder's runs: one block of memory, bound once for each shape.

Within a run token ids, mask and token types live until the graph has run, the output from then on, and the scores
of a ranking after it: so scores lie where the inputs were. The block has the size of the largest plan and stays
where it is; another shape is another view of the same memory.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magnitude.engine.buffers import Block, Buffer, BufferPlan, plan_buffers
from magnitude.engine.encoder_buckets import LENGTH_STEP, MAX_RUN_TOKENS, bucket_tokens
from magnitude.engine.session_spec import SessionSpec
from magnitude.models.description import EncoderShape

# Bound shapes that are kept. Making one took 0.2 ms on a busy x86 core, and most traffic repeats a few.
MAX_BINDINGS = 64

_FILL, _RUN, _READ = range(3)


def shape_plan(rows: int, padded: int, inputs: tuple[str, ...], width: int) -> BufferPlan:
    """Where the buffers of a run of `rows` texts of `padded` tokens lie."""
    cells = rows * padded * 8  # int64
    return plan_buffers(
        [
            *(Buffer(name, cells, _FILL, _RUN) for name in inputs),
            Buffer("output", rows * width * 4, _RUN, _READ),
            Buffer("scores", rows * 4, _READ, _READ),
        ]
    )


class BoundRun:
    """The views of one shape and their binding. Contents are good until the next run of the same encoder."""

    def __init__(
        self, session: Any, block: Block, plan: BufferPlan, shape: EncoderShape, names: tuple[str, ...], *, size: Any
    ) -> None:
        rows, padded = size
        self.inputs: dict[str, NDArray[np.int64]] = {
            name: block.view(plan.offsets[name], np.int64, (rows, padded)) for name in names
        }
        self.output: NDArray[np.float32] = block.view(plan.offsets["output"], np.float32, (rows, shape.width))
        self.scores: NDArray[np.float32] = block.view(plan.offsets["scores"], np.float32, (rows,))
        self._output_name = shape.output
        self._session = session
        self._binding = session.io_binding()
        for name, view in self.inputs.items():
            self._binding.bind_input(name, "cpu", 0, np.int64, view.shape, view.ctypes.data)
        self._bind_output(self.output)

    def run(self, into: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Run the graph; the output goes to `into` where that is given. Raises what ONNX Runtime raises."""
        if into is None:
            self._session.run_with_iobinding(self._binding)
            return self.output
        self._bind_output(into)
        try:
            self._session.run_with_iobinding(self._binding)
        finally:
            self._bind_output(self.output)
        return into

    def _bind_output(self, view: NDArray[np.float32]) -> None:
        self._binding.bind_output(self._output_name, "cpu", 0, np.float32, view.shape, view.ctypes.data)


class EncoderBuffers:
    """All shapes of one encoder over one block, for its own session (None) and further ones."""

    def __init__(self, session: Any, shape: EncoderShape, inputs: tuple[str, ...]) -> None:
        self._sessions: dict[SessionSpec | None, Any] = {None: session}
        self._shape = shape
        self._inputs = inputs
        self._bound: OrderedDict[tuple[SessionSpec | None, int, int], BoundRun] = OrderedDict()
        self._block = Block(max(plan.total_bytes for plan in self._largest_plans()))

    @property
    def block_bytes(self) -> int:
        return self._block.size_bytes

    def trim(self) -> None:
        """Give the block's memory back; the next run takes a new one, of which only what it touches is resident."""
        self._bound.clear()
        self._block = Block(self._block.size_bytes)

    def add_session(self, spec: SessionSpec, session: Any) -> None:
        self._sessions[spec] = session

    def drop_session(self, spec: SessionSpec) -> None:
        """Let go of a session and of all that is bound to it."""
        self._sessions.pop(spec, None)
        for key in [key for key in self._bound if key[0] == spec]:
            del self._bound[key]

    def bound(self, rows: int, padded: int, by: SessionSpec | None = None) -> BoundRun:
        """The binding of that shape to the session: the same object, over the same memory, while it is in use."""
        key = (by, rows, padded)
        found = self._bound.get(key)
        if found is None:
            plan = self._plan(rows, padded)
            if plan.total_bytes > self._block.size_bytes:  # more rows than a planned run has
                self._bound.clear()
                self._block = Block(plan.total_bytes)
            session = self._sessions[by]
            found = BoundRun(session, self._block, plan, self._shape, self._inputs, size=(rows, padded))
            self._bound[key] = found
            if len(self._bound) > MAX_BINDINGS:
                self._bound.popitem(last=False)
        self._bound.move_to_end(key)
        return found

    def _plan(self, rows: int, padded: int) -> BufferPlan:
        return shape_plan(rows, padded, self._inputs, self._shape.width)

    def _largest_plans(self) -> list[BufferPlan]:
        longest = self._shape.max_tokens
        lengths = {bucket_tokens(n, longest) for n in range(1, min(longest, MAX_RUN_TOKENS) + 1, LENGTH_STEP)}
        return [self._plan(max(1, MAX_RUN_TOKENS // n), n) for n in lengths | {longest}]
