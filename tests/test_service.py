"""What the service chooses to serve, and how it shares the memory, before any engine runs."""

import logging
import shutil
from pathlib import Path

import msgspec
import pytest

from kernel_trees import write_tree
from magnitude.board import HostRoots
from magnitude.config import EngineSettings, ModelsSettings, Settings
from magnitude.errors import BudgetExceeded, ModelError
from magnitude.models.description import ModelDescription
from magnitude.paths import Paths
from magnitude.service import Service, choose_models, find_draft_model, find_models

GOLDEN = Path(__file__).parent / "golden"


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


def chosen(found: list[ModelDescription], load: list[str] | None = None) -> list[str]:
    settings = Settings(models=ModelsSettings(load=load))
    return [model.name for model in choose_models(settings, found)]


CHAT, SECOND, EMBEDDER, PLAIN = model("chat"), model("second"), model("e", "embedder"), model("p", "tensors")


def test_by_default_one_chat_model_and_every_other_kind_are_served() -> None:
    assert chosen([EMBEDDER, CHAT, PLAIN, SECOND]) == ["chat", "e", "p"]
    assert chosen([EMBEDDER, PLAIN]) == ["e", "p"]
    assert chosen([]) == []


def test_models_named_in_the_configuration_are_served_beside_the_chat_model() -> None:
    assert chosen([CHAT, EMBEDDER, PLAIN, SECOND], load=["second", "p"]) == ["chat", "second", "p"]
    assert chosen([CHAT, EMBEDDER], load=["chat"]) == ["chat"]
    assert chosen([CHAT, EMBEDDER], load=[]) == ["chat"]


def test_a_draft_model_is_not_taken_for_the_chat_model() -> None:
    settings = Settings(engine=EngineSettings(draft_model="chat"))
    assert [model.name for model in choose_models(settings, [CHAT, SECOND])] == ["second"]


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ModelError) as raised:
        chosen([CHAT, EMBEDDER], load=["chat", "gpt-9"])
    assert "gpt-9" in raised.value.message
    assert raised.value.param == "models.load"
    assert "chat, e" in raised.value.hint


# --- folders ---


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    folders = {name: tmp_path / name for name in ("models", "state", "cache", "run")}
    for folder in folders.values():
        folder.mkdir()
    return Paths(**folders, config=tmp_path / "magnitude.yaml")


def add_model(folder: Path, name: str = "tiny") -> Path:
    shutil.copytree(GOLDEN / "genai_tiny_llama", folder / name)
    return folder / name


def test_broken_folders_are_reported_and_the_others_served(paths: Paths, caplog: pytest.LogCaptureFixture) -> None:
    add_model(paths.models)
    (add_model(paths.models, "torn") / "model.onnx").write_bytes(b"")
    (paths.models / "empty").mkdir()
    (add_model(paths.models, "garbled") / "genai_config.json").write_bytes(b"\xff{")
    with caplog.at_level(logging.ERROR):
        found = find_models(Settings(), paths.models)
    assert [model.name for model in found] == ["tiny"]
    reported = {Path(record.fields["folder"]).name for record in caplog.records}  # type: ignore[attr-defined]
    assert reported == {"torn", "empty", "garbled"}


def test_nothing_to_serve_is_an_error_that_says_how_to_get_a_model(paths: Paths) -> None:
    (paths.models / "empty").mkdir()
    for folder in (paths.models, paths.models / "not-there"):
        with pytest.raises(ModelError, match="no model to serve") as raised:
            find_models(Settings(), folder)
        assert "magnitude import" in raised.value.hint


def test_a_model_path_goes_before_what_the_models_folder_holds(paths: Paths, tmp_path: Path) -> None:
    add_model(paths.models, "a-in-the-folder")
    outside = add_model(tmp_path, "outside")
    for path in (outside, outside / "model.onnx"):
        settings = Settings(engine=EngineSettings(model_path=str(path)))
        assert [model.name for model in find_models(settings, paths.models)] == ["outside"]


def test_a_models_folder_in_the_configuration_replaces_the_usual_one(paths: Paths, tmp_path: Path) -> None:
    add_model(paths.models, "usual")
    add_model(tmp_path / "other", "configured")
    settings = Settings(models=ModelsSettings(folder=str(tmp_path / "other")))
    assert [model.name for model in find_models(settings, paths.models)] == ["configured"]


# --- memory ---


def test_the_draft_model_is_found_by_name_unless_speculation_is_off(paths: Paths) -> None:
    add_model(paths.models, "small")
    wished = EngineSettings(draft_model="small")
    found = find_draft_model(Settings(engine=wished), paths.models)
    assert found is not None
    assert found.name == "small"
    assert find_draft_model(Settings(), paths.models) is None
    off = msgspec.structs.replace(wished, speculation="off")
    assert find_draft_model(Settings(engine=off), paths.models) is None
    with pytest.raises(ModelError, match="absent"):
        find_draft_model(Settings(engine=EngineSettings(draft_model="absent")), paths.models)


def board(root: Path, free_mb: int) -> HostRoots:
    return write_tree(
        root, {"proc/meminfo": f"MemTotal: {free_mb * 1000} kB\nMemAvailable: {free_mb * 1000} kB\nSwapFree: 0 kB"}
    )


def heavy(folder: Path, weight_mb: int) -> None:
    """Let the folder's data file be as large as a big model's, without the blocks on disk."""
    with (folder / "model.onnx.data").open("r+b") as file:
        file.truncate(weight_mb * 1_000_000)


def test_a_chat_model_that_does_not_fit_is_refused_with_the_sums(paths: Paths, tmp_path: Path) -> None:
    heavy(add_model(paths.models), 4000)
    with pytest.raises(BudgetExceeded) as raised:
        Service(Settings(), paths, roots=board(tmp_path, 1000))
    assert "1000 MB" in raised.value.message or "MB are free" in raised.value.message
    assert "magnitude budget" in raised.value.hint


def test_a_second_model_that_does_not_fit_is_left_out_and_the_chat_model_served(
    paths: Paths, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_model(paths.models, "a-chat")
    heavy(add_model(paths.models, "z-large"), 4000)
    settings = Settings(models=ModelsSettings(load=["a-chat", "z-large"]))
    with caplog.at_level(logging.ERROR):
        service = Service(settings, paths, roots=board(tmp_path, 1000))
    assert [model.name for model in service.dispatcher.models()] == ["a-chat"]
    assert [record.fields["model"] for record in caplog.records] == ["z-large"]  # type: ignore[attr-defined]


def test_the_context_is_shortened_to_the_memory_that_is_left(paths: Paths, tmp_path: Path) -> None:
    add_model(paths.models)
    ample = Service(Settings(), paths, roots=board(tmp_path / "a", 4000)).dispatcher.context_length("tiny")
    assert ample > 0
    settings = msgspec.structs.replace(Settings(), engine=EngineSettings(context_length=64))
    assert Service(settings, paths, roots=board(tmp_path / "b", 4000)).dispatcher.context_length("tiny") == 64
