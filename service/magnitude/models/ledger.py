"""The memory ledger: what a model needs, row by row, against what there is.

Pure arithmetic over a `ModelDescription`. Measured constants say what they were measured on; everything else
follows from shapes.
"""

from __future__ import annotations

import msgspec

from magnitude.models.description import DecoderShape, KvType, ModelDescription, kv_parts

MIB = 1 << 20

# Interpreter, NumPy and ONNX Runtime of the engine before a model is loaded: 49 MiB RSS, of which 26 are code that
# is mapped from files. Measured on x86-64 with Python 3.11 and ONNX Runtime 1.32.
ENGINE_BYTES = 49 * MIB
# The service with its HTTP stack and no model: 39 MiB RSS (Python 3.11), and room for a few dozen connections.
SERVICE_BYTES = 60 * MIB
# Tokenizer in the service and grammar tables in the engine, per token of the vocabulary: 30 MiB and 33 MiB for the
# 49,152 tokens of SmolLM2.
BYTES_PER_TOKEN_OF_VOCABULARY = 1350
# ONNX Runtime packs most weights into private memory and reads the rest from the mapped file; pages of the file that
# were packed are not touched again. Measured on SmolLM2-135M (4-bit, 119 MiB file): 71 MiB packed and 47 MiB mapped.
WEIGHT_COPIES = 1.0
# Activations of one token of a prefill chunk, in floats for each hidden unit: 25 to 29 measured on SmolLM2-135M
# (hidden 576, chunks of 128 and 512, contexts of 512 to 8,192: no growth with the context). It covers attention,
# gate and up projection, and the arena's rounding.
ACTIVATION_FLOATS_PER_HIDDEN_UNIT = 29
# Never plan with the last bytes: page tables, kernel buffers, a burst of connections.
RESERVE_SHARE = 0.05
# A context below this serves nobody; the same lower bound as `engine.context_length`.
LEAST_CONTEXT = 64


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ledger. `how` is the computation in words and numbers."""

    name: str
    bytes: int
    how: str


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """`largest_context` is the most positions a slot can have with this model and slots (0: not even the least).

    `advice` lists what would make it fit, best first; empty when it fits.
    """

    rows: tuple[Row, ...]
    total_bytes: int
    available_bytes: int
    reserve_bytes: int
    fits: bool
    largest_context: int
    advice: tuple[str, ...] = ()


class _Need(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    model: ModelDescription
    context: int
    slots: int
    prefill_chunk: int
    kv_type: KvType | None

    def but(self, **changes: object) -> _Need:
        return msgspec.structs.replace(self, **changes)

    def total_bytes(self) -> int:
        return sum(row.bytes for row in _rows(self))

    def fits(self, available_bytes: int) -> bool:
        return self.total_bytes() + reserve(available_bytes) <= available_bytes


def reserve(available_bytes: int) -> int:
    """What is never planned with."""
    return int(available_bytes * RESERVE_SHARE)


def ledger(
    model: ModelDescription,
    *,
    available_bytes: int,
    context: int,
    slots: int = 1,
    prefill_chunk: int = 128,
    kv_type: KvType | None = None,
) -> Ledger:
    """Sum up `model` with `slots` KV slots of `context` positions against `available_bytes`.

    `kv_type` None is the model's own; another one shows what an import with it would need. For models that are not
    decoders only weights and processes count; `context` is then the tokens of one text.
    """
    need = _Need(model=model, context=context, slots=slots, prefill_chunk=prefill_chunk, kv_type=kv_type)
    fits = need.fits(available_bytes)
    largest = _largest_context(need, available_bytes)
    return Ledger(
        rows=_rows(need),
        total_bytes=need.total_bytes(),
        available_bytes=available_bytes,
        reserve_bytes=reserve(available_bytes),
        fits=fits,
        largest_context=largest,
        advice=() if fits else _advice(need, available_bytes, largest),
    )


def _largest_context(need: _Need, available_bytes: int) -> int:
    """The longest slot that fits, at most what the model was trained for; 0 when not even the least fits."""
    model = need.model
    longest = model.decoder.context_length if model.decoder else (model.encoder.max_tokens if model.encoder else 0)
    low, high = 0, longest  # memory grows with the context, so the border can be halved in on
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if need.but(context=middle).fits(available_bytes) else (low, middle - 1)
    return low if low >= min(LEAST_CONTEXT, longest) else 0


def _rows(need: _Need) -> tuple[Row, ...]:
    model, slots, context = need.model, need.slots, need.context
    rows = [
        Row(
            name="weights",
            bytes=int(model.weight_bytes * WEIGHT_COPIES),
            how="the weight file once: partly packed, partly mapped",
        )
    ]
    if model.decoder is not None:
        shape = model.decoder
        if need.kv_type is not None:
            shape = msgspec.structs.replace(shape, kv_type=need.kv_type)
        logit_rows = max(need.prefill_chunk, slots) if shape.logits_all_positions else slots
        rows += [
            Row(
                name="KV cache",
                bytes=slots * context * shape.kv_bytes_per_token(),
                how=f"{slots} slots x {context} positions x {shape.kv_bytes_per_token()} bytes ({_kv_terms(shape)})",
            ),
            _activations(shape.hidden_size, max(min(need.prefill_chunk, context), slots)),
            Row(
                name="logits",
                bytes=logit_rows * shape.vocab_size * 4,
                how=f"{logit_rows} rows x {shape.vocab_size} x 4 bytes",
            ),
            Row(
                name="tokenizer",
                bytes=shape.vocab_size * BYTES_PER_TOKEN_OF_VOCABULARY,
                how=f"{shape.vocab_size} tokens x {BYTES_PER_TOKEN_OF_VOCABULARY} bytes, grammar tables included",
            ),
        ]
    elif model.encoder is not None:
        rows.append(_activations(model.encoder.width, min(context, model.encoder.max_tokens)))
    rows += [
        Row(name="engine process", bytes=ENGINE_BYTES, how="Python, NumPy and ONNX Runtime, measured"),
        Row(name="service process", bytes=SERVICE_BYTES, how="Python and the HTTP stack, measured"),
    ]
    return tuple(rows)


def _kv_terms(shape: DecoderShape) -> str:
    values, *scales = kv_parts(shape.kv_type, shape.head_dim)[::2]  # those of keys, which values have as well
    row = f"{shape.head_dim} x {values.dtype}"
    if scales:
        row = f"({row} + a {scales[0].dtype} scale)"
    return f"2 x {shape.layers} layers x {shape.kv_heads} heads x {row}"


def _activations(hidden: int, tokens: int) -> Row:
    return Row(
        name="activations",
        bytes=tokens * hidden * 4 * ACTIVATION_FLOATS_PER_HIDDEN_UNIT,
        how=f"{tokens} tokens at once x {hidden} hidden x {ACTIVATION_FLOATS_PER_HIDDEN_UNIT} x 4 bytes, measured",
    )


def _advice(need: _Need, available_bytes: int, largest: int) -> tuple[str, ...]:
    found: list[str] = []
    if largest:
        found.append(f"a context of {largest} with {need.slots} slots (engine.context_length: {largest})")
    for slots in range(need.slots - 1, 0, -1):
        if need.but(slots=slots).fits(available_bytes):
            found.append(f"{slots} slots of {need.context} positions (engine.max_batch_size: {slots})")
            break
    decoder = need.model.decoder
    float_kv = decoder is not None and (need.kv_type or decoder.kv_type) in ("float32", "float16")
    if float_kv and need.but(kv_type="int8").fits(available_bytes):
        found.append("an INT8 KV cache (import again with --kv int8)")
    if not found:
        found.append("a smaller model, or fewer bits (import again with --bits 4)")
    return tuple(found)
