"""Drafts by a second, smaller decoder with the same vocabulary.

It always drafts its best token. Such a draft does not depend on the noise that the target draws with, so verifying it
with the target's own sampler keeps the target's distribution. Its KV is memory of the engine: it follows from the ids
and is computed again whenever it is not there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.sampling import F32
from magnitude.engine.sessions import open_session
from magnitude.errors import MagnitudeError, ModelError
from magnitude.models.description import ModelDescription

# Ids that it takes in at once while it is behind (after a prompt). Each time a running answer waits for it, so the
# piece is small; a draft model is several times faster than its target.
CATCH_UP_TOKENS = 64
# Weight of the newest measured time of a drafted token.
_NEWEST = 0.1


def check_same_vocabulary(target: ModelDescription, draft: ModelDescription) -> None:
    """Raise `ModelError` unless every id of the draft model means the same token as the target's."""
    if draft.decoder is None or target.decoder is None:
        raise _unsuitable(target, draft, "it is no decoder")
    if draft.decoder.vocab_size > target.decoder.vocab_size:
        raise _unsuitable(
            target,
            draft,
            f"it has {draft.decoder.vocab_size} tokens where the target has {target.decoder.vocab_size}",
        )
    if _token_ids(draft) != _token_ids(target):
        raise _unsuitable(target, draft, "its tokenizer has other tokens")


def _token_ids(model: ModelDescription) -> dict[str, int]:
    if model.tokenizer_file is None:
        raise ModelError(f"model {model.name} has no tokenizer to compare", code="draft_model_unsuitable")
    path = Path(model.folder) / model.tokenizer_file
    try:
        content: Any = json.loads(path.read_bytes())
        vocabulary = content["model"]["vocab"]
        if not isinstance(vocabulary, dict):  # a unigram vocabulary is a list of pieces with their scores
            vocabulary = {piece: at for at, (piece, _) in enumerate(vocabulary)}
        return {**vocabulary, **{token["content"]: token["id"] for token in content.get("added_tokens", [])}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} cannot be read: {error}", param=str(path)) from error


def _unsuitable(target: ModelDescription, draft: ModelDescription, why: str) -> ModelError:
    return ModelError(
        f"model {draft.name} cannot draft for {target.name}: {why}",
        code="draft_model_unsuitable",
        param="engine.draft_model",
        hint="Name a smaller model of the same family, or leave engine.draft_model unset",
    )


class DraftRuns(Protocol):
    """What is needed of a decoder (`engine.decoder.Decoder`): logits are `[1, vocab_size]`."""

    def step(self, ids: Sequence[int], pasts: Sequence[int], first_row: int = 0) -> F32: ...

    def extend(self, row: int, ids: Sequence[int], past: int) -> F32: ...


class DraftModel:
    """A decoder that drafts for up to `streams` generations at a time, of up to `max_len` positions each.

    `token_s` is the running mean of what drafting one token takes.
    """

    def __init__(
        self, decoder: DraftRuns, *, streams: int, max_len: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.token_s = 0.0
        self._decoder = decoder
        self._max_len = max_len
        self._clock = clock
        self._free = list(range(streams))[::-1]

    def open_stream(self) -> DraftStream | None:
        """A generation's own stream, to be closed at its end; None when all are in use."""
        return DraftStream(self, self._free.pop()) if self._free else None

    def give_back(self, row: int) -> None:
        self._free.append(row)

    def feed(self, row: int, ids: list[int], past: int) -> int:
        """Take in `ids` at `past`; the best token after them."""
        decoder = self._decoder
        logits = decoder.step(ids, [past], row) if len(ids) == 1 else decoder.extend(row, ids, past)
        return int(logits[-1].argmax())

    def draft(self, row: int, ids: list[int], past: int, count: int) -> list[int]:
        """The best token after `ids`, which go to `past`, and `count` - 1 more, each the best after all before."""
        started_s = self._clock()
        drafted = [self.feed(row, ids, past)]
        past += len(ids)
        while len(drafted) < count:
            drafted.append(self.feed(row, drafted[-1:], past))
            past += 1
        token_s = (self._clock() - started_s) / count
        self.token_s += _NEWEST * (token_s - self.token_s) if self.token_s else token_s
        return drafted

    @property
    def max_len(self) -> int:
        return self._max_len


class DraftStream:
    """One generation's place in the draft model: drafts, and forgets what was rejected."""

    def __init__(self, model: DraftModel, row: int) -> None:
        self._model: DraftModel | None = model
        self._row = row
        self._held: list[int] = []  # ids whose KV is in the row
        self._agreed = 0  # so many of them surely begin the text

    def propose(self, ids: Sequence[int], max_tokens: int) -> list[int]:
        """A draft of what follows `ids`, which begin with those of the call before.

        Empty while the model is still taking in what is new: one piece a call.
        """
        model = self._model
        assert model is not None, "closed"
        count = min(max_tokens, model.max_len - len(ids) + 1)
        if count < 1 or not ids:
            return []
        while self._agreed < min(len(self._held), len(ids)) and self._held[self._agreed] == ids[self._agreed]:
            self._agreed += 1
        # The last id is taken in again if need be: its logits give the draft.
        past = min(self._agreed, len(ids) - 1)
        new = list(ids[past : past + CATCH_UP_TOKENS])
        del self._held[past:]
        self._agreed = past
        if past + len(new) < len(ids):
            model.feed(self._row, new, past)
            self._held += new
            return []
        drafted = model.draft(self._row, new, past, count)
        self._held += new + drafted[:-1]
        return drafted

    def close(self) -> None:
        """The place may go to another generation. Safe to call twice."""
        if self._model is not None:
            self._model.give_back(self._row)
            self._model = None


class LoadedDraftModel:
    """A draft model with its session and its KV memory, a slot a stream. `drafts` is what generations use.

    Raises `ModelError` when it does not suit `target` or cannot be loaded, `EngineError` when its memory cannot be
    mapped.
    """

    def __init__(
        self, description: ModelDescription, target: ModelDescription, *, threads: int, streams: int, max_len: int
    ) -> None:
        check_same_vocabulary(target, description)
        assert description.decoder is not None
        session = open_session(Path(description.folder) / description.graph_file, threads)
        max_len = min(max_len, description.decoder.context_length)
        layout = KvLayout.of(description.decoder, slots=streams, max_len=max_len)
        fd = os.memfd_create(f"draft-kv-{description.name}")
        try:
            os.ftruncate(fd, layout.total_bytes)
            self._kv = KvMemory(fd, layout)
        finally:
            os.close(fd)
        try:
            self._decoder = Decoder(description, session, self._kv, max_batch=streams)
        except MagnitudeError:
            self._kv.close()
            raise
        for row in range(streams):
            self._decoder.show(row, row)
        self.drafts = DraftModel(self._decoder, streams=streams, max_len=max_len)

    def close(self) -> None:
        """Let go of session, bindings and memory."""
        self._decoder.close()
        self._kv.close()
