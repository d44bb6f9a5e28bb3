from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoder import VOCAB, write_decoder

from magnitude.engine.draft_model import CATCH_UP_TOKENS, DraftModel, check_same_vocabulary
from magnitude.engine.sampling import F32
from magnitude.errors import ModelError
from magnitude.models.description import ModelDescription


def next_of(ids: Sequence[int]) -> int:
    """The best next token of the fake model: it depends on all ids."""
    value = 7
    for token in ids:
        value = (value * 31 + token + 1) % 97
    return value


class FakeDecoder:
    """Keeps the ids of each row as a KV cache would, and sees to it that no position is left out."""

    def __init__(self, rows: int = 2) -> None:
        self.rows: list[list[int]] = [[] for _ in range(rows)]
        self.computed: list[int] = []  # positions of each run

    def step(self, ids: Sequence[int], pasts: Sequence[int], first_row: int = 0) -> F32:
        assert len(ids) == len(pasts) == 1
        return self.extend(first_row, ids, pasts[0])

    def extend(self, row: int, ids: Sequence[int], past: int) -> F32:
        held = self.rows[row]
        assert past <= len(held), "a position before it was never computed"
        self.rows[row] = [*held[:past], *ids]
        self.computed.append(len(ids))
        logits = np.zeros((1, 97), np.float32)
        logits[0, next_of(self.rows[row])] = 1
        return logits


def expected(ids: list[int], count: int) -> list[int]:
    text = list(ids)
    for _ in range(count):
        text.append(next_of(text))
    return text[len(ids) :]


class Ticks:
    """A clock that goes on by 1 s at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def test_a_draft_is_what_the_model_alone_would_go_on_with():
    stream = DraftModel(FakeDecoder(), streams=1, max_len=100).open_stream()
    assert stream is not None
    assert stream.propose([3, 1, 4], 5) == expected([3, 1, 4], 5)


@given(
    st.lists(st.integers(0, 96), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(0, 96)), max_size=12),
)
def test_rejected_tokens_leave_no_trace_in_later_drafts(prompt: list[int], turns: list[tuple[int, int, int]]):
    stream = DraftModel(FakeDecoder(), streams=1, max_len=1000).open_stream()
    assert stream is not None
    ids = list(prompt)
    for count, accepted, token in turns:
        draft = stream.propose(ids, count)
        assert draft == expected(ids, count)
        ids += draft[: min(accepted, count)]
        ids.append(token)


def test_accepted_tokens_are_not_computed_again():
    decoder = FakeDecoder()
    stream = DraftModel(decoder, streams=1, max_len=100).open_stream()
    assert stream is not None
    ids = [3, 1, 4]
    ids += [*stream.propose(ids, 4), 50]
    decoder.computed.clear()
    stream.propose(ids, 1)
    assert decoder.computed == [2]  # the last drafted token, which was never taken in, and the sampled one


def test_a_long_text_is_taken_in_piece_by_piece_before_the_first_draft():
    decoder = FakeDecoder()
    stream = DraftModel(decoder, streams=1, max_len=1000).open_stream()
    assert stream is not None
    ids = [token % 97 for token in range(2 * CATCH_UP_TOKENS + 10)]
    assert stream.propose(ids, 3) == []
    assert stream.propose(ids, 3) == []
    assert stream.propose(ids, 3) == expected(ids, 3)
    assert decoder.computed == [CATCH_UP_TOKENS, CATCH_UP_TOKENS, 10, 1, 1]


def test_no_position_beyond_the_models_context_is_used():
    decoder = FakeDecoder()
    stream = DraftModel(decoder, streams=1, max_len=5).open_stream()
    assert stream is not None
    assert len(stream.propose([1, 2, 3], 9)) == 3
    assert len(decoder.rows[0]) == 5
    assert len(stream.propose([1, 2, 3, 4, 5], 9)) == 1
    assert stream.propose([1, 2, 3, 4, 5, 6], 9) == []


def test_streams_are_apart_and_their_places_are_used_again():
    model = DraftModel(FakeDecoder(2), streams=2, max_len=100)
    first, second = model.open_stream(), model.open_stream()
    assert first is not None
    assert second is not None
    assert model.open_stream() is None
    assert first.propose([1, 2], 3) == expected([1, 2], 3)
    assert second.propose([5, 6], 3) == expected([5, 6], 3)
    assert first.propose([1, 2, 9], 3) == expected([1, 2, 9], 3)
    first.close()
    first.close()
    third = model.open_stream()
    assert third is not None
    assert model.open_stream() is None
    assert third.propose([8], 2) == expected([8], 2)


def test_the_time_of_a_drafted_token_is_known_after_the_first_draft():
    model = DraftModel(FakeDecoder(), streams=1, max_len=100, clock=Ticks())
    stream = model.open_stream()
    assert stream is not None
    assert model.token_s == 0.0
    stream.propose([1, 2, 3], 4)
    assert model.token_s == pytest.approx(0.25)


def test_the_same_tokenizer_passes(tiny: ModelDescription, folder: Path):
    check_same_vocabulary(tiny, write_decoder(folder, seed=2))


def test_another_tokenizer_is_refused_by_name(tiny: ModelDescription, folder: Path):
    draft = write_decoder(folder, seed=2)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"][-1]["content"] = "goodbye"
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="other tokens") as caught:
        check_same_vocabulary(tiny, draft)
    assert caught.value.code == "draft_model_unsuitable"


def test_more_tokens_than_the_target_has_and_other_kinds_of_model_are_refused(tiny: ModelDescription):
    assert tiny.decoder is not None
    wider = msgspec.structs.replace(tiny.decoder, vocab_size=VOCAB + 1)
    with pytest.raises(ModelError, match=f"{VOCAB + 1} tokens"):
        check_same_vocabulary(tiny, msgspec.structs.replace(tiny, decoder=wider))
    with pytest.raises(ModelError, match="no decoder"):
        check_same_vocabulary(tiny, msgspec.structs.replace(tiny, decoder=None, kind="embedder"))


def test_a_tokenizer_that_cannot_be_read_says_where(tiny: ModelDescription, tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=str(tmp_path)):
        check_same_vocabulary(tiny, msgspec.structs.replace(tiny, folder=str(tmp_path)))
