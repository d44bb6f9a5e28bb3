"""A decoder graph with its KV cache in place: one call computes one chunk of one slot.

Past and present of a slot are bound to the same memory once, when the slot is first used; after that a step
only writes the new ids into a fixed array and binds an attention mask that is one longer. Nothing is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.sampling import F32
from magnitude.engine.sessions import describe
from magnitude.errors import EngineError, ModelError
from magnitude.models.description import DecoderShape, ModelDescription

_ID_TYPES = ("int64", "int32")
_LOGIT_TYPES = ("float32", "float16")


def _wrong(model: ModelDescription, what: str) -> ModelError:
    return ModelError(
        f"model {model.name}: {what}",
        code="model_invalid",
        param=model.graph_file,
        hint="Import the model again; its description and its graph do not belong together",
    )


def check_signature(model: ModelDescription, session: Any, layout: KvLayout) -> None:
    """Raise `ModelError` unless the graph has the inputs and outputs that the description and layout promise."""
    shape = _shape_of(model)
    inputs = {info.name: info for info in describe(session.get_inputs())}
    outputs = {info.name: info for info in describe(session.get_outputs())}
    promised = {name for name in (shape.input_ids, shape.attention_mask, shape.position_ids) if name}
    for name in sorted(promised):
        if name not in inputs:
            raise _wrong(model, f"the graph has no input {name}")
        if inputs[name].dtype not in _ID_TYPES:
            raise _wrong(model, f"input {name} has type {inputs[name].dtype}, not an integer type")
    kv_names = set()
    for pattern, arguments, side in (
        (shape.past_key, inputs, "input"),
        (shape.past_value, inputs, "input"),
        (shape.present_key, outputs, "output"),
        (shape.present_value, outputs, "output"),
    ):
        for layer in range(shape.layers):
            name = pattern % layer
            kv_names.add(name)
            if name not in arguments:
                raise _wrong(model, f"the graph has no {side} {name}")
            info = arguments[name]
            if info.dtype != layout.kv_type:
                raise _wrong(model, f"{side} {name} has type {info.dtype}, the KV memory {layout.kv_type}")
            if len(info.shape) != 4 or info.shape[1] not in (-1, layout.kv_heads):
                raise _wrong(model, f"{side} {name} has shape {info.shape}, not [batch, {layout.kv_heads}, ...]")
            if info.shape[3] not in (-1, layout.head_dim):
                raise _wrong(model, f"{side} {name} has head size {info.shape[3]}, not {layout.head_dim}")
    if unknown := sorted(set(inputs) - promised - kv_names):
        raise _wrong(model, f"the graph wants an input that nothing feeds: {unknown[0]}")
    if shape.logits not in outputs:
        raise _wrong(model, f"the graph has no output {shape.logits}")
    logits = outputs[shape.logits]
    if logits.dtype not in _LOGIT_TYPES or len(logits.shape) != 3 or logits.shape[2] not in (-1, shape.vocab_size):
        raise _wrong(model, f"output {shape.logits} is {logits.dtype} {logits.shape}, not [batch, n, vocabulary]")
    wanted = (shape.layers, shape.kv_heads, shape.head_dim, shape.kv_type)
    if wanted != (layout.layers, layout.kv_heads, layout.head_dim, layout.kv_type):
        raise _wrong(model, f"the KV layout {layout.layout_id} is not the model's")


def _shape_of(model: ModelDescription) -> DecoderShape:
    if model.decoder is None:
        raise _wrong(model, "it is called a decoder but has no decoder shape")
    return model.decoder


class Decoder:
    """Runs chunks of tokens through `session` in the KV slots of `kv`."""

    def __init__(self, model: ModelDescription, session: Any, kv: KvMemory) -> None:
        check_signature(model, session, kv.layout)
        self.shape = _shape_of(model)
        self._session = session
        self._kv = kv
        types = {
            info.name: info.dtype for info in (*describe(session.get_inputs()), *describe(session.get_outputs()))
        }
        max_len = kv.layout.max_len
        self._ids = np.zeros(max_len, types[self.shape.input_ids])
        self._mask = np.ones(max_len, types[self.shape.attention_mask]) if self.shape.attention_mask else None
        self._positions = np.zeros(max_len, types[self.shape.position_ids]) if self.shape.position_ids else None
        self._logits_type: Any = np.dtype(types[self.shape.logits]).type
        self._logits = np.zeros((1, 1, self.shape.vocab_size), self._logits_type)
        self._row: F32 = np.zeros(self.shape.vocab_size, np.float32)
        self._slots: dict[int, _SlotBinding] = {}

    def run(self, slot: int, ids: Sequence[int], past: int) -> F32:
        """Put `ids` at positions `past...` of `slot` and return the logits after the last one, `[vocab_size]`.

        The array is the decoder's own and holds until the next call. The caller sees to it that `ids` are in the
        vocabulary and fit the slot. Raises `EngineError` when the graph fails.
        """
        count = len(ids)
        if slot not in self._slots:
            self._slots[slot] = self._bind_slot(slot)
        bound = self._slots[slot]
        if count == 1:
            self._ids[0] = ids[0]
        else:
            self._ids[:count] = ids
        if self._positions is not None:
            self._positions[:count] = np.arange(past, past + count)
        every = self.shape.logits_all_positions and count > 1
        logits = np.empty((1, count, self.shape.vocab_size), self._logits_type) if every else self._logits
        if count != bound.count:
            self._bind_chunk(bound, count, logits)
        if self._mask is not None:
            self._bind_input(bound.binding, self.shape.attention_mask, self._mask, (1, past + count))
        try:
            self._session.run_with_iobinding(bound.binding)
        except MemoryError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common root
            raise run_failed(error) from error
        finally:
            if every:
                bound.count = 0  # its logits are about to be freed: bind again before the next run
        row: NDArray[Any] = logits[0, -1]
        if self._logits_type is np.float32 and not every:
            return row
        np.copyto(self._row, row)
        return self._row

    def _bind_slot(self, slot: int) -> _SlotBinding:
        binding = self._session.io_binding()
        layout = self._kv.layout
        shape = (1, layout.kv_heads, layout.max_len, layout.head_dim)
        dtype = np.dtype(layout.kv_type).type
        for layer in range(layout.layers):
            for value, past, present in (
                (False, self.shape.past_key, self.shape.present_key),
                (True, self.shape.past_value, self.shape.present_value),
            ):
                address = self._kv.tensor_address(layer, value=value, slot=slot)
                binding.bind_input(past % layer, "cpu", 0, dtype, shape, address)
                binding.bind_output(present % layer, "cpu", 0, dtype, shape, address)
        return _SlotBinding(binding)

    def _bind_chunk(self, bound: _SlotBinding, count: int, logits: NDArray[Any]) -> None:
        self._bind_input(bound.binding, self.shape.input_ids, self._ids, (1, count))
        if self._positions is not None:
            self._bind_input(bound.binding, self.shape.position_ids, self._positions, (1, count))
        bound.binding.bind_output(self.shape.logits, "cpu", 0, self._logits_type, logits.shape, logits.ctypes.data)
        bound.count = count

    @staticmethod
    def _bind_input(binding: Any, name: str | None, array: NDArray[Any], shape: tuple[int, int]) -> None:
        binding.bind_input(name, "cpu", 0, array.dtype.type, shape, array.ctypes.data)

    def close(self) -> None:
        """Let go of the bindings, which point into the KV memory."""
        self._slots.clear()
        self._session = None


class _SlotBinding:
    """One slot's bindings, and for how many tokens the chunk's arrays are bound (0: not)."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self.count = 0


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
