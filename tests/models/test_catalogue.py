"""What is known of model folders: ours, foreign ones, broken ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from tiny_sources import decoder_folder, graph

from magnitude.errors import ModelError
from magnitude.models.catalogue import BrokenModel, find, open_folder, resolve, scan, verify_integrity
from magnitude.models.description import ModelDescription
from magnitude.models.importing.parent import import_model
from magnitude.models.manifest import read_manifest, write_manifest
from magnitude.models.onnx_signature import read_signature


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder with one imported model, `tiny`."""
    folder = tmp_path_factory.mktemp("catalogue")
    golden = Path(__file__).resolve().parent.parent / "golden"
    import_model(decoder_folder(golden, folder / "source"), name="tiny", models_folder=folder / "models")
    return folder / "models"


@pytest.fixture
def models(imported: Path, tmp_path: Path) -> Path:
    shutil.copytree(imported, tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def foreign(golden: Path, models: Path) -> Path:
    shutil.copytree(golden / "genai_tiny_llama", models / "foreign")
    return models / "foreign"


def edit(path: Path, **values: object) -> None:
    document = json.loads(path.read_text())
    document["model"].update(values)
    path.write_text(json.dumps(document))


def test_a_foreign_folder_is_described_from_its_configuration_and_its_graph(foreign: Path) -> None:
    model = open_folder(foreign)
    assert model.decoder is not None
    assert (model.decoder.layers, model.decoder.kv_heads, model.decoder.head_dim) == (1, 2, 16)
    assert (model.decoder.kv_type, model.decoder.logits_all_positions) == ("float32", True)
    assert model.decoder.position_ids is None
    assert model.special.eos == (2,)


def test_a_foreign_folder_s_hash_changes_with_its_data(foreign: Path) -> None:
    before = open_folder(foreign).model_hash
    data = bytearray((foreign / "model.onnx.data").read_bytes())
    data[100] ^= 1
    (foreign / "model.onnx.data").write_bytes(data)
    assert open_folder(foreign).model_hash != before


def test_a_configuration_of_another_model_is_refused(foreign: Path) -> None:
    decoder = json.loads((foreign / "genai_config.json").read_text())["model"]["decoder"]
    edit(foreign / "genai_config.json", decoder={**decoder, "num_hidden_layers": 3})
    with pytest.raises(ModelError, match=r"past_key_values\.1\.key.* and 7 more"):
        open_folder(foreign)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"filename": "../model.onnx"}, "outside"),
        ({"filename": "/etc/hostname"}, "outside"),
        ({"num_hidden_layers": 10**9}, "outside 1 to"),
        ({"inputs": {"past_key_names": "%s"}}, "exactly one %d"),
        ({"inputs": {"past_key_names": "%d%d"}}, "exactly one %d"),
        ({"pipeline": [1]}, "plain decoders"),
        ({"head_size": "wide"}, "not a configuration"),
    ],
)
def test_a_hostile_configuration_is_refused(foreign: Path, change: dict[str, object], message: str) -> None:
    decoder = json.loads((foreign / "genai_config.json").read_text())["model"]["decoder"]
    edit(foreign / "genai_config.json", decoder={**decoder, **change})
    with pytest.raises(ModelError, match=message):
        open_folder(foreign)


def test_scanning_reports_broken_folders_in_their_place_and_goes_on(models: Path, foreign: Path) -> None:
    (models / "broken").mkdir()
    (models / "broken" / "manifest.json").write_bytes(b"")
    (models / "nothing").mkdir()
    (models / ".importing-x").mkdir()
    (models / "a file").write_text("")
    found = scan(models)
    assert [(type(entry), entry.name) for entry in found] == [
        (BrokenModel, "broken"),
        (ModelDescription, "foreign"),
        (BrokenModel, "nothing"),
        (ModelDescription, "tiny"),
    ]


