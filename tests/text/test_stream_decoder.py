from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_fallback, byte_level

from magnitude.text.stream_decoder import StreamDecoder
from magnitude.text.tokenizer import TextTokenizer

BYTE_LEVEL = byte_level()
BYTE_FALLBACK = byte_fallback()
KINDS = [BYTE_LEVEL, BYTE_FALLBACK]


def stream(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer)
    return [*(decoder.push(i) for i in ids), decoder.finish()]


@pytest.mark.parametrize("tokenizer", KINDS)
def test_characters_of_several_tokens_come_out_whole(tokenizer: TextTokenizer) -> None:
    deltas = stream(tokenizer, tokenizer.encode_text("a😀é你"))
    assert "".join(deltas) == "a😀é你"
    assert [d for d in deltas if d] == ["a", "😀", "é", "你"]


@pytest.mark.parametrize("tokenizer", KINDS)
def test_an_incomplete_character_at_the_end_is_dropped(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode_text("a😀")
    for cut in range(len(ids) - 3, len(ids)):
        assert "".join(stream(tokenizer, ids[:cut])) == "a"


@given(text=st.text(alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd"), max_size=60))
def test_joined_deltas_are_the_text(text: str) -> None:
    for tokenizer in KINDS:
        ids = tokenizer.encode_text(text)
        assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(min_value=0, max_value=340), max_size=40))
def test_after_any_ids_the_text_that_follows_comes_out(ids: list[int]) -> None:
    for tokenizer in KINDS:
        word = [token for token in (tokenizer.token_id("h"), tokenizer.token_id("i")) if token is not None]
        assert "".join(stream(tokenizer, [*ids, *word])).endswith("hi")


@given(ids=st.lists(st.integers(min_value=0, max_value=340), max_size=40))
def test_the_last_piece_never_ends_in_half_a_character(ids: list[int]) -> None:
    for tokenizer in KINDS:
        assert not stream(tokenizer, ids)[-1].endswith("\ufffd")


def test_byte_pieces_become_characters() -> None:
    ids = [BYTE_FALLBACK.token_id(p) or 0 for p in ("<0xEA>", "<0xB9>", "<0xB0>")]
    assert stream(BYTE_FALLBACK, ids) == ["", "", "깰", ""]


def test_spaces_between_pieces_survive() -> None:
    ids = [BYTE_FALLBACK.token_id(p) or 0 for p in ("▁Dear", "▁you")]
    assert stream(BYTE_FALLBACK, ids) == ["Dear", " you", ""]


def test_special_tokens_have_no_text() -> None:
    ids = [*BYTE_LEVEL.encode_text("hello"), 2]
    assert "".join(stream(BYTE_LEVEL, ids)) == "hello"


def test_broken_bytes_do_not_hold_the_following_text_back() -> None:
    broken = [BYTE_FALLBACK.token_id("<0xFF>") or 0] * 12
    ids = [*broken, *[BYTE_FALLBACK.token_id(p) or 0 for p in ("h", "i")]]
    assert "".join(stream(BYTE_FALLBACK, ids)).endswith("hi")
