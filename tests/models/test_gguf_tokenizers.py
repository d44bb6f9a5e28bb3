"""GGUF tokenizers against llama.cpp's own ids (scripts/make_tokenizer_golden.py), and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from magnitude.errors import ImportFailed
from magnitude.models.sources import open_source
from magnitude.models.tokenizers.from_gguf import tokenizer_from_gguf

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "tokenizers_by_llama_cpp.json").read_text())
TEXTS: list[str] = GOLDEN["texts"]


def metadata(kind: str, **changes: Any) -> dict[str, Any]:
    fields = {**GOLDEN[kind], **changes}
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}


def built(fields: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_from_gguf(fields).tokenizer_json)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "default"])
def test_each_pre_tokenizer_gives_llama_cpp_s_ids(pre: str) -> None:
    tokenizer = built(metadata("byte_level", pre=pre))
    for text, expected in zip(TEXTS, GOLDEN["ids"][pre], strict=True):
        if pre == "qwen2" and "\u0301" in text:
            continue  # Qwen's own tokenizer composes characters first, llama.cpp does not
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected, text


def test_qwen2_composes_characters_before_it_cuts() -> None:
    tokenizer = built(metadata("byte_level", pre="qwen2"))
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids


@pytest.mark.parametrize("space", [True, False])
def test_sentencepiece_scores_become_merges_that_give_llama_cpp_s_ids(space: bool) -> None:
    tokenizer = built(metadata("sentencepiece", add_space_prefix=space))
    name = "sentencepiece" if space else "sentencepiece without a first space"
    for text, expected in zip(TEXTS, GOLDEN["ids"][name], strict=True):
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected, text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_decoding_gives_the_text_back(kind: str, text: str) -> None:
    tokenizer = built(metadata(kind, pre="gpt-2"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    if kind == "sentencepiece" and "<s>" in text:
        decoded, text = decoded.replace(" ", ""), text.replace(" ", "")  # a space goes before and after such tokens
    assert decoded == text


@pytest.mark.models
def test_the_embedded_model_s_tokenizer_gives_llama_cpp_s_ids(embedded_gguf: Path) -> None:
    tokenizer = built(open_source(embedded_gguf).metadata["gguf"])
    assert [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS] == GOLDEN["ids"]["embedded"]


def test_control_tokens_are_special_and_user_defined_ones_stay_visible() -> None:
    tokenizer = built(metadata("byte_level", pre="gpt-2"))
    ids = tokenizer.encode("<|im_start|><tool>x", add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool>x"


def test_text_from_users_becomes_no_control_token_when_asked_so() -> None:
    tokenizer = built(metadata("byte_level", pre="gpt-2"))
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode("<|im_end|>", add_special_tokens=False).ids
    assert len(ids) > 1
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_end|>"


def test_a_begin_token_is_put_first_exactly_once_where_the_model_wants_one() -> None:
    parts = tokenizer_from_gguf(metadata("sentencepiece"))
    assert parts.special.add_bos
    assert Tokenizer.from_str(parts.tokenizer_json).encode("hi").ids[:2].count(1) == 1


def test_a_model_without_begin_token_gets_none() -> None:
    parts = tokenizer_from_gguf(metadata("byte_level", pre="gpt-2"))
    assert not parts.special.add_bos
    tokenizer = Tokenizer.from_str(parts.tokenizer_json)
    assert tokenizer.encode("hi").ids == tokenizer.encode("hi", add_special_tokens=False).ids


def test_llama_3_files_that_say_nothing_get_their_family_s_begin_token() -> None:
    assert tokenizer_from_gguf(metadata("byte_level", pre="llama-bpe", add_bos_token=None)).special.add_bos


def test_every_control_token_that_ends_a_text_is_an_end() -> None:
    special = tokenizer_from_gguf(metadata("byte_level", pre="gpt-2")).special
    tokens = GOLDEN["byte_level"]["tokens"]
    assert special.eos == (tokens.index("<|im_end|>"), tokens.index("<|endoftext|>"))


@pytest.mark.parametrize("pre", ["bloom", "tekken", "my-own", ""])
def test_an_unknown_pre_tokenizer_is_an_error_that_names_it(pre: str) -> None:
    with pytest.raises(ImportFailed, match=repr(pre)):
        tokenizer_from_gguf(metadata("byte_level", pre=pre))


def test_a_missing_pre_tokenizer_is_no_default() -> None:
    with pytest.raises(ImportFailed, match="names no pre-tokenizer"):
        tokenizer_from_gguf(metadata("byte_level"))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("byte_level", {"model": "bert"}, "'bert'"),
        ("byte_level", {"merges": None}, "without merges"),
        ("byte_level", {"merges": ["a"]}, "two tokens"),
        ("byte_level", {"merges": ["qqq zzz"]}, "do not agree"),
        ("byte_level", {"tokens": ["a", "a"], "token_type": [1, 1]}, "twice"),
        ("byte_level", {"token_type": [1]}, "1 entries"),
        ("byte_level", {"bos_token_id": 10**6}, "outside the vocabulary"),
        ("byte_level", {"tokens": []}, "empty"),
        ("byte_level", {"tokens": "abc"}, "not a list"),
        ("byte_level", {"merges": ["a b"] * (4 * 2**20 + 1)}, "more than"),
        ("sentencepiece", {"scores": None}, "without scores"),
        ("sentencepiece", {"model": None}, "no tokenizer"),
    ],
)
def test_damaged_fields_are_refused_by_name(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ImportFailed, match=message):
        tokenizer_from_gguf(metadata(kind, **{"pre": "gpt-2", **changes}))


def test_holes_in_a_vocabulary_get_spellings_of_their_own() -> None:
    tokens = [*GOLDEN["byte_level"]["tokens"], "", ""]
    fields = metadata(
        "byte_level", pre="gpt-2", tokens=tokens, token_type=[*GOLDEN["byte_level"]["token_type"], 5, 5]
    )
    assert tokenizer_from_gguf(fields).tokens == len(tokens)
