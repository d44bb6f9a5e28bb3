from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_decoder import ADDED_WORD, EOS, TOKENIZER_IDS, VOCAB, byte_tokenizer, json_schema

from magnitude.engine.grammar import MAX_GRAMMAR_BYTES, GrammarTokenizer
from magnitude.engine.protocol import GrammarSpec
from magnitude.errors import ModelError, RequestError


@pytest.fixture(scope="module")
def tokenizer() -> GrammarTokenizer:
    return GrammarTokenizer(byte_tokenizer().to_str(), VOCAB, [EOS])


def ids_of(text: str) -> list[int]:
    return byte_tokenizer().encode(text).ids


def regex(text: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", text=text)


def test_only_tokens_that_continue_the_output_are_allowed(tokenizer: GrammarTokenizer):
    grammar = tokenizer.start(regex("[ab]c"))
    assert set(np.flatnonzero(grammar.allowed())) == {*ids_of("a"), *ids_of("b")}


def test_the_mask_is_as_wide_as_the_logits_and_padding_is_never_allowed(tokenizer: GrammarTokenizer):
    grammar = tokenizer.start(regex("(.|\n)*"))
    mask = grammar.allowed()
    assert mask.shape == (VOCAB,)
    assert not mask[TOKENIZER_IDS:].any()
    assert mask[EOS]


def test_an_added_token_is_allowed_where_its_text_fits(tokenizer: GrammarTokenizer):
    assert tokenizer.start(regex("[a-z]+")).allowed()[ADDED_WORD]
    assert not tokenizer.start(regex("[a-d]+")).allowed()[ADDED_WORD]
    grammar = tokenizer.start(regex("hello!"), [ADDED_WORD])
    assert np.flatnonzero(grammar.allowed()).tolist() == ids_of("!")


def test_the_end_token_comes_only_where_the_output_may_end(tokenizer: GrammarTokenizer):
    grammar = tokenizer.start(regex("ab?"))
    assert not grammar.allowed()[EOS]
    grammar.accept(ids_of("a")[0])
    assert grammar.allowed()[EOS]
    assert not grammar.complete
    grammar.accept(EOS)
    assert grammar.complete


def test_an_output_that_cannot_go_on_is_complete_without_an_end_token(tokenizer: GrammarTokenizer):
    assert tokenizer.start(regex("ab"), ids_of("ab")).complete


@pytest.mark.parametrize("cut", range(8))
def test_the_state_is_rebuilt_from_the_emitted_ids(tokenizer: GrammarTokenizer, cut: int):
    spec = GrammarSpec(kind="json_schema", text=json_schema(a={"type": "integer"}))
    ids = ids_of('{"a":12}')[:cut]
    step_by_step = tokenizer.start(spec)
    for token in ids:
        step_by_step.accept(token)
    assert np.array_equal(tokenizer.start(spec, ids).allowed(), step_by_step.allowed())


def test_any_walk_through_a_json_grammar_gives_json_that_fits(tokenizer: GrammarTokenizer):
    spec = GrammarSpec(
        kind="json_schema",
        text=json_schema(city={"enum": ["Paris", "Rome"]}, days={"type": "integer", "minimum": 1, "maximum": 9}),
    )
    rng = np.random.default_rng(3)
    for _ in range(20):
        grammar = tokenizer.start(spec)
        ids: list[int] = []
        while not grammar.complete:
            token = int(rng.choice(np.flatnonzero(grammar.allowed())))
            grammar.accept(token)
            if token != EOS:
                ids.append(token)
            assert len(ids) < 200
        value = json.loads(byte_tokenizer().decode(ids))
        assert value["city"] in ("Paris", "Rome")
        assert 1 <= value["days"] <= 9


def test_white_space_between_json_tokens_is_bounded(tokenizer: GrammarTokenizer):
    spec = GrammarSpec(kind="json_schema", text=json_schema(a={"type": "integer"}))
    blank = ids_of(" ")[0]
    grammar = tokenizer.start(spec, ids_of("{"))
    assert grammar.allowed()[blank]
    grammar.accept(blank)
    assert not grammar.allowed()[blank]


@pytest.mark.parametrize(
    "spec",
    [
        regex("[a-z"),
        GrammarSpec(kind="json_schema", text="{not json"),
        GrammarSpec(kind="json_schema", text='{"type": "wat"}'),
        GrammarSpec(kind="json_schema", text='{"$ref": "#/$defs/missing"}'),
        GrammarSpec(kind="lark", text="start: unknown_rule"),
        GrammarSpec(kind="lark", text=""),
        regex("a" * (MAX_GRAMMAR_BYTES + 1)),
        GrammarSpec(kind="json_schema", text='{"items":' * 5000 + "{}" + "}" * 5000),
        GrammarSpec(
            kind="json_schema",
            text=json.dumps({"anyOf": [json.loads(json_schema(**{f"k{i}": {}})) for i in range(3000)]}),
        ),
    ],
)
def test_a_broken_or_hostile_grammar_is_refused_as_the_requests_fault(tokenizer: GrammarTokenizer, spec: GrammarSpec):
    with pytest.raises(RequestError) as caught:
        grammar = tokenizer.start(spec)
        for _ in range(50):
            grammar.accept(int(np.flatnonzero(grammar.allowed())[0]))
    assert caught.value.code == "invalid_grammar"
    assert "\n" not in caught.value.message


def test_ids_that_do_not_match_the_grammar_are_refused(tokenizer: GrammarTokenizer):
    with pytest.raises(RequestError):
        tokenizer.start(regex("ab"), ids_of("x"))


def test_a_tokenizer_that_cannot_be_used_is_the_models_fault():
    with pytest.raises(ModelError) as caught:
        GrammarTokenizer("{}", VOCAB, [EOS])
    assert caught.value.code == "grammar_unsupported"
    with pytest.raises(ModelError):
        GrammarTokenizer(byte_tokenizer().to_str(), VOCAB, [])
    with pytest.raises(ModelError):
        GrammarTokenizer(byte_tokenizer().to_str(), 100, [EOS])
