from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tiny_tokenizers import byte_level

from magnitude.errors import ModelError
from magnitude.models.description import ModelDescription, SpecialTokens
from magnitude.text.catalogue import TextCatalogue, load_text


@pytest.fixture
def model(tmp_path: Path) -> ModelDescription:
    byte_level()._tokenizer.save(str(tmp_path / "tokenizer.json"))
    return ModelDescription(
        name="tiny",
        kind="decoder",
        family="llama",
        folder=str(tmp_path),
        graph_file="model.onnx",
        model_hash="h",
        weight_bytes=1,
        special=SpecialTokens(bos=0, eos=(2,)),
        chat_template_file="chat_template.jinja",
    )


def test_a_models_text_is_read_once(model: ModelDescription, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    catalogue = TextCatalogue()
    text = catalogue.get(model)
    assert catalogue.get(model) is text
    assert text.templates is not None
    rendered = text.templates.choose(with_tools=False).render([{"role": "user", "content": "hi"}])
    assert rendered == "<|endoftext|>hi<|im_end|>"
    assert catalogue.problems(model) == []


def test_a_chat_model_without_a_template_is_reported_at_start(model: ModelDescription) -> None:
    (problem,) = TextCatalogue().problems(model)
    assert "no chat template" in problem


def test_a_broken_template_is_reported_at_start(model: ModelDescription, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    (problem,) = TextCatalogue().problems(model)
    assert "cannot be compiled" in problem


@pytest.mark.parametrize("content", [None, "", "{}", "not json"])
def test_a_missing_or_broken_tokenizer_is_reported_at_start(
    model: ModelDescription, tmp_path: Path, content: str | None
) -> None:
    (tmp_path / "tokenizer.json").unlink()
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    (problem,) = TextCatalogue().problems(model)
    assert "tokenizer" in problem


def test_a_model_of_plain_tensors_needs_no_text(model: ModelDescription) -> None:
    tensors = msgspec.structs.replace(model, kind="tensors", tokenizer_file=None)
    assert TextCatalogue().problems(tensors) == []
    with pytest.raises(ModelError, match="no tokenizer"):
        load_text(tensors)
