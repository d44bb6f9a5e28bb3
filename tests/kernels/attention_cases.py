"""Cases for kernels/tests/attention_driver.cc: caches, calls, their bytes, and what has to come out in float64.

Caches are arrays of [slots, kv_heads, positions, head_size] here; `Cache.padded` spreads them as wider strides do.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from kernel_builds import Build
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

SEGMENT = 128
STEPS = 16319
ATTEND = 1
APPEND = 2
UNTOUCHED = np.frombuffer(b"\xa5\xa5\xa5\xa5", dtype=np.float32)[0]


@dataclass(frozen=True)
class Cache:
    """Keys and values [slots, kv_heads, positions, head_size]: int8 with scales that lack the last axis, or float32.

    `gaps` are unused elements after each position, head, slot, and unused scales after each head and slot.
    """

    keys: NDArray[np.generic]
    values: NDArray[np.generic]
    key_scales: Floats | None = None
    value_scales: Floats | None = None
    gaps: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        slots, kv_heads, positions, head_size = self.keys.shape
        return slots, kv_heads, positions, head_size

    @property
    def strides(self) -> tuple[int, int, int]:
        """Of slots, heads and positions, in elements."""
        _, kv_heads, positions, head_size = self.shape
        position = head_size + self.gaps[0]
        head = positions * position + self.gaps[1]
        return kv_heads * head + self.gaps[2], head, position

    @property
    def scale_strides(self) -> tuple[int, int]:
        _, kv_heads, positions, _ = self.shape
        head = positions + self.gaps[3]
        return kv_heads * head + self.gaps[4], head

    def dequantised(self) -> tuple[Doubles, Doubles]:
        keys, values = self.keys.astype(np.float64), self.values.astype(np.float64)
        if self.key_scales is None or self.value_scales is None:
            return keys, values
        return keys * self.key_scales[..., None], values * self.value_scales[..., None]

    def arrays(self) -> list[bytes]:
        """Keys, values and their scales, with what lies in the gaps; no longer than the last element."""
        return [
            _spread(self.keys, self.strides),
            _spread(self.values, self.strides),
            b"" if self.key_scales is None else _spread(self.key_scales, (*self.scale_strides, 1)),
            b"" if self.value_scales is None else _spread(self.value_scales, (*self.scale_strides, 1)),
        ]

    def gathered(self, arrays: Sequence[bytes]) -> Cache:
        """The same cache with the contents that `arrays()` of it became."""
        slots, kv_heads, positions, _ = self.shape
        scales = (slots, kv_heads, positions)
        return replace(
            self,
            keys=_gather(arrays[0], self.keys, self.strides),
            values=_gather(arrays[1], self.values, self.strides),
            key_scales=None
            if self.key_scales is None
            else _gather(arrays[2], np.zeros(scales, np.float32), (*self.scale_strides, 1)),
            value_scales=None
            if self.value_scales is None
            else _gather(arrays[3], np.zeros(scales, np.float32), (*self.scale_strides, 1)),
        )


@dataclass(frozen=True)
class Call:
    """Query rows [rows, heads, head_size] at `positions` of `slots`, and how they are to be computed."""

    cache: Cache
    slots: Ints
    positions: Ints
    queries: Floats
    window: int = 0
    scale: float = 0.125
    threads: int = 1  # how finely the work is cut
    runners: int = 1  # threads that run it
    seed: int = 0  # of the order of tasks
    row_gaps: tuple[int, int] = (0, 0)  # unused floats after a row of queries, and of results
    changed: dict[str, int] = field(default_factory=dict)  # fields of the header, for calls that are wrong

    @property
    def heads(self) -> int:
        return int(self.queries.shape[1])


@dataclass(frozen=True)
class Append:
    """New keys and values [rows, kv_heads, head_size] for `positions` of `slots`."""

    cache: Cache
    slots: Ints
    positions: Ints
    keys: Floats
    values: Floats
    changed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """`error` is empty after success. `results`: [rows, heads, head_size] of a call; `cache` of an append.

    Neither where the header was changed: its layout is not that of the case.
    """

    error: str
    results: Floats | None = None
    untouched: bool = True  # what the operation had no business with, or everything after an error
    cache: Cache | None = None


# As Header in the driver.
_FIELDS = (
    *("operation", "kind"),
    *("keys_bytes", "values_bytes", "key_scales_bytes", "value_scales_bytes"),
    *("slots", "kv_heads", "positions", "head_size"),
    *("slot_stride", "head_stride", "position_stride", "scale_slot_stride", "scale_head_stride"),
    *("rows", "heads", "window"),
    *("first_bytes", "first_stride", "second_bytes", "second_stride"),
    *("threads", "runners", "seed"),
)
HEADER = struct.Struct(f"<{len(_FIELDS)}qd")
_BUFFERS = ("keys_bytes", "values_bytes", "key_scales_bytes", "value_scales_bytes", "first_bytes", "second_bytes")


@dataclass(frozen=True)
class AttentionDriver:
    """The attention_driver of a build."""

    build: Build

    def paths(self) -> list[str]:
        return self._run([], b"").decode().split()

    def run(self, path: str, cases: Sequence[Call | Append]) -> list[Answer]:
        """Runs all cases in one process. Raises AssertionError with what it said when it fails."""
        encoded = [_encode_call(case) if isinstance(case, Call) else _encode_append(case) for case in cases]
        output = self._run([path], b"".join(data for data, _ in encoded))
        answers = []
        at = 0
        for case, (_, header) in zip(cases, encoded, strict=True):
            status, length = struct.unpack_from("<qq", output, at)
            at += 16
            error = output[at : at + length].decode()
            at += length
            assert (status == 0) == (error == "")
            lengths = [header[name] for name in _BUFFERS]
            lengths = lengths[5:] if isinstance(case, Call) else lengths[:4]
            arrays = []
            for size in lengths:
                arrays.append(output[at : at + size])
                at += size
            if isinstance(case, Call):
                answers.append(_answer_call(case, error, arrays[0]))
            else:
                answers.append(_answer_append(case, error, arrays))
        assert at == len(output)
        return answers

    def _run(self, arguments: list[str], data: bytes) -> bytes:
        command = [*self.build.prefix, str(self.build.folder / "attention_driver"), *arguments]
        done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
        return done.stdout


def expected(call: Call) -> tuple[Doubles, Doubles]:
    """What attention gives in float64 [rows, heads, head_size], and how far a result may be from that.

    The bound is the one that attention.h states, for every weight and score at its worst.
    """
    keys, values = call.cache.dequantised()
    group = call.heads // call.cache.shape[1]
    results = np.zeros(call.queries.shape)
    bounds = np.zeros(call.queries.shape)
    in_bytes = call.cache.key_scales is not None
    for row, (slot, position) in enumerate(zip(call.slots, call.positions, strict=True)):
        if position < 0:
            continue
        begin = max(0, int(position) - call.window + 1) if call.window else 0
        seen = np.arange(begin, position + 1)
        for head in range(call.heads):
            k = keys[slot, head // group, begin : position + 1]
            v = values[slot, head // group, begin : position + 1]
            q = call.queries[row, head].astype(np.float64)
            scores = call.scale * (k @ q)
            weights = np.exp(scores - scores.max())
            share = weights / weights.sum()
            results[row, head] = share @ v
            # float32 arithmetic: of scores, of the exponential, and of sums of values.
            score_error = 2.0**-22 * call.scale * (np.abs(k) @ np.abs(q)) + 2.0**-22 * np.abs(scores) + 3e-7
            value_error = np.abs(v).max(axis=0) * 1e-5
            if in_bytes:
                score_error += call.scale * np.abs(k).sum(axis=1) * np.abs(q).max() / (2 * STEPS)
                assert call.cache.value_scales is not None
                scaled = share * call.cache.value_scales[slot, head // group, begin : position + 1]
                for segment in np.unique(seen // SEGMENT):
                    inside = seen // SEGMENT == segment
                    value_error = value_error + 127 * inside.sum() * scaled[inside].max() / (2 * STEPS) * 1.01
            # Weights off by a factor of e^±error move a mean by at most so much of its spread, or by all of it.
            spread = np.abs(v - results[row, head]).max(axis=0)
            bounds[row, head] = np.expm1(min(2 * score_error.max(), np.log(2))) * spread + value_error
    return results, bounds


def random_cache(
    rng: np.random.Generator, shape: tuple[int, int, int, int], *, kind: str, gaps: Sequence[int] = (0, 0, 0, 0, 0)
) -> Cache:
    """A full cache of `kind` "bytes" or "float"; scales of positions differ by up to a hundred."""
    widths = (gaps[0], gaps[1], gaps[2], gaps[3], gaps[4])
    if kind == "float":
        return Cache(
            rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape).astype(np.float32), gaps=widths
        )
    key_scales, value_scales = (0.02 * 10 ** rng.uniform(-1, 1, shape[:3]) for _ in range(2))
    return Cache(
        rng.integers(-127, 128, shape).astype(np.int8),
        rng.integers(-127, 128, shape).astype(np.int8),
        key_scales.astype(np.float32),
        value_scales.astype(np.float32),
        widths,
    )


def random_call(rng: np.random.Generator, cache: Cache, rows: int, heads: int) -> Call:
    """Rows anywhere in the cache."""
    slots, _, positions, head_size = cache.shape
    return Call(
        cache,
        rng.integers(0, slots, rows),
        rng.integers(0, positions, rows),
        (rng.standard_normal((rows, heads, head_size)) * 2).astype(np.float32),
        scale=float(np.float32(head_size**-0.5)),
    )


def _spread(array: NDArray[np.generic], strides: Sequence[int]) -> bytes:
    last = sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=False))
    width = array.shape[3] if array.ndim == 4 else 1
    buffer = np.full((last + width) * array.itemsize, 0xA5, np.uint8).view(array.dtype)
    _view(buffer, array, strides)[...] = array
    return buffer.tobytes()


def _gather(data: bytes, like: NDArray[np.generic], strides: Sequence[int]) -> NDArray[np.generic]:
    return _view(np.frombuffer(data, like.dtype), like, strides).copy()


def _view(buffer: NDArray[np.generic], like: NDArray[np.generic], strides: Sequence[int]) -> NDArray[np.generic]:
    steps = tuple(stride * like.itemsize for stride in (*strides, 1)[: like.ndim])
    return np.lib.stride_tricks.as_strided(buffer, like.shape, steps)


def _rows(array: Floats, gap: int) -> bytes:
    """Rows of floats with a gap after each but the last."""
    rows = array.reshape(array.shape[0], array.shape[1] * array.shape[2])
    wide = np.full((rows.shape[0], rows.shape[1] + gap), UNTOUCHED, np.float32)
    wide[:, : rows.shape[1]] = rows
    return wide.tobytes()[: max(0, wide.nbytes - 4 * gap)]


def _header(cache: Cache, arrays: Sequence[bytes], slots: Ints) -> dict[str, int]:
    names = ("keys_bytes", "values_bytes", "key_scales_bytes", "value_scales_bytes")
    header = dict.fromkeys(_FIELDS, 0)
    header.update(zip(names, map(len, arrays), strict=True))
    header.update(zip(("slots", "kv_heads", "positions", "head_size"), cache.shape, strict=True))
    header.update(zip(("slot_stride", "head_stride", "position_stride"), cache.strides, strict=True))
    header.update(zip(("scale_slot_stride", "scale_head_stride"), cache.scale_strides, strict=True))
    header.update(kind=int(cache.key_scales is not None), rows=len(slots), runners=1, threads=1)
    return header


def _encode(header: dict[str, int], buffers: dict[str, bytes], slots: Ints, positions: Ints, scale: float) -> bytes:
    """The header, then buffers cut or filled up to the lengths it gives."""
    parts = [HEADER.pack(*(header[name] for name in _FIELDS), scale)]
    cut = {name: data[: header[name]].ljust(header[name], b"\xa5") for name, data in buffers.items()}
    parts += [cut[name] for name in _BUFFERS[:4]]
    count = max(0, header["rows"]) * 8
    parts += [indices.astype("<i8").tobytes()[:count].ljust(count, b"\0") for indices in (slots, positions)]
    parts += [cut[name] for name in _BUFFERS[4:] if name in cut]
    return b"".join(parts)


def _encode_call(call: Call) -> tuple[bytes, dict[str, int]]:
    arrays = call.cache.arrays()
    header = _header(call.cache, arrays, call.slots)
    queries = _rows(call.queries, call.row_gaps[0])
    results = _rows(call.queries, call.row_gaps[1])
    width = call.queries.shape[1] * call.queries.shape[2]
    header.update(
        operation=ATTEND,
        heads=call.heads,
        window=call.window,
        first_bytes=len(queries),
        first_stride=width + call.row_gaps[0],
        second_bytes=len(results),
        second_stride=width + call.row_gaps[1],
        threads=call.threads,
        runners=call.runners,
        seed=call.seed,
    )
    header.update(call.changed)
    buffers = dict(zip(_BUFFERS, [*arrays, queries], strict=False))
    return _encode(header, buffers, call.slots, call.positions, call.scale), header


def _encode_append(case: Append) -> tuple[bytes, dict[str, int]]:
    arrays = case.cache.arrays()
    header = _header(case.cache, arrays, case.slots)
    keys, values = _rows(case.keys, 0), _rows(case.values, 0)
    width = case.keys.shape[1] * case.keys.shape[2]
    header.update(operation=APPEND, first_bytes=len(keys), second_bytes=len(values))
    header.update(first_stride=width, second_stride=width)
    header.update(case.changed)
    buffers = dict(zip(_BUFFERS, [*arrays, keys, values], strict=True))
    return _encode(header, buffers, case.slots, case.positions, 0.0), header


def _answer_call(call: Call, error: str, data: bytes) -> Answer:
    if error:
        return Answer(error, untouched=set(data) <= {0xA5})
    if call.changed:
        return Answer("")
    width = call.queries.shape[1] * call.queries.shape[2]
    rows = np.frombuffer(data.ljust(len(data) + 4 * call.row_gaps[1], b"\xa5"), np.float32)
    rows = rows.reshape(len(call.slots), width + call.row_gaps[1])
    gaps = np.ascontiguousarray(rows[:, width:]).tobytes()
    return Answer("", rows[:, :width].reshape(call.queries.shape).copy(), untouched=set(gaps) <= {0xA5})


def _answer_append(case: Append, error: str, arrays: list[bytes]) -> Answer:
    if error:
        before = _encode_append(case)[0][HEADER.size :]
        return Answer(error, untouched=before.startswith(b"".join(arrays)))
    if case.changed:
        return Answer("")
    cache = case.cache.gathered(arrays)
    # What is in the gaps is what `arrays()` puts there.
    return Answer("", cache=cache, untouched=cache.arrays() == arrays)
