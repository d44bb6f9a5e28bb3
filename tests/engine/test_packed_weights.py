"""Packed weights that further sessions share, and everything that can be wrong with a cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_driver import EngineDriver, KvFile
from tiny_decoder import write_decoder, write_encoder, write_tensors

from magnitude.engine.comparing import same_results
from magnitude.engine.packed_weights import ENTRY, GRAPH, WEIGHTS, PackedWeights
from magnitude.engine.protocol import PrepareSession, SessionPrepared, UseSessions
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import open_session
from magnitude.errors import ModelError
from magnitude.models.description import ModelDescription

TWO = SessionSpec(threads=2)


@pytest.fixture
def model(folder: Path) -> ModelDescription:
    return write_decoder(folder)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "packed"


def own(model: ModelDescription) -> Any:
    return open_session(Path(model.folder) / model.graph_file, 1)


def entries(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.exists() else []


def entry_of(root: Path) -> Path:
    (entry,) = entries(root)
    return entry


def others(root: Path) -> list[str]:
    """Names of whatever is there beside entries."""
    return sorted(path.name for path in root.iterdir() if not path.is_dir())


def graph_of(session: Any) -> str:
    """The file that a session was made from."""
    return str(session._model_path)


def test_a_session_with_mapped_weights_computes_what_the_own_one_does(model: ModelDescription, root: Path):
    packed = PackedWeights(root, same_results)
    assert same_results(model, own(model), packed.open(model, TWO))
    assert sorted(path.name for path in entry_of(root).iterdir()) == sorted([GRAPH, WEIGHTS, ENTRY])
    again = packed.open(model, TWO)
    assert graph_of(again) == str(entry_of(root) / GRAPH)
    assert same_results(model, own(model), again)
    assert others(root) == []


def test_an_encoder_has_them_too(folder: Path, root: Path):
    encoder = write_encoder(folder)
    packed = PackedWeights(root, same_results)
    packed.open(encoder, TWO)
    assert same_results(encoder, own(encoder), packed.open(encoder, TWO))
    assert entries(root)


def test_a_model_of_unknown_inputs_has_none(folder: Path, root: Path):
    tensors = write_tensors(folder)
    assert graph_of(PackedWeights(root, same_results).open(tensors, TWO)) == str(folder / "model.onnx")
    assert not entries(root)


def cut_weights(entry: Path) -> None:
    os.truncate(entry / WEIGHTS, (entry / WEIGHTS).stat().st_size // 2)


def change_weights(entry: Path) -> None:
    data = bytearray((entry / WEIGHTS).read_bytes())
    data[len(data) // 2] ^= 1
    (entry / WEIGHTS).write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "weights cut off": cut_weights,
    "a bit changed": change_weights,
    "no weights": lambda entry: (entry / WEIGHTS).unlink(),
    "graph empty": lambda entry: (entry / GRAPH).write_bytes(b""),
    "no entry file": lambda entry: (entry / ENTRY).unlink(),
    "entry file torn": lambda entry: (entry / ENTRY).write_bytes((entry / ENTRY).read_bytes()[:20]),
    "entry file of another version": lambda entry: (entry / ENTRY).write_text(
        '{"schema": 99, "sha256": "", "value": 1}'
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_dropped_and_the_models_own_files_are_opened(
    model: ModelDescription, root: Path, damage: Callable[[Path], object]
):
    packed = PackedWeights(root, same_results)
    packed.open(model, TWO)
    damage(entry_of(root))
    session = packed.open(model, TWO)
    assert graph_of(session) == str(Path(model.folder) / "model.onnx")
    assert not entries(root)
    packed.open(model, TWO)
    assert same_results(model, own(model), packed.open(model, TWO))


def test_an_entry_is_for_one_model_graph_runtime_and_processor(model: ModelDescription, root: Path, tmp_path: Path):
    path = Path(model.folder) / "model.onnx"
    other_graph = tmp_path / "other.onnx"
    other_graph.write_bytes(path.read_bytes() + b"\0")
    packed = PackedWeights(root, same_results, ("asimd", "asimddp"))
    key = packed.key_of(model, path)
    assert key == PackedWeights(tmp_path, same_results, ("asimd", "asimddp")).key_of(model, path)
    different = {
        key,
        packed.key_of(model, other_graph),
        packed.key_of(msgspec.structs.replace(model, model_hash="00" * 32), path),
        PackedWeights(root, same_results, ("asimd",)).key_of(model, path),
    }
    weights = Path(model.folder) / "model.onnx.data"
    for size in (100_000, 100_001):
        weights.write_bytes(b"x" * size)
        different.add(packed.key_of(model, path))
    os.utime(weights, ns=(1, 1))
    different.add(packed.key_of(model, path))
    assert len(different) == 7


def test_weights_that_compute_something_else_are_never_used(model: ModelDescription, root: Path):
    asked: list[str] = []

    def differs(model: ModelDescription, one: Any, other: Any) -> bool:
        asked.append(model.name)
        return False

    packed = PackedWeights(root, differs)
    assert graph_of(packed.open(model, TWO)) == str(Path(model.folder) / "model.onnx")
    assert graph_of(packed.open(model, TWO)) == str(Path(model.folder) / "model.onnx")
    assert asked == ["tiny"]  # it is not tried again
    assert not entries(root)


def test_a_folder_that_cannot_be_written_costs_nothing_but_memory(model: ModelDescription, tmp_path: Path):
    (tmp_path / "cache").write_text("a file stands where the folder should be")
    packed = PackedWeights(tmp_path / "cache" / "packed", same_results)
    assert same_results(model, own(model), packed.open(model, TWO))


def test_a_model_whose_weights_are_larger_than_the_disk_has_none(model: ModelDescription, root: Path):
    large = msgspec.structs.replace(model, weight_bytes=1 << 60)
    assert graph_of(PackedWeights(root, same_results).open(large, TWO)) == str(Path(model.folder) / "model.onnx")
    assert not entries(root)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_death_of_an_engine_is_held_against_the_entry_and_the_second_one_ends_it(
    model: ModelDescription, root: Path
):
    packed = PackedWeights(root, same_results)
    packed.open(model, TWO)
    key = entry_of(root).name
    (entry_of(root) / "seen").touch()
    (root / f"{key}.trying-{dead_pid()}").touch()
    packed.open(model, TWO)
    assert not (entry_of(root) / "seen").exists()  # it was made anew
    assert others(root) == []  # and is forgiven, since that went well
    for _ in range(2):
        (root / f"{key}.trying-{dead_pid()}").touch()
    for _ in range(2):
        assert graph_of(packed.open(model, TWO)) == str(Path(model.folder) / "model.onnx")
    assert not entries(root)


def test_an_engine_that_opens_the_same_entry_now_is_no_dead_one(model: ModelDescription, root: Path):
    packed = PackedWeights(root, same_results)
    packed.open(model, TWO)
    (entry_of(root) / "seen").touch()
    mark = root / f"{entry_of(root).name}.trying-{os.getppid()}"
    mark.touch()
    packed.open(model, TWO)
    assert (entry_of(root) / "seen").exists()
    assert mark.exists()


def test_what_a_killed_engine_left_half_written_is_removed(model: ModelDescription, root: Path):
    for pid in (dead_pid(), os.getpid(), os.getppid()):
        (root / f".new-{pid}-x").mkdir(parents=True)
    PackedWeights(root, same_results).open(model, TWO)
    assert {path.name for path in entries(root)} - {f".new-{os.getppid()}-x"} == {
        PackedWeights(root, same_results).key_of(model, Path(model.folder) / "model.onnx")
    }


def test_two_that_write_at_once_both_serve_and_leave_one_entry(model: ModelDescription, root: Path):
    packed = PackedWeights(root, same_results)

    def meanwhile(model: ModelDescription, one: Any, other: Any) -> bool:
        PackedWeights(root, same_results).open(model, TWO)
        return same_results(model, one, other)

    first = PackedWeights(root, meanwhile).open(model, TWO)
    assert same_results(model, own(model), first)
    assert same_results(model, own(model), packed.open(model, TWO))
    assert entry_of(root)


def test_a_graph_that_cannot_be_opened_is_told_as_without_a_cache(model: ModelDescription, root: Path):
    packed = PackedWeights(root, same_results)
    with pytest.raises(ModelError, match="does not exist"):
        packed.open(model, SessionSpec(threads=1, graph_file="absent.onnx"))
    (Path(model.folder) / "torn.onnx").write_bytes(b"torn")
    with pytest.raises(ModelError, match=r"torn\.onnx"):
        packed.open(model, SessionSpec(threads=1, graph_file="torn.onnx"))
    assert not entries(root) and others(root) == []


def test_an_engine_that_keeps_them_writes_the_same_text(
    model: ModelDescription, root: Path, new_kv: Callable[..., KvFile]
):
    texts = []
    for _ in range(2):  # the second one finds what the first has written
        with EngineDriver(options=("--packed", str(root))) as engine:
            engine.load(model, new_kv(model))
            texts.append(engine.generate([1, 2, 3], max_new_tokens=40)[0])
            engine.send(PrepareSession(request_id=engine.new_id(), model="tiny", session=TWO))
            engine.wait(SessionPrepared)
            engine.send(UseSessions(request_id=engine.new_id(), model="tiny", decode=TWO, prefill=TWO))
            texts.append(engine.generate([1, 2, 3], max_new_tokens=40)[0])
    assert entry_of(root)
    assert all(text == texts[0] for text in texts)
