"""A sliding window with attention sinks: what is done when a KV slot is full and the generation is to go on.

The first positions stay, because attention rests on them whatever they hold (attention sinks: Xiao et al.,
"Efficient Streaming Language Models with Attention Sinks", 2023); the oldest block behind them is dropped, and the
rest moves down. Positions are counted within the slot, so moved keys stand at smaller positions than they were
computed for. Keys in the cache carry the rotation of their position (RoPE, channel i paired with i + head_dim / 2),
and rotations add up: turning a key back by the dropped distance makes it the key of its new position. Values carry
no position.

Keys in bytes with a scale for each position are turned in float32 and rounded anew, each time by at most half a step;
a position is moved three or four times before it is dropped itself.

Which tokens are dropped follows from their number alone, so that a generation that is rebuilt slides as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_bytes import dequantise, quantise
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.slot_header import SlotHeader, SlotState, trusted_length
from magnitude.models.description import DecoderShape

SINKS = (
    4  # Xiao et al.: four suffice for models trained without a sink token; fewer cost perplexity, more gain nothing
)
# The share of the window that goes at once. Each slide moves all that stays (1 - 1/4), so that a new token costs the
# move of three positions on average: some kilobytes a layer, beside the reading of all weights. At least three
# quarters of the window stay visible. Larger shares forget more, smaller ones move more often.
_DROPPED_SHARE = 4
# Positions that are moved at a time: in float32 with 128 channels 256 KiB a buffer, which stays in a core's cache.
_BLOCK_POSITIONS = 512
# A slot whose content was slid hashes like this number in place of its first token id; ids are smaller.
_SLID = 1 << 32

F32 = NDArray[np.float32]


class Slide(msgspec.Struct, frozen=True):
    """`drop_tokens` positions go, from position `drop_from` on; those behind them move down."""

    drop_from: int
    drop_tokens: int


def can_slide(shape: DecoderShape, layout: KvLayout) -> str | None:
    """Why a slot of this layout cannot slide, or None when it can."""
    if layout.kv_type == "int8":
        return "its INT8 KV has a scale a channel: turning a key mixes channels, and the scales are inside the graph"
    if not shape.rope_frequencies:
        return "it is not known how its keys are rotated by position"
    if 2 * len(shape.rope_frequencies) != layout.head_dim:
        return "its keys are rotated in a part of their channels only"
    if shape.position_ids is not None:
        return "its positions are an input of the graph"
    if layout.max_len < 4 * SINKS:
        return f"its slots of {layout.max_len} positions are too short"
    return None


def plan_slide(length: int, max_len: int, sinks: int = SINKS) -> Slide | None:
    """What to drop before the next position of a slot with `length` positions is computed; None while there is room.

    Always the same block for the same `max_len`.
    """
    if length < max_len:
        return None
    return Slide(sinks, max(1, (max_len - sinks) // _DROPPED_SHARE))


def dropped_before(index: int, max_len: int, sinks: int = SINKS) -> int:
    """How many tokens have been dropped when the token of this index (from 0) is computed."""
    if index < max_len:
        return 0
    block = max(1, (max_len - sinks) // _DROPPED_SHARE)
    return -(-(index + 1 - max_len) // block) * block


def header_ids(ids: Sequence[int], dropped: int, sinks: int = SINKS) -> list[int]:
    """What the header of a slot is made from that holds `ids` without the dropped ones.

    As long as the slot has positions. No plain sequence of token ids hashes like it, so that nobody takes the slot
    for the beginning of a conversation; only who slid in the same way finds it right.
    """
    if not dropped:
        return list(ids)
    kept = [*ids[:sinks], *ids[sinks + dropped :]]
    return [_SLID * (dropped + 1) + kept[0], *kept[1:]]


class Slid(msgspec.Struct, frozen=True):
    """A slot that was slid before: `dropped` ids are gone, and the id at `index` is the next to be computed."""

    dropped: int
    index: int


def find_slid(header: SlotHeader | None, model_hash: str, layout: KvLayout, ids: Sequence[int]) -> Slid | None:
    """Where a generation with these `ids` (prompt and emitted) can go on in a slot that it slid in an earlier engine.

    None when it has not slid yet, or when the header does not vouch for the slot. The last step is always done again.
    """
    last = len(ids) - 1
    now = dropped_before(last, layout.max_len)
    # The slide that the last step needs may not have been done yet.
    for dropped in sorted({now, dropped_before(max(0, last - 1), layout.max_len)} - {0}):
        length = trusted_length(header, model_hash, layout.layout_id, header_ids(ids, dropped))
        if length:
            return Slid(dropped, min(length + dropped, last))
    return None


class KeyTurn:
    """Turns keys back by a distance: cosines and sines of `distance * frequencies`, and scratch memory."""

    def __init__(self, frequencies: Sequence[float], distance: int) -> None:
        angles = np.asarray(frequencies, np.float64) * distance
        self._cos: F32 = np.cos(angles).astype(np.float32)
        self._sin: F32 = np.sin(angles).astype(np.float32)
        half = len(angles)
        self._in = np.empty((_BLOCK_POSITIONS, 2 * half), np.float32)
        self._out = np.empty((_BLOCK_POSITIONS, 2 * half), np.float32)
        self._product = np.empty((_BLOCK_POSITIONS, half), np.float32)

    def __call__(self, keys: NDArray[np.floating]) -> F32:
        """`keys` `[n, head_dim]` (n at most a block) as they are `distance` positions earlier. Holds until the next
        call. In float32, whatever the cache holds."""
        count, half = len(keys), len(self._cos)
        given, turned, product = self._in[:count], self._out[:count], self._product[:count]
        np.copyto(given, keys)
        first, second = given[:, :half], given[:, half:]
        np.multiply(first, self._cos, out=turned[:, :half])
        np.multiply(second, self._sin, out=product)
        turned[:, :half] += product
        np.multiply(second, self._cos, out=turned[:, half:])
        np.multiply(first, self._sin, out=product)
        turned[:, half:] -= product
        return turned


class SlidingWindow:
    """The slot of a generation that goes on when it is full."""

    def __init__(
        self,
        kv: KvMemory,
        slot: int,
        state: SlotState,
        frequencies: Sequence[float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kv = kv
        self._slot = slot
        self._state = state
        self._frequencies = frequencies
        self._clock = clock
        self._slide: SlotSlide | None = None

    @property
    def full(self) -> bool:
        """Whether room must be made before anything else is computed."""
        return self._state.length >= self._kv.layout.max_len

    def make_room(self, ids: Sequence[int], limit_s: float | None) -> int:
        """Move at least one layer, and more as long as `limit_s` lasts; all of them when it is None.

        `ids` are those of all positions computed so far, the dropped ones included. Until all is moved the header
        claims nothing, so that an engine that dies meanwhile leaves no slot that looks whole. Returns the positions
        moved, counted in each layer.
        """
        state, layout = self._state, self._kv.layout
        if self._slide is None:
            slide = plan_slide(state.length, layout.max_len)
            assert slide is not None, "asked only while the slot is full"
            state.claim_nothing()
            self._slide = SlotSlide(self._kv, self._slot, slide, self._frequencies, state.length)
        moving, slide, started_s, layers = self._slide, self._slide.slide, self._clock(), self._slide.left
        moving.move_layer()
        while not moving.done and (limit_s is None or self._clock() - started_s < limit_s):
            moving.move_layer()
        moved = (layers - moving.left) * (state.length - slide.drop_from - slide.drop_tokens)
        if moving.done:
            self._slide = None
            dropped = state.dropped + slide.drop_tokens
            state.begin(header_ids(ids, dropped), dropped)
        return moved


def slide_slot(kv: KvMemory, slot: int, slide: Slide, frequencies: Sequence[float], length: int) -> None:
    """Drop the block in `slot`, which has `length` positions, and move the rest down, in place.

    `frequencies` are the model's `rope_frequencies`. The slot's header must claim nothing meanwhile. Takes as long
    as reading and writing the moved positions (see `SlotSlide` for parts), with less than a megabyte of scratch
    memory.
    """
    moving = SlotSlide(kv, slot, slide, frequencies, length)
    while not moving.done:
        moving.move_layer()


class SlotSlide:
    """A slide in parts of a layer each, so that others need not wait for the whole."""

    def __init__(self, kv: KvMemory, slot: int, slide: Slide, frequencies: Sequence[float], length: int) -> None:
        self.slide = slide
        self._kv = kv
        self._slot = slot
        self._length = length
        self._turn = KeyTurn(frequencies, slide.drop_tokens)
        self._layer = 0

    @property
    def done(self) -> bool:
        return self._layer >= self._kv.layout.layers

    @property
    def left(self) -> int:
        """Layers that are not moved yet."""
        return self._kv.layout.layers - self._layer

    def move_layer(self) -> None:
        layout = self._kv.layout
        tensors = {
            part.name: self._kv.slot_bytes(self._layer, part.name, self._slot).view(np.dtype(part.dtype))
            for part in layout.parts
        }
        for head in range(layout.kv_heads):
            heads = {name: tensor[head] for name, tensor in tensors.items()}
            if "key_scale" in heads:
                scales = heads.pop("key_scale")[:, 0]
                move_bytes_down(heads.pop("key"), scales, self.slide, self._length, self._turn)
            for name, rows in heads.items():
                move_down(rows, self.slide, self._length, self._turn if name == "key" else None)
        self._layer += 1


def move_down(head: NDArray[np.floating], slide: Slide, length: int, turn: KeyTurn | None) -> None:
    """Do a slide in one head's `[positions, head_dim]`, in place; keys are turned, values (`turn` None) are not."""
    for target, source in _blocks(slide, length):
        head[target] = turn(head[source]) if turn is not None else head[source]


def move_bytes_down(codes: NDArray[np.int8], scales: F32, slide: Slide, length: int, turn: KeyTurn) -> None:
    """Do a slide in one head's keys in bytes, `[positions, head_dim]` with `scales` `[positions]`, in place."""
    given = np.empty((_BLOCK_POSITIONS, codes.shape[1]), np.float32)
    for target, source in _blocks(slide, length):
        block = given[: source.stop - source.start]
        dequantise(codes[source], scales[source], block)
        quantise(turn(block), codes[target], scales[target])


def _blocks(slide: Slide, length: int) -> Iterator[tuple[slice, slice]]:
    """Where to and where from, block by block. Whatever lies between the two is read already when a block is written,
    so overlapping ones do no harm."""
    target = slide.drop_from
    for source in range(slide.drop_from + slide.drop_tokens, length, _BLOCK_POSITIONS):
        count = min(_BLOCK_POSITIONS, length - source)
        yield slice(target, target + count), slice(source, source + count)
        target += count
