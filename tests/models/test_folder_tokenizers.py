"""Tokenizers and chat templates of model folders: where things lie, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_sources import TEMPLATE, decoder_folder
from tokenizers import Tokenizer, processors

from magnitude.errors import ModelError
from magnitude.models.tokenizers.chat_template import choose_template
from magnitude.models.tokenizers.from_folder import tokenizer_from_folder
from magnitude.models.untrusted import CONFIG_MAX_BYTES, TEMPLATE_MAX_BYTES


@pytest.fixture
def folder(golden: Path, tmp_path: Path) -> Path:
    return decoder_folder(golden, tmp_path / "tiny")


def set_config(folder: Path, **values: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_a_begin_token_given_as_a_map_is_read(folder: Path) -> None:
    set_config(folder, bos_token={"content": "<s>"}, eos_token={"content": "</s>", "lstrip": False})
    special = tokenizer_from_folder(folder).special
    assert (special.bos, special.eos) == (1, (2,))


def test_a_begin_token_is_seen_where_the_post_processor_adds_it(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert tokenizer_from_folder(folder).special.add_bos


def test_a_begin_token_is_not_added_where_nothing_says_so(folder: Path) -> None:
    assert not tokenizer_from_folder(folder).special.add_bos


def test_the_flag_alone_is_enough_for_a_begin_token(folder: Path) -> None:
    set_config(folder, bos_token="<s>", add_bos_token=True)
    assert tokenizer_from_folder(folder).special.add_bos


def test_ends_of_the_generation_configuration_come_first(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 2], "bos_token_id": 1}')
    assert tokenizer_from_folder(folder, eos=[5]).special.eos == (7, 2, 5)


def test_padding_and_truncation_of_the_saving_pipeline_are_dropped(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=128)
    tokenizer.enable_truncation(128)
    tokenizer.save(str(folder / "tokenizer.json"))
    stored = Tokenizer.from_str(tokenizer_from_folder(folder).tokenizer_json)
    assert len(stored.encode("abc").ids) == 3
    assert len(stored.encode("a" * 200).ids) == 200


def test_no_template_is_recorded_as_none(folder: Path) -> None:
    assert tokenizer_from_folder(folder).chat_template is None


def test_a_template_in_its_own_file_wins(folder: Path) -> None:
    set_config(folder, chat_template="other")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    assert tokenizer_from_folder(folder).chat_template == TEMPLATE


def test_a_template_in_the_configuration_is_found(folder: Path) -> None:
    set_config(folder, chat_template=TEMPLATE)
    assert tokenizer_from_folder(folder).chat_template == TEMPLATE


def test_of_named_templates_the_default_is_taken_and_the_others_are_noted() -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    template, note = choose_template(named)
    assert template == "a"
    assert note is not None
    assert "tool_use" in note


def test_several_templates_without_a_default_are_no_guess() -> None:
    with pytest.raises(ModelError, match="default"):
        choose_template([{"name": "x", "template": "a"}, {"name": "y", "template": "b"}])


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_an_empty_template_is_none(value: object) -> None:
    assert choose_template(value) == (None, None)


def test_a_template_without_end_is_refused() -> None:
    with pytest.raises(ModelError, match="bytes"):
        choose_template("x" * (TEMPLATE_MAX_BYTES + 1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"", "usable tokenizer"),
        ("tokenizer.json", b'{"model": ', "usable tokenizer"),
        ("tokenizer.json", bytes(4096), "usable tokenizer"),
        ("tokenizer.json", b"[" * 100_000, "usable tokenizer"),
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("tokenizer.json", b"\xff\xfe", "not UTF-8"),
        ("tokenizer_config.json", b"[]", "not an object"),
        ("tokenizer_config.json", b"{", "not valid JSON"),
        ("tokenizer_config.json", b" " * (CONFIG_MAX_BYTES + 1), "more than"),
    ],
)
def test_damaged_files_are_named(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        tokenizer_from_folder(folder)
    assert name in caught.value.message
