"""How the service shares the memory between its models, before any engine runs."""

import asyncio
import logging
import shutil
from pathlib import Path

import msgspec
import pytest

from kernel_trees import write_tree
from magnitude.board import HostRoots
from magnitude.board.counters import CounterReading
from magnitude.config import EngineSettings, ModelsSettings, Settings
from magnitude.config.records import RecordsSettings
from magnitude.engine.protocol import Heartbeat, StepGroup, Steps
from magnitude.errors import BudgetExceeded
from magnitude.feedback.bundles import read_bundle
from magnitude.paths import Paths
from magnitude.service import Service
from magnitude.supervise.loss import EngineLoss

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    folders = {name: tmp_path / name for name in ("models", "state", "cache", "run")}
    for folder in folders.values():
        folder.mkdir()
    return Paths(**folders, config=tmp_path / "magnitude.yaml")


def add_model(folder: Path, name: str = "tiny") -> Path:
    shutil.copytree(GOLDEN / "genai_tiny_llama", folder / name)
    return folder / name


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


def test_a_state_folder_that_cannot_be_written_is_told_and_ends_nothing(paths: Paths, tmp_path: Path) -> None:
    add_model(paths.models)
    paths.state.rmdir()
    paths.state.write_text("a file where the folder should be")
    service = Service(Settings(), paths, roots=board(tmp_path, 4000))
    asyncio.run(service.recorder.store.opened() if service.recorder.store else asyncio.sleep(0))
    health = service.dispatcher.health()
    assert health.persistence == "off"
    assert any("records of tasks are not kept" in reason for reason in health.reasons)
    service.recorder.stop()


def test_what_the_engines_heartbeats_count_and_its_steps_are_in_the_state(paths: Paths, tmp_path: Path) -> None:
    add_model(paths.models)
    service = Service(Settings(), paths, roots=board(tmp_path, 4000))
    assert service.dispatcher.state().counters.status == "not available"
    counted = CounterReading(cycles=2000, instructions=1000)
    service._on_beat(Heartbeat(steps=1, open_requests=1, busy_s=0.1, rss_bytes=1, counted=counted))
    step = StepGroup(model="tiny", kind="decode", rows=1, tokens=1, runs=10, total_s=0.1, max_s=0.01)
    service._on_message(Steps(groups=[step]))
    counters = service.dispatcher.state().counters
    assert counters.status == "counted"
    assert counters.roofline["tiny"].source == "estimated"
    assert counters.bandwidth_use == service.counters.bandwidth_use()
    service.recorder.stop()


def test_an_engine_that_is_lost_leaves_a_bundle_with_the_plans_of_the_service(paths: Paths, tmp_path: Path) -> None:
    add_model(paths.models)
    settings = Settings(records=RecordsSettings(free_disk_reserve_bytes=0))
    service = Service(settings, paths, roots=board(tmp_path, 4000))
    service.recorder.engine_lost(EngineLoss("no step for 61 s", "hang"), [])
    service.recorder.stop()
    bundle = read_bundle(paths.state / "failures/000001-hang.json")
    (model,) = bundle.models
    assert model.facts.model == model.description.name == "tiny"
    assert model.facts.threads == service.dispatcher.plan("tiny").provision.threads
    assert bundle.circumstances.memory_step == bundle.memory.step == "normal"
    assert bundle.versions["python"]


def test_without_room_for_records_none_are_kept(paths: Paths, tmp_path: Path) -> None:
    add_model(paths.models)
    service = Service(Settings(records=RecordsSettings(max_bytes=0)), paths, roots=board(tmp_path, 4000))
    assert service.recorder.store is None
    service.recorder.stop()
    assert not (paths.state / "records.db").exists()
