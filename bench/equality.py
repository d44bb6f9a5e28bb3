"""Is a row's result equal to the bit, however it is computed: alone or in a batch, in one piece or in several?

ONNX Runtime picks kernels by shape, and INT8 activations amplify what two kernels round differently. So equality is
a property of a graph on a CPU, and is measured, not assumed. The graph is run as the engine runs it: the engine's
session options, KV written in place, rows of different lengths in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.engine.sessions import open_session, prepare_runtime
from magnitude.models.catalogue import open_folder
from magnitude.models.description import DecoderShape, ModelDescription
from magnitude.models.manifest import MANIFEST_FILE, read_manifest

BATCHES = (1, 2, 4, 8)
CHUNKS = (16, 32, 64, 128)
WIDTHS = (2, 4, 8)
REPLAYED = 24
PREFIX_TOKENS = 256
# Of different lengths, even and odd, so that kernels that work on groups of rows or positions meet every remainder.
RAGGED = (50, 33, 70, 20, 61, 17, 90, 44)
STEPS = 4

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


class Equality(msgspec.Struct, frozen=True, kw_only=True):
    """One way to compute against another, over `compared` rows of logits."""

    what: str
    size: int
    compared: int
    equal: bool
    largest_difference: float


class GraphEquality(msgspec.Struct, frozen=True, kw_only=True):
    """All comparisons of one graph. `plan` is what the import chose, empty for a folder of others."""

    model: str
    graph_file: str
    plan: str
    kv_type: str
    threads: int
    results: tuple[Equality, ...]


class Rig:
    """One graph with KV buffers of its own making."""

    def __init__(self, folder: Path, graph_file: str, shape: DecoderShape, *, threads: int, positions: int) -> None:
        prepare_runtime()
        self._session = open_session(folder / graph_file, threads)
        self.shape = shape
        self._positions = positions
        self._types: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "int8": np.int8}

    def cache(self, rows: int) -> list[NDArray[Any]]:
        """Empty K and V of all layers, in turn."""
        shape = self.shape
        size = (rows, shape.kv_heads, self._positions, shape.head_dim)
        return [np.zeros(size, self._types[shape.kv_type]) for _ in range(2 * shape.layers)]

    def run(self, ids: Ids, past: list[int], cache: list[NDArray[Any]]) -> Rows:
        """Put `ids` `[rows, tokens]` behind each row's past; the logits of each row's last token `[rows, vocab]`."""
        shape, (rows, tokens) = self.shape, ids.shape
        binding = self._session.io_binding()
        feeds: dict[str | None, NDArray[Any]] = {shape.input_ids: ids}
        if shape.attention_mask is not None:
            mask = np.zeros((rows, max(past) + tokens), np.int64)
            for row, length in enumerate(past):
                mask[row, : length + tokens] = 1
            feeds[shape.attention_mask] = mask
        if shape.position_ids is not None:
            feeds[shape.position_ids] = np.asarray(past, np.int64)[:, None] + np.arange(tokens)
        if shape.logit_rows is not None:
            feeds[shape.logit_rows] = np.arange(rows, dtype=np.int64) * tokens + tokens - 1
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for at, array in enumerate(cache):
            layer, value = divmod(at, 2)
            names = (shape.past_value, shape.present_value) if value else (shape.past_key, shape.present_key)
            place = ("cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            binding.bind_input(names[0] % layer, *place)
            binding.bind_output(names[1] % layer, *place)
        binding.bind_output(shape.logits)
        self._session.run_with_iobinding(binding)
        logits = next(out for out in binding.get_outputs() if out.shape()[-1] == shape.vocab_size).numpy()
        last: Rows = logits.reshape(rows, -1, shape.vocab_size)[:, -1].astype(np.float32)
        return last


def measure(
    folder: Path,
    *,
    threads: int,
    graph_file: str | None = None,
    ids: Ids | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> GraphEquality:
    """All comparisons for the decoder in `folder`; `ids` are text to feed (None: from a fixed seed)."""
    model = open_folder(folder)
    if model.decoder is None:
        raise ValueError(f"{model.name} is not a decoder")
    graph = graph_file or model.graph_file
    rig = Rig(folder, graph, model.decoder, threads=threads, positions=PREFIX_TOKENS + REPLAYED + 8)
    wanted = sum(RAGGED) + len(RAGGED) * max(WIDTHS)
    if ids is None:
        ids = np.random.default_rng(0).integers(0, model.decoder.vocab_size, wanted)
    ids = np.resize(np.asarray(ids, np.int64), wanted)
    results = []
    for result in comparisons(rig, ids):
        progress(f"{model.name}, {result.what} {result.size}")
        results.append(result)
    return GraphEquality(
        model=model.name,
        graph_file=graph,
        plan=_plan(model),
        kv_type=model.decoder.kv_type,
        threads=threads,
        results=tuple(results),
    )


def comparisons(rig: Rig, ids: Ids) -> Iterator[Equality]:
    """Every comparison, one by one. Texts are cut to the model's context."""
    lengths = [min(length, rig.shape.context_length - max(WIDTHS)) for length in RAGGED]
    beginnings, followers = _ragged(ids, lengths)
    caches = []
    for beginning in beginnings:
        cache = rig.cache(1)
        rig.run(beginning[None], [0], cache)
        caches.append(cache)
    alone = [_one_by_one(rig, follower, length, cache) for follower, length, cache in zip(
        followers, lengths, caches, strict=True)]  # fmt: skip
    for size in BATCHES:
        joined = [np.concatenate([caches[row][at] for row in range(size)]) for at in range(len(caches[0]))]
        got = []
        for step in range(STEPS):
            past = [length + step for length in lengths[:size]]
            got.append(rig.run(np.stack([f[step : step + 1] for f in followers[:size]]), past, joined))
        yield _compare("decode in a batch, against alone", size, np.stack(got, 1), np.stack(alone[:size])[:, :STEPS])
    for width in WIDTHS:
        last = [
            rig.run(followers[row][None, :width], [lengths[row]], [part.copy() for part in caches[row]])[0]
            for row in range(len(RAGGED))
        ]
        expected = [rows[width - 1] for rows in alone]
        yield _compare("verify at once, against one by one", width, np.stack(last), np.stack(expected))
    yield from _pieces(rig, ids[: min(PREFIX_TOKENS, rig.shape.context_length)])