def test_a_models_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert scan(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b'{"schema": 1,', "torn"),
        (bytes(4096), "torn"),
        (b"[]", "torn"),
        (b'{"schema": 1, "name": NaN}', "torn"),
        (b'{"schema": 99}', "schema 99"),
        (b'{"schema": 1}', "torn"),
    ],
)
def test_a_damaged_or_newer_manifest_is_named_and_not_half_read(models: Path, content: bytes, message: str) -> None:
    (models / "tiny" / "manifest.json").write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        open_folder(models / "tiny")
    assert caught.value.hint


def test_a_manifest_that_names_files_outside_is_refused(models: Path) -> None:
    manifest = read_manifest(models / "tiny")
    write_manifest(models / "tiny", msgspec.structs.replace(manifest, graph_file="../../graph.onnx"))
    with pytest.raises(ModelError, match="outside"):
        open_folder(models / "tiny")


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def damage_lfs(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_cut, "cut off"),
        (damage_lfs, "Git LFS pointer"),
        (lambda path: path.write_bytes(b""), "empty"),
        (Path.unlink, "missing"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "longer"),
    ],
    ids=["cut", "lfs", "empty", "missing", "longer"],
)
def test_damage_is_found_by_size_and_said_with_its_cause(models: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    damage(models / "tiny" / "model.onnx.data")
    with pytest.raises(ModelError, match=rf"model\.onnx\.data: .*{message}"):
        open_folder(models / "tiny")


def test_a_changed_byte_is_found_by_the_deep_check_only(models: Path) -> None:
    path = models / "tiny" / "model.onnx.data"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    model = open_folder(models / "tiny")
    verify_integrity(model, deep=False)
    with pytest.raises(ModelError, match="content has changed"):
        verify_integrity(model, deep=True)


def test_a_whole_model_passes_the_deep_check(models: Path) -> None:
    verify_integrity(open_folder(models / "tiny"), deep=True)


def test_a_renamed_folder_gives_the_model_its_new_name(models: Path) -> None:
    (models / "tiny").rename(models / "small")
    assert open_folder(models / "small").name == "small"


def test_a_path_may_name_the_folder_or_the_graph_inside(models: Path) -> None:
    assert resolve(models / "tiny") == resolve(models / "tiny" / "model.onnx") == models / "tiny"
    with pytest.raises(ModelError):
        resolve(models / "tiny" / "tokenizer.json")


@pytest.mark.parametrize("name", ["absent", "", "..", ".hidden"])
def test_finding_an_unknown_model_lists_those_there_are(models: Path, name: str) -> None:
    with pytest.raises(ModelError) as caught:
        find(models, name)
    assert "tiny" in caught.value.hint


def test_a_signature_gives_names_types_and_free_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    path.write_bytes(graph().SerializeToString())
    signature = read_signature(path)
    assert (signature.ir_version, signature.opsets) == (9, {"": 17})
    (given,) = signature.inputs
    assert (given.name, given.dtype, given.shape) == ("x", "float32", (-1, 2))


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_a_graph_cut_anywhere_is_refused_or_still_whole(tmp_path: Path, cut: int) -> None:
    content = graph().SerializeToString()
    path = tmp_path / "g.onnx"
    path.write_bytes(content[: len(content) - cut])
    try:
        signature = read_signature(path)
    except ModelError as error:
        assert error.hint
    else:
        assert [value.name for value in signature.outputs] == ["y"]


def test_a_chat_template_may_be_edited_and_a_manifest_may_know_more_than_we_do(models: Path) -> None:
    folder = next(path for path in sorted(models.iterdir()) if (path / "manifest.json").exists())
    manifest = json.loads((folder / "manifest.json").read_text())
    template = folder / "chat_template.jinja"
    template.write_text("{{ messages[0].content }}")
    manifest["files"][template.name] = {"size_bytes": 1, "sha256": "0" * 64}
    manifest |= {"chat_template_file": template.name, "of_a_later_version": [1]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert open_folder(folder).chat_template_file == template.name
    template.unlink()
    with pytest.raises(ModelError, match="missing"):
        open_folder(folder)
