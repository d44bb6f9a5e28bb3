"""Sessions of a kernel plan: packed once, mapped from then on, and exactly what the plan computes without a cache."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from engine_driver import EngineDriver, KvFile
from test_packed_weights import entries, entry_of, others
from tiny_kernels import write_kernel_decoder

from magnitude.engine.comparing import same_results
from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.packed_products import PLACES, WEIGHTS, open_packed
from magnitude.engine.packed_weights import ENTRY, PackedWeights
from magnitude.engine.protocol import Failed, Finished, PrepareSession, SessionPrepared, UseSessions
from magnitude.engine.session_maker import SessionMaker
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import open_session
from magnitude.engine.thread_place import ThreadPlace
from magnitude.errors import EngineError
from magnitude.kernels.library import KernelLibrary
from magnitude.kernels.locate import VARIABLE
from magnitude.models.description import KERNEL_GRAPH_FILE, ModelDescription

NewKv = Callable[..., KvFile]
KERNELS = SessionSpec(graph_file=KERNEL_GRAPH_FILE, threads=2)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> ModelDescription:
    return write_kernel_decoder(tmp_path_factory.mktemp("kernels") / "model")


@pytest.fixture
def model(written: ModelDescription, kernels_here: KernelLibrary) -> ModelDescription:
    return written


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "packed"


def plain(model: ModelDescription) -> Any:
    return open_session(Path(model.folder) / KERNEL_GRAPH_FILE, 1)


def is_mapped(session: Any) -> bool:
    return hasattr(session, "mapped_weights")


def test_packed_products_are_written_once_and_mapped_from_then_on(model: ModelDescription, root: Path) -> None:
    packed = PackedWeights(root, same_results)
    first = packed.open(model, KERNELS)
    assert sorted(path.name for path in entry_of(root).iterdir()) == sorted([WEIGHTS, PLACES, ENTRY])
    again = packed.open(model, KERNELS)
    assert is_mapped(first) and is_mapped(again)
    for session in (first, again):
        assert same_results(model, plain(model), session)
    assert others(root) == []


def test_products_are_computed_with_what_is_mapped_and_not_with_the_codes(
    model: ModelDescription, root: Path, kernels_here: KernelLibrary, tmp_path: Path
) -> None:
    PackedWeights(root, same_results).open(model, KERNELS)
    places = msgspec.json.decode((entry_of(root) / PLACES).read_bytes(), type=dict[str, tuple[int, int]])
    assert len(places) == 5  # q, k and v; what follows attention; gate and up; down; the output layer
    content = bytearray((entry_of(root) / WEIGHTS).read_bytes())
    start, length = next(iter(places.values()))
    content[start + length - 1] ^= 1  # of the last output of q, k and v
    (entry_of(root) / WEIGHTS).write_bytes(content)
    session = open_packed(Path(model.folder) / KERNEL_GRAPH_FILE, entry_of(root), KERNELS, kernels_here)
    assert not same_results(model, plain(model), session)


def test_mapped_weights_live_as_long_as_their_session(model: ModelDescription, root: Path) -> None:
    session = PackedWeights(root, same_results).open(model, KERNELS)
    gc.collect()
    assert same_results(model, plain(model), session)
    del session
    gc.collect()
    assert str(root) not in Path("/proc/self/maps").read_text()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "weights torn": lambda entry: (entry / WEIGHTS).write_bytes((entry / WEIGHTS).read_bytes()[:-100]),
    "a bit of the weights": lambda entry: (entry / WEIGHTS).write_bytes((entry / WEIGHTS).read_bytes()[:-1] + b"\1"),
    "no weights": lambda entry: (entry / WEIGHTS).unlink(),
    "no places": lambda entry: (entry / PLACES).unlink(),
    "other places": lambda entry: (entry / PLACES).write_text('{"layers.0.qkv.codes": [0, 64]}'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_dropped_and_the_plan_packs_for_itself(
    model: ModelDescription, root: Path, damage: Callable[[Path], object]
) -> None:
    packed = PackedWeights(root, same_results)
    packed.open(model, KERNELS)
    damage(entry_of(root))
    session = packed.open(model, KERNELS)
    assert not is_mapped(session)
    assert same_results(model, plain(model), session)
    assert not entries(root)
    assert is_mapped(packed.open(model, KERNELS))


def test_weights_that_compute_something_else_are_never_used(model: ModelDescription, root: Path) -> None:
    packed = PackedWeights(root, lambda model, one, other: False)
    assert not is_mapped(packed.open(model, KERNELS))
    assert not is_mapped(packed.open(model, KERNELS))
    assert not entries(root)


def test_another_build_of_the_kernels_packs_anew(
    model: ModelDescription, kernels_here: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = PackedWeights(tmp_path / "root", same_results)
    path = Path(model.folder) / KERNEL_GRAPH_FILE
    key = packed.key_of(model, path)
    other = tmp_path / "other.so"
    other.write_bytes(kernels_here.path.read_bytes() + b"\0")
    monkeypatch.setenv(VARIABLE, str(other))
    assert packed.key_of(model, path) != key


def test_a_plan_whose_products_are_not_where_it_says_packs_for_itself(
    model: ModelDescription, root: Path, tmp_path: Path
) -> None:
    import onnx

    folder = tmp_path / "other"
    folder.mkdir()
    for file in Path(model.folder).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    graph = onnx.load(str(folder / KERNEL_GRAPH_FILE), load_external_data=False)
    for said in ('{"layers.0.qkv.codes": {"bits": 4, "n": 7, "blocks": 3, "spans": [[0, 5], [5, 5]]}}', "nonsense"):
        onnx.helper.set_model_props(graph, {"kernel_products": said})
        (folder / KERNEL_GRAPH_FILE).write_bytes(graph.SerializeToString())
        moved = msgspec.structs.replace(model, folder=str(folder))
        session = PackedWeights(root, same_results).open(moved, KERNELS)
        assert not is_mapped(session)
        assert same_results(moved, plain(model), session)
        assert not entries(root)


def test_without_kernels_the_plan_cannot_be_opened_and_says_why(
    written: ModelDescription, no_kernels_here: None, root: Path
) -> None:
    with pytest.raises(EngineError, match="kernels") as caught:
        PackedWeights(root, same_results).open(written, KERNELS)
    assert caught.value.code == "kernels_unusable"
    assert not root.exists()


def decoder_of(model: ModelDescription, file: KvFile, specs: tuple[SessionSpec, ...], max_batch: int = 1) -> Decoder:
    session = open_session(Path(model.folder) / model.graph_file, 1)
    decoder = file.keep(Decoder(model, session, file.keep(KvMemory(file.fd, file.layout)), max_batch=max_batch))
    for spec in specs:
        decoder.add_session(spec, plain(model))
    return decoder


def test_each_run_of_a_plan_has_the_threads_of_its_session(
    model: ModelDescription, kernels_here: KernelLibrary, new_kv: NewKv
) -> None:
    three = msgspec.structs.replace(KERNELS, threads=3)
    decoder = decoder_of(model, new_kv(model, max_len=32), (KERNELS, three))
    decoder.show(0, 0)
    for spec, threads in ((KERNELS, 2), (three, 3), (KERNELS, 2), (None, 2)):
        decoder.step([5], [0], by=spec)
        assert kernels_here.threads == threads


def test_a_plan_s_steps_do_not_depend_on_threads_and_neighbours(model: ModelDescription, new_kv: NewKv) -> None:
    one = msgspec.structs.replace(KERNELS, threads=1)
    decoder = decoder_of(model, new_kv(model, max_len=32, slots=3), (KERNELS, one), max_batch=3)
    for row in range(3):
        decoder.show(row, row)
        decoder.extend(row, [3 + row, 9, 4, 1], 0, by=KERNELS)
    together = decoder.step([7, 8, 9], [4, 4, 4], by=KERNELS).copy()
    for row in range(3):
        assert np.array_equal(decoder.step([7 + row], [4], row, by=one)[0], together[row])


def test_an_engine_prepares_a_plan_and_answers_by_it(
    model: ModelDescription, engine: EngineDriver, new_kv: NewKv
) -> None:
    engine.load(model, new_kv(model, max_len=32))
    request_id = engine.new_id()
    engine.send(PrepareSession(request_id=request_id, model="tiny", session=KERNELS))
    engine.wait(SessionPrepared, request_id)
    engine.send(UseSessions(request_id=engine.new_id(), model="tiny", prefill=KERNELS, decode=KERNELS))
    tokens, end = engine.generate([1, 2, 3], max_new_tokens=4)
    assert len(tokens) == 4 and isinstance(end, Finished)


def test_an_engine_without_kernels_serves_as_ever_and_refuses_the_plan(
    written: ModelDescription, no_kernels_here: None, new_kv: NewKv
) -> None:
    with EngineDriver() as engine:
        engine.load(written, new_kv(written, max_len=32))
        request_id = engine.new_id()
        engine.send(PrepareSession(request_id=request_id, model="tiny", session=KERNELS))
        answer = engine.next()
        assert isinstance(answer, Failed)
        assert answer.code == "kernels_unusable"
        tokens, end = engine.generate([1, 2, 3], max_new_tokens=4)
        assert len(tokens) == 4 and isinstance(end, Finished)


def alone(model: ModelDescription) -> ModelDescription:
    """The model with the kernel plan for its own graph."""
    return msgspec.structs.replace(model, graph_file=KERNEL_GRAPH_FILE)


def test_a_model_that_is_loaded_by_its_plan_has_mapped_weights_and_its_own_threads(
    model: ModelDescription, kernels_here: KernelLibrary, root: Path, new_kv: NewKv
) -> None:
    session = SessionMaker(ThreadPlace(), PackedWeights(root, same_results)).open_own(alone(model), 2)
    assert is_mapped(session)
    file = new_kv(model, max_len=32)
    own = SessionSpec(threads=2)
    decoder = file.keep(Decoder(alone(model), session, file.keep(KvMemory(file.fd, file.layout)), own=own))
    three = SessionSpec(threads=3)
    decoder.add_session(three, session)
    decoder.show(0, 0)
    for spec, threads in ((None, 2), (three, 3), (None, 2)):
        decoder.step([5], [0], by=spec)
        assert kernels_here.threads == threads


def test_a_graph_that_onnx_runtime_packs_is_loaded_without_the_cache(model: ModelDescription, root: Path) -> None:
    session = SessionMaker(ThreadPlace(), PackedWeights(root, same_results)).open_own(model, 1)
    assert not is_mapped(session)
    assert not root.exists()


@pytest.mark.parametrize("cached", [True, False])
def test_an_engine_with_the_plan_alone_says_what_one_says_that_has_it_beside_the_serving_graph(
    model: ModelDescription, root: Path, new_kv: NewKv, cached: bool
) -> None:
    said = []
    with EngineDriver() as engine:
        engine.load(model, new_kv(model, max_len=64))
        request_id = engine.new_id()
        engine.send(PrepareSession(request_id=request_id, model="tiny", session=KERNELS))
        engine.wait(SessionPrepared, request_id)
        engine.send(UseSessions(request_id=engine.new_id(), model="tiny", prefill=KERNELS, decode=KERNELS))
        said.append(engine.generate([1, 2, 3, 4, 5], max_new_tokens=40)[0])
    with EngineDriver(options=("--packed", str(root)) if cached else ()) as engine:
        engine.load(alone(model), new_kv(model, max_len=64))
        said.append(engine.generate([1, 2, 3, 4, 5], max_new_tokens=40)[0])
        said.append(engine.generate([1, 2, 3, 4, 5], max_new_tokens=40, prefill_chunk=2)[0])
    assert said[0] == said[1] == said[2]
    assert root.exists() == cached


def test_an_engine_without_kernels_refuses_a_model_by_its_plan(
    written: ModelDescription, no_kernels_here: None, new_kv: NewKv
) -> None:
    with EngineDriver() as engine:
        request_id = engine.send_load(alone(written), new_kv(written, max_len=32))
        answer = engine.next()
        assert isinstance(answer, Failed)
        assert (answer.request_id, answer.code) == (request_id, "kernels_unusable")
