"""Variants: the same model in another precision, compared with its parent when it is imported."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import typer
from tiny_sources import TEMPLATE, decoder_folder
from tokenizers import Tokenizer
from typer.testing import CliRunner

from magnitude.cli import import_
from magnitude.errors import ImportFailed
from magnitude.models.catalogue import open_folder
from magnitude.models.description import ModelDescription
from magnitude.models.importing.parent import import_model
from magnitude.models.manifest import read_manifest
from magnitude.models.parent_golden import read_parent_golden
from magnitude.models.tolerance import DECODER_TOLERANCE, Tolerance

# A tiny random model is far more sensitive than a real one: what is asked here is whether bounds are kept.
ANY = Tolerance(top1_agreement=0.0, kl_nats=100.0, reason="a test")
NONE = Tolerance(top1_agreement=1.0, kl_nats=0.0, reason="a test")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def source(golden: Path, tmp_path: Path) -> Path:
    folder = decoder_folder(golden, tmp_path / "tiny")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def parent(source: Path, models: Path) -> ModelDescription:
    return import_model(source, models_folder=models)


def test_a_variant_lies_in_a_folder_of_its_own_and_knows_its_parent(
    source: Path, models: Path, parent: ModelDescription
) -> None:
    variant = import_model(source, models_folder=models, variant_of=parent, bits=16, tolerance=ANY)
    assert variant.name == "tiny-float32"
    assert variant == open_folder(models / "tiny-float32")
    assert (variant.variant_of, variant.parent_hash) == ("tiny", parent.model_hash)
    assert (parent.precision, variant.precision) == ("int4", "float32")
    assert variant.tolerance is not None
    assert variant.tolerance.reason == "a test"
    assert parent.tolerance == DECODER_TOLERANCE


def test_how_near_it_is_to_its_parent_is_recorded(source: Path, models: Path, parent: ModelDescription) -> None:
    variant = import_model(source, models_folder=models, variant_of=parent, bits=8, tolerance=ANY)
    assert variant.outside == ""
    compared = [
        entry for entry in read_manifest(models / variant.name).verification if entry.reference == "tiny (int4)"
    ]
    assert len(compared) == 2
    assert all(entry.passed and entry.kl_nats is not None and entry.tokens for entry in compared)


def test_a_variant_outside_the_tolerance_says_why(source: Path, models: Path, parent: ModelDescription) -> None:
    variant = import_model(source, models_folder=models, variant_of=parent, bits=16, tolerance=NONE)
    assert "nats (at most 0)" in variant.outside
    assert not all(entry.passed for entry in read_manifest(models / variant.name).verification)


def test_the_parent_s_tolerance_counts_where_none_is_stated(source: Path, models: Path) -> None:
    strict = import_model(source, models_folder=models, name="strict", tolerance=NONE)
    loose = import_model(source, models_folder=models, name="loose", tolerance=ANY)
    assert import_model(source, models_folder=models, variant_of=strict, bits=16).outside
    assert not import_model(source, models_folder=models, variant_of=loose, bits=16).outside


def test_an_int8_cache_makes_a_variant_of_the_same_weights(
    source: Path, models: Path, parent: ModelDescription
) -> None:
    variant = import_model(source, models_folder=models, variant_of=parent, kv="int8", tolerance=ANY)
    assert variant.name == "tiny-int4-kv8"
    assert variant.weight_bytes == pytest.approx(parent.weight_bytes, rel=0.1)
    assert parent.decoder is not None
    assert variant.decoder is not None
    assert variant.decoder.kv_bytes_per_token() < parent.decoder.kv_bytes_per_token()


def test_the_same_weights_are_on_the_disk_once(source: Path, models: Path, parent: ModelDescription) -> None:
    same = import_model(source, models_folder=models, variant_of=parent, kv="int8", tolerance=ANY)
    other = import_model(source, models_folder=models, variant_of=parent, bits=8, tolerance=ANY)
    data = models / parent.name / "model.onnx.data"
    assert data.samefile(models / same.name / "model.onnx.data")
    assert not data.samefile(models / other.name / "model.onnx.data")
    assert sorted(path.name for path in (models / same.name).iterdir()) == sorted(
        ["manifest.json", *read_manifest(models / same.name).files]
    )


def test_what_the_parent_says_travels_with_the_variant(source: Path, models: Path, parent: ModelDescription) -> None:
    variant = import_model(source, models_folder=models, variant_of=parent, bits=8, tolerance=ANY)
    golden = read_parent_golden(models / variant.name, parent.model_hash)
    assert all(prompt.logprobs == sorted(prompt.logprobs, reverse=True) for prompt in golden.prompts)
    assert "parent.json" in read_manifest(models / variant.name).files


def test_the_same_weights_in_the_same_precision_are_no_variant(
    source: Path, models: Path, parent: ModelDescription
) -> None:
    with pytest.raises(ImportFailed, match="the same graph with the same weights"):
        import_model(source, models_folder=models, variant_of=parent)
    assert sorted(path.name for path in models.iterdir()) == ["tiny"]


def test_another_tokenizer_is_refused(source: Path, models: Path, parent: ModelDescription) -> None:
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    text = tokenizer.to_str().replace('"a":', '"§":')
    (source / "tokenizer.json").write_text(text)
    with pytest.raises(ImportFailed, match="the tokenizer differ") as caught:
        import_model(source, models_folder=models, variant_of=parent, bits=8)
    assert caught.value.hint


def test_another_chat_template_is_refused(source: Path, models: Path, parent: ModelDescription) -> None:
    (source / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(ImportFailed, match="the chat template differ"):
        import_model(source, models_folder=models, variant_of=parent, bits=8)


def test_a_parent_s_template_may_have_been_edited_since(source: Path, models: Path, parent: ModelDescription) -> None:
    (models / "tiny" / "chat_template.jinja").write_text("{{ messages }} edited")
    import_model(source, models_folder=models, variant_of=parent, bits=8, tolerance=ANY)


def test_other_end_tokens_are_refused(source: Path, models: Path, parent: ModelDescription) -> None:
    other = msgspec.structs.replace(parent, special=msgspec.structs.replace(parent.special, eos=(9,)))
    with pytest.raises(ImportFailed, match="begin and end tokens"):
        import_model(source, models_folder=models, variant_of=other, bits=8)


def test_a_model_of_another_kind_is_no_variant(
    golden: Path, tmp_path: Path, source: Path, models: Path, parent: ModelDescription
) -> None:
    shutil.copytree(golden / "bert_embedder", tmp_path / "bert")
    shutil.copy(source / "tokenizer.json", tmp_path / "bert")
    with pytest.raises(ImportFailed, match="tiny"):
        import_model(tmp_path / "bert", models_folder=models, variant_of=parent)


def test_a_variant_has_no_variants(source: Path, models: Path, parent: ModelDescription) -> None:
    variant = import_model(source, models_folder=models, variant_of=parent, bits=8, tolerance=ANY)
    with pytest.raises(ImportFailed, match="itself a variant"):
        import_model(source, models_folder=models, variant_of=variant, bits=16)


def test_adapters_belong_to_the_parent(source: Path, models: Path, parent: ModelDescription) -> None:
    with pytest.raises(ImportFailed, match="adapters belong to tiny"):
        import_model(source, models_folder=models, variant_of=parent, bits=8, lora=True)


def test_a_ready_graph_is_no_variant(golden: Path, models: Path, parent: ModelDescription) -> None:
    with pytest.raises(ImportFailed, match="built from weights"):
        import_model(golden / "genai_tiny_llama", models_folder=models, variant_of=parent)


def test_a_parent_that_shows_its_last_row_only_cannot_be_compared_with(
    source: Path, models: Path, parent: ModelDescription
) -> None:
    assert parent.decoder is not None
    shape = msgspec.structs.replace(parent.decoder, logit_rows=None)
    foreign = msgspec.structs.replace(parent, decoder=shape, graph_file="model.onnx")
    with pytest.raises(ImportFailed, match="last position only"):
        import_model(source, models_folder=models, variant_of=foreign, bits=8)


def test_an_encoder_s_variant_is_compared_by_its_vectors(golden: Path, tmp_path: Path, models: Path) -> None:
    folder = tmp_path / "bert"
    shutil.copytree(golden / "bert_embedder", folder)
    plain = decoder_folder(golden, tmp_path / "words")
    shutil.copy(plain / "tokenizer.json", folder)
    encoder = import_model(folder, models_folder=models)
    variant = import_model(
        folder, models_folder=models, variant_of=encoder, bits=8, tolerance=Tolerance(cosine=0.5, reason="a test")
    )
    assert (encoder.precision, variant.precision) == ("float32", "int8")
    assert variant.outside == ""
    assert read_parent_golden(models / variant.name, encoder.model_hash).vectors


def test_the_verb_says_how_near_a_variant_is_and_what_follows(
    source: Path, models: Path, parent: ModelDescription
) -> None:
    app = typer.Typer()
    import_.register(app)
    app.command("other")(lambda: None)  # with one command alone there would be no verb
    order = ["import", str(source), "--models-folder", str(models), "--variant-of", "tiny"]
    near = CliRunner().invoke(app, [*order, "--bits", "16", "--max-kl", "9", "--min-top1", "0"]).output
    assert "this variant, over the golden texts: top-1" in near
    assert "requests for tiny may be answered by it" in near
    far = CliRunner().invoke(app, [*order, "--bits", "8", "--max-kl", "0"]).output
    assert "never chosen by itself" in far