def _pieces(rig: Rig, ids: Ids) -> Iterator[Equality]:
    whole = rig.cache(1)
    reference = rig.run(ids[None], [0], whole)
    cache = whole
    for chunk in CHUNKS:
        cache = rig.cache(1)
        for start in range(0, len(ids), chunk):
            last = rig.run(ids[None, start : start + chunk], [start], cache)
        yield _compare("prefill in chunks, against one piece", chunk, last, reference)
    for start in range(len(ids) - REPLAYED, len(ids)):  # the last chunk's cache, its end decoded again token by token
        last = rig.run(ids[None, start : start + 1], [start], cache)
    yield _compare("prefill of what was decoded (replay)", REPLAYED, reference, last)


def _ragged(ids: Ids, lengths: list[int]) -> tuple[list[Ids], list[Ids]]:
    beginnings, followers, at = [], [], 0
    for length in lengths:
        beginnings.append(ids[at : at + length])
        followers.append(ids[at + length : at + length + max(WIDTHS)])
        at += length + max(WIDTHS)
    return beginnings, followers


def _one_by_one(rig: Rig, ids: Ids, length: int, cache: list[NDArray[Any]]) -> Rows:
    own = [part.copy() for part in cache]
    return np.concatenate([rig.run(ids[None, at : at + 1], [length + at], own) for at in range(len(ids))])


def _compare(what: str, size: int, got: Rows, expected: Rows) -> Equality:
    return Equality(
        what=what,
        size=size,
        compared=got.size // got.shape[-1],
        equal=bool(np.array_equal(got, expected)),
        largest_difference=float(np.abs(got - expected).max()),
    )


def _plan(model: ModelDescription) -> str:
    path = Path(model.folder)
    if not (path / MANIFEST_FILE).exists():
        return ""
    quantisation = read_manifest(path).quantisation
    return quantisation.accuracy_reason.partition(":")[0] if quantisation is not None else ""
