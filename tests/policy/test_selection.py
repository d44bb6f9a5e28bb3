"""Which models of a folder are served, and when they are in memory."""

import logging
import shutil
from pathlib import Path

import msgspec
import pytest

from magnitude.config import EngineSettings, ModelsSettings, Settings
from magnitude.errors import ModelError
from magnitude.models.description import ModelDescription
from magnitude.policy.selection import find_draft_model, find_models, select

TINY = Path(__file__).parents[1] / "golden" / "genai_tiny_llama"


def model(name: str, kind: str = "decoder") -> ModelDescription:
    return ModelDescription(
        name=name,
        kind=kind,  # type: ignore[arg-type]
        family="any",
        folder="/nowhere",
        graph_file="model.onnx",
        model_hash="0",
        weight_bytes=1,
    )


CHAT, SECOND, EMBEDDER, PLAIN = model("chat"), model("second"), model("e", "embedder"), model("p", "tensors")


def chosen(found: list[ModelDescription], **settings: object) -> tuple[list[str], list[str], list[str]]:
    """What is loaded at start, what on demand, and what is pinned."""
    selection = select(Settings(models=ModelsSettings(**settings)), found)  # type: ignore[arg-type]
    return names(selection.at_start), names(selection.on_demand), sorted(selection.pinned)


def names(models: tuple[ModelDescription, ...] | list[ModelDescription]) -> list[str]:
    return [model.name for model in models]


def test_by_default_one_chat_model_and_every_other_kind_are_loaded_and_further_decoders_on_demand() -> None:
    assert chosen([EMBEDDER, CHAT, PLAIN, SECOND]) == (["chat", "e", "p"], ["second"], ["chat"])
    assert chosen([EMBEDDER, PLAIN]) == (["e", "p"], [], [])


def test_models_named_in_the_configuration_are_loaded_beside_the_chat_model_and_the_rest_on_demand() -> None:
    found = [CHAT, EMBEDDER, PLAIN, SECOND]
    assert chosen(found, load=["second", "p"]) == (["chat", "second", "p"], ["e"], ["chat"])
    assert chosen([CHAT, EMBEDDER], load=["chat"]) == (["chat"], ["e"], ["chat"])
    assert chosen([CHAT, EMBEDDER], load=[]) == (["chat"], ["e"], ["chat"])


def test_pinned_models_are_loaded_at_start_and_stay() -> None:
    assert chosen([CHAT, EMBEDDER, SECOND], pinned=["second"]) == (["chat", "second", "e"], [], ["chat", "second"])


def test_a_draft_model_is_not_taken_for_the_chat_model_and_served_only_where_it_is_named() -> None:
    drafting = EngineSettings(draft_model="chat")
    selection = select(Settings(engine=drafting), [CHAT, SECOND])
    assert (names(selection.at_start), selection.on_demand) == (["second"], ())
    named = Settings(engine=drafting, models=ModelsSettings(load=["chat"]))
    assert names(select(named, [CHAT, SECOND]).at_start) == ["second", "chat"]


@pytest.mark.parametrize("key", ["load", "pinned"])
def test_a_name_that_is_not_there_is_refused_with_those_that_are(key: str) -> None:
    with pytest.raises(ModelError) as raised:
        chosen([CHAT, EMBEDDER], **{key: ["chat", "gpt-9"]})
    assert "gpt-9" in raised.value.message
    assert raised.value.param == f"models.{key}"
    assert "chat, e" in raised.value.hint


# --- folders ---


