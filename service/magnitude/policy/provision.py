"""What a model is given on this board: memory, and the bounds within which strategies vary."""

from __future__ import annotations

import msgspec

from magnitude.config.engine import EngineSettings
from magnitude.config.kv import KvSettings
from magnitude.models.description import DecoderShape, KvType, ModelDescription


class Provision(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is loaded with. `threads`: of its own session, and the most that any session of it may have."""

    threads: int
    prefill_chunk: int
    max_batch: int = 1  # generations that decode together; 0: the model is no decoder
    max_inter_token_ms: float = 50.0
    slots: int  # places for KV: more than can run, for conversations that wait
    kv_budget_bytes: int = 0  # what all slots together may hold
    context_length: int  # positions of one KV slot
    max_draft: int = 0  # most tokens that are drafted ahead and verified together; 0: plain decoding
    draft_inexact: bool = False  # draft also where a verification is not equal to the bit to plain steps
    kv_type: KvType | None  # None: the model holds no KV


class BoardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice needs to know of the board."""

    usable_threads: int  # min(affinity, floor(CPU quota)), at least 1
    no_kernels: str = ""  # why there are no kernels here, as a sentence; "" where there are, or none are asked for


# Slots for each generation that can run. An agent's turn spends about three quarters of its time waiting for tools
# and people, and sixteen agents on four rows pushed each other out of 16 slots; a slot costs memory only for the
# tokens in it.
SLOTS_PER_ROW = 8


# Most tokens of a draft. Quotes by SmolLM2-135M decoded 2.3, 2.5 and 2.5 times as fast as plainly with at most 4, 8
# and 12, and a longer run delays its own tokens and those of others.
MAX_DRAFT_TOKENS = 8


def draft_bytes(draft: ModelDescription | None, settings: EngineSettings) -> int:
    """Memory of a draft model beside its target: weights, and KV for every generation that can run."""
    if draft is None or draft.decoder is None:
        return 0
    positions = min(settings.context_length, draft.decoder.context_length)
    return draft.weight_bytes + settings.max_batch_size * positions * draft.decoder.kv_bytes_per_token()


def default_provision(
    board: BoardFacts, settings: EngineSettings, decoder: DecoderShape | None, kv: KvSettings
) -> Provision:
    """The conservative plan: every usable core, the configured chunk, as much context as model and user allow.

    More threads than usable cores only fight each other for the quota, so a larger wish is cut down.
    """
    wished = settings.threads or board.usable_threads
    batch = settings.max_batch_size
    context = min(settings.context_length, decoder.context_length) if decoder else 0
    token_bytes = decoder.kv_bytes_per_token() if decoder else 0
    if token_bytes and kv.budget_bytes:
        context = max(1, min(context, kv.budget_bytes // token_bytes))
    return Provision(
        threads=max(1, min(wished, board.usable_threads)),
        prefill_chunk=settings.prefill_chunk_size,
        max_batch=batch if decoder else 0,
        max_inter_token_ms=settings.max_inter_token_ms,
        slots=max(batch, kv.slots or SLOTS_PER_ROW * batch) if decoder else 0,
        kv_budget_bytes=kv.budget_bytes or batch * context * token_bytes,
        context_length=context,
        max_draft=MAX_DRAFT_TOKENS if decoder and settings.speculation != "off" else 0,
        draft_inexact=settings.speculation == "on",
        kv_type=decoder.kv_type if decoder else None,
    )
