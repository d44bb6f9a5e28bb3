"""A decoder graph with its KV cache in place: one call computes one step of a batch, or one piece of a prompt.

Past and present of a range of rows are bound to the same memory once, when that range is first used; after that a
step only writes the new ids into a fixed array and binds an attention mask that is one longer. Nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.engine.adapters import AdapterSet
from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.protocol import TensorInfo
from magnitude.engine.rows import RowWindow
from magnitude.engine.sampling import F32
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import describe, kernels_for
from magnitude.engine.thread_place import ThreadPlace
from magnitude.errors import EngineError, ModelError
from magnitude.kernels.library import KernelLibrary
from magnitude.models.description import DecoderShape, KvPart, ModelDescription

_ID_TYPES = ("int64", "int32")
_LOGIT_TYPES = ("float32", "float16")


def _wrong(model: ModelDescription, what: str) -> ModelError:
    return ModelError(
        f"model {model.name}: {what}",
        code="model_invalid",
        param=model.graph_file,
        hint="Import the model again; its description and its graph do not belong together",
    )


def check_signature(
    model: ModelDescription, session: Any, layout: KvLayout, adapter_inputs: frozenset[str] = frozenset()
) -> None:
    """Raise `ModelError` unless the graph has the inputs and outputs that the description and layout promise."""
    shape = _shape_of(model)
    inputs = {info.name: info for info in describe(session.get_inputs())}
    outputs = {info.name: info for info in describe(session.get_outputs())}
    promised = {
        name for name in (shape.input_ids, shape.attention_mask, shape.position_ids, shape.logit_rows) if name
    }
    for name in sorted(promised):
        if name not in inputs:
            raise _wrong(model, f"the graph has no input {name}")
        if inputs[name].dtype not in _ID_TYPES:
            raise _wrong(model, f"input {name} has type {inputs[name].dtype}, not an integer type")
    kv_names = set()
    for part in layout.parts:
        past, present = shape.kv_names(part.name)
        for pattern, arguments, side in ((past, inputs, "input"), (present, outputs, "output")):
            for layer in range(shape.layers):
                name = pattern % layer
                kv_names.add(name)
                if name not in arguments:
                    raise _wrong(model, f"the graph has no {side} {name}")
                _check_kv_tensor(model, f"{side} {name}", arguments[name], layout, part)
    if unknown := sorted(set(inputs) - promised - kv_names - adapter_inputs):
        raise _wrong(model, f"the graph wants an input that nothing feeds: {unknown[0]}")
    if shape.logits not in outputs:
        raise _wrong(model, f"the graph has no output {shape.logits}")
    logits = outputs[shape.logits]
    rank, promise = (2, "[rows, vocabulary]") if shape.logit_rows else (3, "[batch, n, vocabulary]")
    if (
        logits.dtype not in _LOGIT_TYPES
        or len(logits.shape) != rank
        or logits.shape[-1] not in (-1, shape.vocab_size)
    ):
        raise _wrong(model, f"output {shape.logits} is {logits.dtype} {logits.shape}, not {promise}")
    wanted = (shape.layers, shape.kv_heads, shape.head_dim, shape.kv_type)
    if wanted != (layout.layers, layout.kv_heads, layout.head_dim, layout.kv_type):
        raise _wrong(model, f"the KV layout {layout.layout_id} is not the model's")


def _check_kv_tensor(model: ModelDescription, what: str, info: TensorInfo, layout: KvLayout, part: KvPart) -> None:
    if info.dtype != part.dtype:
        raise _wrong(model, f"{what} has type {info.dtype}, the KV memory {part.dtype}")
    if len(info.shape) != 3 + len(part.tail) or info.shape[1] not in (-1, layout.kv_heads):
        raise _wrong(model, f"{what} has shape {info.shape}, not [batch, {layout.kv_heads}, ...]")
    if part.tail and info.shape[3] not in (-1, layout.head_dim):
        raise _wrong(model, f"{what} has head size {info.shape[3]}, not {layout.head_dim}")


def _types_of(session: Any) -> dict[str, str]:
    return {info.name: info.dtype for info in (*describe(session.get_inputs()), *describe(session.get_outputs()))}


def _shape_of(model: ModelDescription) -> DecoderShape:
    if model.decoder is None:
        raise _wrong(model, "it is called a decoder but has no decoder shape")
    return model.decoder


# Which positions of a piece get logits.
Wanted = Literal["last", "all"]


class _Bound:
    """A session and its bindings, by first row and number of rows. `adapts`: its graph has the adapter inputs;
    `kernels`: what computes its products, where ONNX Runtime does not."""

    __slots__ = ("adapts", "bindings", "kernels", "session")

    def __init__(self, session: Any, *, adapts: bool, kernels: KernelLibrary | None = None) -> None:
        self.session = session
        self.adapts = adapts
        self.kernels = kernels
        self.bindings: dict[tuple[int, int], Any] = {}


class Decoder:
    """Runs tokens through `session` in rows of a window over the KV memory `kv`.

    Rows 0 to `max_batch` - 1 decode together; row `prefill_row` is for prompts on their way in. Whoever uses a row
    first shows a slot in it. Arrays that are returned are the decoder's own and hold until the next call.

    Each run names the session that does it (`by`; None: `session`, which was made as `own` says). `place` moves the
    thread to where that runs.
    """

    def __init__(
        self,
        model: ModelDescription,
        session: Any,
        kv: KvMemory,
        *,
        own: SessionSpec | None = None,
        max_batch: int = 1,
        place: ThreadPlace | None = None,
    ) -> None:
        self.adapters = AdapterSet(model.name, describe(session.get_inputs()))
        check_signature(model, session, kv.layout, self.adapters.input_names)
        self.shape = _shape_of(model)
        self.prefill_row = max_batch
        self._model = model
        self._sessions: dict[SessionSpec | None, _Bound] = {
            None: _Bound(session, adapts=True, kernels=kernels_for(model.graph_file))
        }
        self._own = own
        self._place = place
        self._layout = kv.layout
        self._window = RowWindow(kv.fd, kv.layout, max_batch + 1)
        types = self._types = _types_of(session)
        shape = self.shape
        room = max(kv.layout.max_len, max_batch)
        self._ids = np.zeros(room, types[shape.input_ids])
        self._ones = np.ones(kv.layout.max_len, types[shape.attention_mask]) if shape.attention_mask else None
        self._masks = np.zeros(max_batch * kv.layout.max_len, self._ones.dtype) if self._ones is not None else None
        self._positions = np.zeros(room, types[shape.position_ids]) if shape.position_ids else None
        self._logit_rows = np.arange(room, dtype=np.int64)
        self._last_row = np.zeros(1, np.int64)
        self._logits_type: Any = np.dtype(types[shape.logits]).type
        self._logits = np.zeros((max_batch, shape.vocab_size), self._logits_type)
        self._floats: F32 = np.zeros((0, shape.vocab_size), np.float32)  # used when the graph gives other types
        self._row_adapters = [""] * (max_batch + 1)

    @property
    def can_verify(self) -> bool:
        """Whether several positions of one run can get logits."""
        return self.shape.logit_rows is not None or self.shape.logits_all_positions

    def show(self, row: int, slot: int, adapter: str = "") -> None:
        """From now on `row` computes in `slot`, with a loaded adapter ("": the base alone)."""
        self._window.show(row, slot)
        self._row_adapters[row] = adapter

    def add_session(self, spec: SessionSpec, session: Any) -> None:
        """Let runs name `spec`. Raises `ModelError` when its graph is not the model's or cannot use its KV memory."""
        model = msgspec.structs.replace(self._model, graph_file=spec.graph_file or self._model.graph_file)
        check_signature(model, session, self._layout, self.adapters.input_names)
        types = _types_of(session)
        if other := sorted(name for name, dtype in types.items() if self._types.get(name) != dtype):
            raise _wrong(
                model, f"{other[0]} has type {types[other[0]]}, which the model's own graph does not give it"
            )
        adapts = self.adapters.input_names <= types.keys()
        self._sessions[spec] = _Bound(session, adapts=adapts, kernels=kernels_for(model.graph_file))

    def drop_session(self, spec: SessionSpec) -> None:
        """Let go of a session and of all that is bound to it. No run may name it any more."""
        self._sessions.pop(spec, None)

    def runs_by(self, spec: SessionSpec | None, adapter: str = "") -> SessionSpec | None:
        """Who computes where `spec` is asked for: the own session where `spec` lacks the adapter's inputs."""
        return spec if not adapter or self._sessions[spec].adapts else None

    def step(
        self, ids: Sequence[int], pasts: Sequence[int], first_row: int = 0, by: SessionSpec | None = None
    ) -> F32:
        """One decode step of neighbouring rows: put `ids[i]` at position `pasts[i]` of row `first_row` + i.

        Returns the logits `[len(ids), vocab_size]`. The caller sees to it that ids are in the vocabulary and fit the
        slots, and that all of these rows have one adapter. Raises `EngineError` when the graph fails.
        """
        count = len(ids)
        if count == 1:
            self._ids[0] = ids[0]
        else:
            self._ids[:count] = ids
        if self._positions is not None:
            self._positions[:count] = pasts
        self._run(by, (first_row, count), 1, [past + 1 for past in pasts], self._logit_rows[:count])
        return self._as_floats(count)

    def extend(
        self, row: int, ids: Sequence[int], past: int, wanted: Wanted = "last", by: SessionSpec | None = None
    ) -> F32:
        """Put `ids` at positions `past...` of `row`; logits after the last one, `[1, vocab_size]`, or after each.

        Raises `EngineError` when the graph fails, or when it has no logits for every position and they are wanted.
        """
        count = len(ids)
        if wanted == "all" and not self.can_verify:
            raise EngineError("this graph gives logits for the last position only", code="logits_not_given")
        self._ids[:count] = ids
        if self._positions is not None:
            self._positions[:count] = np.arange(past, past + count)
        rows = count if wanted == "all" or self.shape.logits_all_positions else 1
        self._make_room(rows)
        self._last_row[0] = count - 1
        logit_rows = self._logit_rows[:count] if rows > 1 else self._last_row
        self._run(by, (row, 1), count, [past + count], logit_rows)
        return self._as_floats(rows)[0 if wanted == "all" else -1 :]

    def _make_room(self, rows: int) -> None:
        if rows > len(self._logits):
            self._logits = np.zeros((rows, self.shape.vocab_size), self._logits_type)

    def _as_floats(self, rows: int) -> F32:
        if self._logits_type is np.float32:
            return self._logits[:rows]
        if rows > len(self._floats):
            self._floats = np.zeros((rows, self.shape.vocab_size), np.float32)
        np.copyto(self._floats[:rows], self._logits[:rows])
        return self._floats[:rows]

    def _run(
        self,
        by: SessionSpec | None,
        rows: tuple[int, int],
        tokens: int,
        totals: list[int],
        logit_rows: NDArray[np.int64],
    ) -> None:
        """`rows`: the first one and how many; `tokens`: new positions of each; `totals`: their positions then."""
        shape = self.shape
        bound = self._sessions[by]
        if rows not in bound.bindings:
            bound.bindings[rows] = self._bind_rows(bound.session, *rows)
        binding, count, logits = bound.bindings[rows], rows[1], len(logit_rows)
        if bound.adapts:
            self.adapters.bind(binding, self._row_adapters[rows[0]])
        self._bind(binding, shape.input_ids, self._ids, (count, tokens))
        if self._positions is not None:
            self._bind(binding, shape.position_ids, self._positions, (count, tokens))
        if self._ones is not None:
            self._bind(binding, shape.attention_mask, self._mask(totals), (count, max(totals)))
        if shape.logit_rows is not None:
            self._bind(binding, shape.logit_rows, logit_rows, (logits,))
        out_shape = (logits, shape.vocab_size) if shape.logit_rows else (count, logits // count, shape.vocab_size)
        binding.bind_output(shape.logits, "cpu", 0, self._logits_type, out_shape, self._logits.ctypes.data)
        if self._place is not None:
            self._place.go(by)
        if bound.kernels is not None and (made := by or self._own) is not None:
            bound.kernels.use_threads(made.threads, made.cpus)
        try:
            bound.session.run_with_iobinding(binding)
        except MemoryError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common root
            raise run_failed(error) from error

    def _mask(self, totals: list[int]) -> NDArray[Any]:
        """Ones where a row has positions, as many columns as the longest row has."""
        assert self._ones is not None and self._masks is not None
        if len(totals) == 1:
            return self._ones
        width = max(totals)
        mask = self._masks[: len(totals) * width].reshape(len(totals), width)
        mask[:] = 0
        for row, total in enumerate(totals):
            mask[row, :total] = 1
        return mask

    def _bind_rows(self, session: Any, first_row: int, rows: int) -> Any:
        binding = session.io_binding()
        layout = self._layout
        for part in layout.parts:
            past, present = self.shape.kv_names(part.name)
            shape = (rows, layout.kv_heads, layout.padded_len, *part.tail)
            dtype = np.dtype(part.dtype).type
            for layer in range(layout.layers):
                address = self._window.address(layer, part.name, first_row)
                binding.bind_input(past % layer, "cpu", 0, dtype, shape, address)
                binding.bind_output(present % layer, "cpu", 0, dtype, shape, address)
        return binding

    @staticmethod
    def _bind(binding: Any, name: str | None, array: NDArray[Any], shape: tuple[int, ...]) -> None:
        binding.bind_input(name, "cpu", 0, array.dtype.type, shape, array.ctypes.data)

    def close(self) -> None:
        """Let go of the bindings, which point into the window, and of the window."""
        self._sessions.clear()
        self._window.close()


def run_failed(error: Exception) -> EngineError:
    """The error to raise when a graph run fails: out of memory is told apart, it may pass."""
    text = str(error).strip()
    if "bad_alloc" in text or "Failed to allocate memory" in text:
        return EngineError(
            "there is not enough memory for this run",
            code="out_of_memory",
            hint="Send a smaller request, or give the service more memory",
        )
    line = text.splitlines()[0][:300] if text else type(error).__name__
    return EngineError(
        f"the model failed to run: {line}",
        code="model_run_failed",
        hint="Import the model again; if it stays so, the graph does not suit this ONNX Runtime",
    )