def add_model(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    shutil.copytree(TINY, folder / name)
    return folder / name


def test_broken_folders_are_reported_and_the_others_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_model(tmp_path / "models", "tiny")
    (add_model(tmp_path / "models", "torn") / "model.onnx").write_bytes(b"")
    (tmp_path / "models" / "empty").mkdir(parents=True, exist_ok=True)
    (add_model(tmp_path / "models", "garbled") / "genai_config.json").write_bytes(b"\xff{")
    with caplog.at_level(logging.ERROR):
        found = find_models(Settings(), tmp_path / "models")
    assert [model.name for model in found] == ["tiny"]
    reported = {Path(record.fields["folder"]).name for record in caplog.records}  # type: ignore[attr-defined]
    assert reported == {"torn", "empty", "garbled"}


def test_nothing_to_serve_is_an_error_that_says_how_to_get_a_model(tmp_path: Path) -> None:
    (tmp_path / "models" / "empty").mkdir(parents=True, exist_ok=True)
    for folder in (tmp_path / "models", tmp_path / "models" / "not-there"):
        with pytest.raises(ModelError, match="no model to serve") as raised:
            find_models(Settings(), folder)
        assert "magnitude import" in raised.value.hint


def test_a_model_path_goes_before_what_the_models_folder_holds(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "a-in-the-folder")
    outside = add_model(tmp_path, "outside")
    for path in (outside, outside / "model.onnx"):
        settings = Settings(engine=EngineSettings(model_path=str(path)))
        selection = select(settings, find_models(settings, tmp_path / "models"))
        assert (names(selection.at_start), names(selection.on_demand)) == (["outside"], ["a-in-the-folder"])


def test_a_models_folder_in_the_configuration_replaces_the_usual_one(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "usual")
    add_model(tmp_path / "other", "configured")
    settings = Settings(models=ModelsSettings(folder=str(tmp_path / "other")))
    assert [model.name for model in find_models(settings, tmp_path / "models")] == ["configured"]


def test_the_draft_model_is_found_by_name_unless_speculation_is_off(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "small")
    wished = EngineSettings(draft_model="small")
    found = find_draft_model(Settings(engine=wished), tmp_path / "models")
    assert found is not None
    assert found.name == "small"
    assert find_draft_model(Settings(), tmp_path / "models") is None
    off = msgspec.structs.replace(wished, speculation="off")
    assert find_draft_model(Settings(engine=off), tmp_path / "models") is None
    with pytest.raises(ModelError, match="absent"):
        find_draft_model(Settings(engine=EngineSettings(draft_model="absent")), tmp_path / "models")


def variant(name: str, of: str = "chat", **changed: object) -> ModelDescription:
    facts = {"variant_of": of, "parent_hash": "0", **changed}
    return msgspec.structs.replace(model(name), **facts)


def test_variants_are_loaded_on_demand_whatever_comes_first() -> None:
    small = variant("a-variant")
    assert chosen([small, CHAT, EMBEDDER]) == (["chat", "e"], ["a-variant"], ["chat"])
    embeds = msgspec.structs.replace(EMBEDDER, name="e-int8", variant_of="e", parent_hash="0")
    assert chosen([CHAT, EMBEDDER, embeds]) == (["chat", "e"], ["e-int8"], ["chat"])


def test_a_variant_cannot_be_pinned_or_loaded_at_start() -> None:
    for key in ("load", "pinned"):
        with pytest.raises(ModelError, match="a variant of chat") as caught:
            chosen([CHAT, variant("small")], **{key: ["small"]})
        assert caught.value.hint == "Name chat"


def test_a_variant_that_drafts_for_its_own_model_only_drafts() -> None:
    settings = Settings(engine=EngineSettings(draft_model="small"))
    selection = select(settings, [CHAT, variant("small"), variant("tiny")])
    assert names(selection.on_demand) == ["tiny"]


def test_variants_of_a_model_that_only_drafts_do_not_serve() -> None:
    settings = Settings(engine=EngineSettings(draft_model="chat"))
    selection = select(settings, [CHAT, SECOND, variant("small")])
    assert (names(selection.at_start), names(selection.on_demand)) == (["second"], [])


def foreign(folder: Path, **manifest: object) -> None:
    """A copy of the tiny decoder under a manifest of ours."""
    from magnitude.models.importing.parent import import_model
    from magnitude.models.manifest import read_manifest, write_manifest

    import_model(TINY, models_folder=folder.parent, name=folder.name)
    write_manifest(folder, msgspec.structs.replace(read_manifest(folder), **manifest))


def test_a_variant_without_its_model_is_left_out_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign(tmp_path / "small", variant_of="chat", parent_hash="0")
    shutil.copytree(TINY, tmp_path / "other")
    with caplog.at_level(logging.ERROR, logger="magnitude.policy"):
        assert names(find_models(Settings(), tmp_path)) == ["other"]
    assert "not there" in caplog.records[0].fields["reason"]  # type: ignore[attr-defined]


def test_a_models_folder_with_strays_alone_has_nothing_to_serve(tmp_path: Path) -> None:
    foreign(tmp_path / "small", variant_of="chat", parent_hash="0")
    with pytest.raises(ModelError, match="no model to serve"):
        find_models(Settings(), tmp_path)


def test_whoever_names_a_variant_s_folder_gets_it_as_a_model(tmp_path: Path) -> None:
    foreign(tmp_path / "small", variant_of="chat", parent_hash="0")
    settings = Settings(engine=EngineSettings(model_path=str(tmp_path / "small")))
    (alone,) = find_models(settings, tmp_path)
    assert (alone.name, alone.variant_of) == ("small", "")
