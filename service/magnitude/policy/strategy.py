"""How one execution runs: the strategy, and the default that holds until something better is measured."""

from __future__ import annotations

import msgspec

from magnitude.config.engine import EngineSettings
from magnitude.models.description import DecoderShape, KvType


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one execution."""

    threads: int
    prefill_chunk: int
    slots: int
    context_length: int  # positions of one KV slot
    kv_type: KvType | None  # None: the model holds no KV


class BoardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice needs to know of the board."""

    usable_threads: int  # min(affinity, floor(CPU quota)), at least 1


def default_strategy(board: BoardFacts, settings: EngineSettings, decoder: DecoderShape | None) -> Strategy:
    """The conservative plan: every usable core, the configured chunk, as much context as model and user allow.

    More threads than usable cores only fight each other for the quota, so a larger wish is cut down.
    """
    wished = settings.threads or board.usable_threads
    return Strategy(
        threads=max(1, min(wished, board.usable_threads)),
        prefill_chunk=settings.prefill_chunk_size,
        slots=settings.max_batch_size if decoder else 0,
        context_length=min(settings.context_length, decoder.context_length) if decoder else 0,
        kv_type=decoder.kv_type if decoder else None,
    )
