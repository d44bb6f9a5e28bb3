"""Whole imports of tiny sources: what is left when they succeed, fail, or are killed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_sources import TEMPLATE, decoder_folder, graph, graph_with_external_data
from tokenizers import Tokenizer

from magnitude.errors import ImportFailed, ModelError
from magnitude.models.catalogue import open_folder, scan
from magnitude.models.golden import check, read_golden
from magnitude.models.importing import parent as importing
from magnitude.models.importing.graph_runner import DecoderRunner
from magnitude.models.importing.parent import import_model, job_limits
from magnitude.models.importing.source_kind import default_name, recognise
from magnitude.models.importing.verify_decoder import DecoderCheck
from magnitude.models.manifest import read_manifest
from magnitude.models.sources import open_source

PORTABLE = {
    "model.onnx",
    "model.onnx.data",
    "serving.onnx",
    "fallback.onnx",
    "separate.onnx",
    "separate-mlp.onnx",
    "kernels.onnx",  # weights are packed for a machine elsewhere
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "genai_config.json",
    "golden.json",
    "manifest.json",
}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def left_in(models: Path) -> list[str]:
    return sorted(path.name for path in models.iterdir()) if models.exists() else []


def test_a_decoder_s_folder_becomes_a_model_that_knows_itself(golden: Path, tmp_path: Path, models: Path) -> None:
    source = decoder_folder(golden, tmp_path / "Tiny-Llama")
    (source / "chat_template.jinja").write_text(TEMPLATE)
    steps: list[float] = []
    model = import_model(source, models_folder=models, progress=lambda step: steps.append(step.fraction))
    assert left_in(models) == ["tiny-llama"]
    assert model == open_folder(models / "tiny-llama")
    assert (model.kind, model.chat_template_file) == ("decoder", "chat_template.jinja")
    assert steps == sorted(steps)
    manifest = read_manifest(models / "tiny-llama")
    assert manifest.quantisation is not None
    assert manifest.quantisation.bits == 4
    assert all(group.how == "quantised" for group in manifest.quantisation.groups if not group.lossless)
    assert manifest.verification[0].reference == "float32 weights"
    assert manifest.made_with["onnxruntime"]


def test_only_portable_files_are_written_and_all_are_in_the_manifest(
    golden: Path, tmp_path: Path, models: Path
) -> None:
    import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=models)
    names = set(left_in(models / "tiny"))
    assert names <= PORTABLE
    assert set(read_manifest(models / "tiny").files) == names - {"manifest.json"}


def test_the_golden_set_passes_on_the_graph_that_it_was_made_of(golden: Path, tmp_path: Path, models: Path) -> None:
    model = import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=models)
    stored = read_golden(models / "tiny", model.model_hash)
    assert stored is not None
    assert model.decoder is not None
    runner = DecoderRunner(models / "tiny" / model.graph_file, model.decoder)
    assert check(lambda ids: runner.logits(ids)[-1], stored).passed


def test_an_int8_kv_cache_is_calibrated_and_compared(golden: Path, tmp_path: Path, models: Path) -> None:
    model = import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=models, kv="int8")
    assert model.decoder is not None
    assert model.decoder.kv_type == "int8"
    manifest = read_manifest(models / "tiny")
    assert manifest.quantisation is not None
    assert "tokens" in manifest.quantisation.kv_scales
    assert "INT8 KV cache" in [found.graph for found in manifest.verification]


def test_without_memory_for_a_float_reference_float_activations_are_the_reference(
    golden: Path, tmp_path: Path, models: Path
) -> None:
    source = open_source(decoder_folder(golden, tmp_path / "tiny"))
    models.mkdir()
    texts = [list(range(3, 40))]
    examined = DecoderCheck(source, models, bits=4, kv="float", texts=texts, report=lambda *_: None)
    decision = examined.decide(memory_bytes=1)
    assert decision.verification[0].reference == "the same graph with float activations"


def test_a_folder_in_genai_s_layout_is_taken_as_it_is(golden: Path, models: Path) -> None:
    model = import_model(golden / "genai_tiny_llama", models_folder=models, name="foreign")
    assert model.decoder is not None
    assert model.decoder.logits_all_positions
    original = (golden / "genai_tiny_llama" / "model.onnx.data").read_bytes()
    assert (models / "foreign" / "model.onnx.data").read_bytes() == original


def test_an_imported_folder_imports_again_to_the_same_model(golden: Path, tmp_path: Path, models: Path) -> None:
    first = import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=models)
    second = import_model(models / "tiny", models_folder=models, name="again")
    assert second.model_hash == first.model_hash
    assert second.decoder == first.decoder


def test_a_plain_graph_is_served_as_tensors(tmp_path: Path, models: Path) -> None:
    path = tmp_path / "scaler.onnx"
    path.write_bytes(graph().SerializeToString())
    model = import_model(path, models_folder=models)
    assert (model.name, model.kind, model.tokenizer_file) == ("scaler", "tensors", None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (graph(ir_version=99).SerializeToString(), "IR version 99"),
        (graph(opset=99).SerializeToString(), "opset 99"),
        (graph().SerializeToString()[:40], "cut off|not a whole"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n", "Git LFS pointer"),
        (b"", "empty"),
        (graph(operator="Foo").SerializeToString(), "ai.onnx:Foo"),
        (graph(operator="Snpe", domain="com.microsoft").SerializeToString(), "com.microsoft:Snpe"),
    ],
    ids=["ir", "opset", "cut", "lfs", "empty", "unknown operator", "no kernel"],
)
def test_a_graph_that_will_not_load_is_refused_in_one_line_with_a_next_step(
    tmp_path: Path, models: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(ImportFailed, match=message) as caught:
        import_model(path, models_folder=models)
    assert "broken.onnx" in caught.value.message
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert left_in(models) == []


def test_a_missing_source_is_named(tmp_path: Path, models: Path) -> None:
    with pytest.raises(ImportFailed, match="no such file"):
        import_model(tmp_path / "nothing.gguf", models_folder=models)


def test_all_operators_without_a_kernel_are_listed(tmp_path: Path, models: Path) -> None:
    from onnx import helper

    nodes = [helper.make_node(name, ["x"], [out]) for name, out in (("Foo", "a"), ("Bar", "y"))]
    path = tmp_path / "two.onnx"
    path.write_bytes(graph(nodes=nodes).SerializeToString())
    with pytest.raises(ImportFailed, match=r"ai\.onnx:Bar, ai\.onnx:Foo"):
        import_model(path, models_folder=models)


@pytest.mark.parametrize("location", ["/etc/hostname", "../secret.bin", "a/../../secret.bin", "link.bin", ""])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, models: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ImportFailed, match="outside the model's own folder"):
        import_model(graph_with_external_data(folder, location), models_folder=models, name="x")
    assert left_in(models) == []


def test_external_data_beside_the_graph_is_copied(tmp_path: Path, models: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(np.ones(2, np.float32).tobytes())
    import_model(graph_with_external_data(folder, "weights.bin"), models_folder=models, name="x")
    assert "weights.bin" in read_manifest(models / "x").files


def test_an_existing_name_is_not_overwritten(golden: Path, tmp_path: Path, models: Path) -> None:
    (models / "tiny").mkdir(parents=True)
    with pytest.raises(ImportFailed, match="already there") as caught:
        import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=models)
    assert "magnitude rm tiny" in caught.value.hint


@pytest.mark.parametrize("name", ["", "..", "a/b", "Große", ".hidden", "-x", "x" * 65])
def test_names_that_could_lead_elsewhere_are_refused(golden: Path, models: Path, name: str) -> None:
    with pytest.raises(ImportFailed, match="cannot be used"):
        import_model(golden / "llama_tied", models_folder=models, name=name)


def test_leftovers_of_a_killed_import_are_removed_and_running_ones_kept(tmp_path: Path, models: Path) -> None:
    dead, alive = models / ".importing-dead-1", models / ".importing-alive-1"
    for folder in (dead, alive):
        folder.mkdir(parents=True)
        (folder / "model.onnx.data").write_bytes(b"half")
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert importing.remove_leftovers(models) == [dead]
    assert left_in(models) == [alive.name]
    assert scan(models) == []
    os.close(lock)


def test_too_little_disk_is_said_before_anything_is_read(
    golden: Path, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(importing.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(ImportFailed, match="may need"):
        import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=models)


def with_added_tokens(source: Path, ids: range) -> Path:
    """The folder with further special tokens in its tokenizer, under these ids."""
    document = json.loads((source / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document["added_tokens"] += [{"id": i, "content": f"<extra {i}>", "special": True, **flags} for i in ids]
    (source / "tokenizer.json").write_text(json.dumps(document))
    return source


def test_a_tokenizer_with_more_ids_than_logits_is_refused(golden: Path, tmp_path: Path, models: Path) -> None:
    source = decoder_folder(golden, tmp_path / "tiny")
    tokens = len(json.loads((source / "tokenizer.json").read_text())["model"]["vocab"])
    with pytest.raises(ImportFailed, match="ids but the model only"):
        import_model(with_added_tokens(source, range(tokens, 100)), models_folder=models)


def test_logits_may_be_wider_than_the_tokenizer_and_added_tokens_lie_behind_its_vocabulary(
    golden: Path, tmp_path: Path, models: Path
) -> None:
    source = decoder_folder(golden, tmp_path / "tiny")
    tokens = len(json.loads((source / "tokenizer.json").read_text())["model"]["vocab"])
    model = import_model(with_added_tokens(source, range(tokens, tokens + 2)), models_folder=models)
    assert model.decoder is not None
    assert read_manifest(models / "tiny").tokens == tokens + 2 < model.decoder.vocab_size
    stored = Tokenizer.from_file(str(models / "tiny" / "tokenizer.json"))
    assert stored.encode(f"a<extra {tokens + 1}>").ids[-1] == tokens + 1


def test_an_added_token_that_would_silently_get_another_id_is_refused(
    golden: Path, tmp_path: Path, models: Path
) -> None:
    source = with_added_tokens(decoder_folder(golden, tmp_path / "tiny"), range(75, 76))
    with pytest.raises(ImportFailed, match=r"<extra 75>' \(75\)"):
        import_model(source, models_folder=models)


def test_vocabulary_files_alone_are_refused_with_a_way_to_convert_them(
    golden: Path, tmp_path: Path, models: Path
) -> None:
    source = decoder_folder(golden, tmp_path / "tiny")
    (source / "tokenizer.json").rename(source / "tokenizer.model")
    with pytest.raises(ImportFailed, match=r"only tokenizer\.model") as caught:
        import_model(source, models_folder=models)
    assert "save_pretrained" in caught.value.hint


def test_memory_is_bounded_by_the_machine_and_by_the_source() -> None:
    small = job_limits(10_000_000, 64 << 30)
    assert small.data_bytes < 2 << 30
    assert job_limits(10_000_000_000, 4 << 30).data_bytes < 4 << 30
    assert job_limits(100, 0).data_bytes > 0


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
        ("Qwen3-0.6B-Q4_K_M.gguf", "qwen3-0.6b"),
        ("my model (final).f16.gguf", "my-model-final"),
        ("big-00001-of-00003.gguf", "big"),
    ],
)
def test_names_are_made_of_the_file_s_without_its_quantisation(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_bytes(b"GGUF and more")
    assert default_name(recognise(tmp_path / file)) == name


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no model in this folder"),
        ({"pytorch_model.bin": b"x", "config.json": b"{}"}, "pickled"),
        ({"a.gguf": b"GGUF", "b.gguf": b"GGUF"}, "several models"),
        ({"model.gguf": b"<!DOCTYPE html>"}, "web page"),
        ({"model.gguf": b"PK\x03\x04"}, "neither"),
    ],
)
def test_folders_without_a_usable_model_say_what_was_found(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        recognise(tmp_path)
