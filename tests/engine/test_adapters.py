"""Adapters in the engine: mapped, bound, grouped, and never mixed up in KV."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from engine_driver import EngineDriver, KvFile

from magnitude.engine.adapters import AdapterSet
from magnitude.engine.message import Message
from magnitude.engine.protocol import (
    Done,
    Failed,
    Finished,
    LoadAdapter,
    Loaded,
    PrefillProgress,
    PrepareSession,
    SessionPrepared,
    SlotContents,
    TensorInfo,
    UnloadAdapter,
    UseSessions,
)
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.slot_header import HASH_OF_NOTHING, extend_hash, unpack_header
from magnitude.errors import ModelError, RequestError
from magnitude.models.adapters import AdapterDescription, kv_hash, with_adapters
from magnitude.models.description import ModelDescription
from magnitude.models.graphs.build import build_graph
from magnitude.models.graphs.lora import LORA_GRAPH_FILE, write_lora
from magnitude.models.importing.adapter import import_adapter
from magnitude.models.sources import open_source
from tiny_adapters import random_pairs, write_peft

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "llama_tied"
PROMPT = [5, 17, 42, 9, 63, 8, 30, 11, 2]
NewKv = Callable[..., KvFile]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelDescription:
    """A tiny Llama with its LoRA graph and the adapters `low` and `high`."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    source = open_source(GOLDEN)
    built = build_graph(source, folder, bits=4)
    assert built.decoder is not None
    write_lora(folder / built.graph_file, folder / LORA_GRAPH_FILE, built.decoder.layers)
    model = ModelDescription(
        name="tiny",
        kind="decoder",
        family="llama",
        folder=str(folder),
        graph_file=built.graph_file,
        model_hash="ab" * 32,
        weight_bytes=1,
        decoder=built.decoder,
        tokenizer_file=None,
        lora_graph_file=LORA_GRAPH_FILE,
    )
    work = tmp_path_factory.mktemp("adapters")
    for seed, (name, modules) in enumerate(
        {"low": ("self_attn.q_proj", "self_attn.v_proj"), "high": ("self_attn.k_proj", "mlp.down_proj")}.items()
    ):
        import_adapter(write_peft(work / name, random_pairs(source, modules, seed=seed)), model)
    return model


@pytest.fixture(scope="module")
def adapters(base: ModelDescription) -> dict[str, AdapterDescription]:
    return {adapter.name: adapter for adapter in with_adapters(base)[1]}


def inputs_of(**shapes: tuple[int, int]) -> list[TensorInfo]:
    return [TensorInfo(name=name.replace("_", "."), dtype="float32", shape=shape) for name, shape in shapes.items()]


class RecordedBinding:
    """Takes what an `IOBinding` is told."""

    def __init__(self) -> None:
        self.bound: list[tuple[str, tuple[int, ...], int]] = []

    def bind_input(self, name: str, device: str, index: int, kind: Any, shape: tuple[int, ...], address: int) -> None:
        assert (device, index, kind) == ("cpu", 0, np.float32)
        self.bound.append((name, shape, address))


def ask(engine: EngineDriver, message: Message) -> Done | Failed:
    engine.send(message)
    while True:
        answer = engine.next()
        if isinstance(answer, Done | Failed) and answer.request_id == message.request_id:  # type: ignore[attr-defined]
            return answer


def load_adapter(engine: EngineDriver, adapter: AdapterDescription) -> Done | Failed:
    return ask(
        engine,
        LoadAdapter(
            request_id=engine.new_id(),
            model=adapter.base,
            name=adapter.name,
            folder=adapter.folder,
            adapter_hash=adapter.adapter_hash,
        ),
    )


def unload_adapter(engine: EngineDriver, name: str) -> Done | Failed:
    return ask(engine, UnloadAdapter(request_id=engine.new_id(), model="tiny", name=name))


@pytest.fixture
def kv(base: ModelDescription, new_kv: NewKv) -> KvFile:
    return new_kv(base, slots=4, max_len=48)


@pytest.fixture
def serving(
    engine: EngineDriver, base: ModelDescription, adapters: dict[str, AdapterDescription], kv: KvFile
) -> EngineDriver:
    engine.load(with_adapters(base)[0], kv)
    for adapter in adapters.values():
        assert isinstance(load_adapter(engine, adapter), Done)
    return engine


def test_generations_with_different_adapters_and_without_get_what_each_gets_alone(serving: EngineDriver) -> None:
    names = ("low", "", "high", "low")
    alone = [serving.generate(PROMPT, adapter=name, max_new_tokens=20)[0] for name in names]
    assert alone[0] == alone[3]
    assert len({tuple(ids) for ids in alone}) == 3
    open_ids = {
        serving.start(PROMPT, adapter=name, slot=slot, max_new_tokens=20): slot for slot, name in enumerate(names)
    }
    together: dict[int, list[int]] = {slot: [] for slot in range(4)}
    ends = 0
    while ends < 4:
        message = serving.next()
        slot = open_ids.get(getattr(message, "request_id", -1))
        if slot is not None and not isinstance(message, PrefillProgress):
            together[slot] += getattr(message, "ids", [])
            ends += isinstance(message, Finished)
    assert [together[slot] for slot in range(4)] == alone
    batched = {group.rows for report in serving.steps for group in report.groups if group.kind == "decode"}
    assert batched <= {1, 2}


def test_the_base_through_the_lora_graph_gives_the_tokens_of_the_plain_graph(
    serving: EngineDriver, base: ModelDescription, new_kv: NewKv
) -> None:
    through = serving.generate(PROMPT, max_new_tokens=20)[0]
    with EngineDriver() as plain:
        plain.load(base, new_kv(base, slots=4, max_len=48))
        assert plain.generate(PROMPT, max_new_tokens=20)[0] == through


def test_a_slot_s_header_names_the_adapter_that_its_positions_were_computed_with(
    serving: EngineDriver, base: ModelDescription, adapters: dict[str, AdapterDescription], kv: KvFile
) -> None:
    for slot, name in enumerate(("", "low", "high")):
        serving.generate(PROMPT, slot=slot, adapter=name)
        header = unpack_header(os.pread(kv.fd, 4096, kv.layout.header_offset(slot)))
        assert header is not None
        adapter_hash = adapters[name].adapter_hash if name else ""
        assert header.model_hash == kv_hash(base.model_hash, adapter_hash)


def test_kv_of_one_adapter_is_not_reused_for_another(serving: EngineDriver) -> None:
    expected = serving.generate(PROMPT, adapter="high", slot=1)[0]
    ids = serving.generate(PROMPT, adapter="low", slot=0)[0]
    held = [*PROMPT, *ids[:-1]]
    record = SlotContents(tokens=len(held), ids_hash=extend_hash(HASH_OF_NOTHING, held))
    reuse = {"kv_valid_tokens": len(PROMPT), "kv_holds": record, "kv_copy_from": 0}
    again, end = serving.generate(PROMPT, adapter="low", slot=2, **reuse)
    assert isinstance(end, Finished) and end.cached_tokens > 0
    assert again == ids
    for name, slot in (("high", 3), ("", 2)):
        other, end = serving.generate(PROMPT, adapter=name, slot=slot, **reuse)
        assert isinstance(end, Finished) and end.cached_tokens == 0
        assert name == "" or other == expected


def test_an_adapter_in_use_stays_and_one_that_is_gone_is_refused_by_name(
    serving: EngineDriver, adapters: dict[str, AdapterDescription]
) -> None:
    running = serving.start(PROMPT, adapter="low", max_new_tokens=30)
    refused = unload_adapter(serving, "low")
    assert isinstance(refused, Failed) and refused.code == "adapter_in_use"
    _, end = serving.collect(running)
    assert isinstance(end, Finished)
    assert isinstance(unload_adapter(serving, "low"), Done)
    _, gone = serving.generate(PROMPT, adapter="low")
    assert isinstance(gone, Failed) and gone.code == "adapter_not_loaded" and gone.request_fault
    assert "low" in gone.message
    # Loaded anew it lies at another address, and the binding used before must not point to the old one.
    assert isinstance(load_adapter(serving, adapters["low"]), Done)
    assert (
        serving.generate(PROMPT, adapter="low", max_new_tokens=30)[0]
        == serving.generate(PROMPT, adapter="low", slot=3, max_new_tokens=30)[0]
    )


def test_a_model_on_its_plain_graph_takes_no_adapter(
    engine: EngineDriver, base: ModelDescription, adapters: dict[str, AdapterDescription], kv: KvFile
) -> None:
    engine.load(base, kv)
    refused = load_adapter(engine, adapters["low"])
    assert isinstance(refused, Failed) and refused.code == "adapter_graph_missing"
    assert "--lora" in refused.hint
    assert isinstance(engine.generate(PROMPT)[1], Finished)


def test_damaged_and_foreign_adapters_are_refused(
    serving: EngineDriver, adapters: dict[str, AdapterDescription], tmp_path: Path
) -> None:
    assert isinstance(load_adapter(serving, adapters["low"]), Done)  # the very same is there already
    twice = load_adapter(serving, msgspec.structs.replace(adapters["low"], adapter_hash="0" * 64))
    assert isinstance(twice, Failed) and twice.code == "adapter_already_loaded"
    data = bytearray((Path(adapters["low"].folder) / "adapter.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "adapter.safetensors").write_bytes(data)
    changed = LoadAdapter(
        request_id=serving.new_id(),
        model="tiny",
        name="changed",
        folder=str(tmp_path),
        adapter_hash=adapters["low"].adapter_hash,
    )
    refused = ask(serving, changed)
    assert isinstance(refused, Failed) and "sha256 differs" in refused.message
    unknown = unload_adapter(serving, "nobody")
    assert isinstance(unknown, Failed) and unknown.code == "adapter_not_loaded"


def test_only_inputs_that_change_are_bound_again(adapters: dict[str, AdapterDescription]) -> None:
    names = {f"lora_{layer}_{product}_{side}": (32, -1) if side == "a" else (-1, 128 if product == "qkv" else 32)
             for layer in (0, 1) for product in ("qkv", "down") for side in "ab"}  # fmt: skip
    found = AdapterSet("tiny", inputs_of(**names))
    low = adapters["low"]
    found.load("low", Path(low.folder), low.adapter_hash)
    binding = RecordedBinding()
    found.bind(binding, "")
    assert len(binding.bound) == 8
    assert all(0 in shape for _, shape, _ in binding.bound)
    found.bind(binding, "")
    assert len(binding.bound) == 8
    found.bind(binding, "low")
    assert {name for name, _, _ in binding.bound[8:]} == {f"lora.{n}.qkv.{side}" for n in (0, 1) for side in "ab"}
    found.bind(binding, "")
    assert len(binding.bound) == 16


def test_an_adapter_of_another_shape_is_refused_by_the_input_s_name(adapters: dict[str, AdapterDescription]) -> None:
    names = {f"lora_{layer}_qkv_{side}": (16, -1) if side == "a" else (-1, 128) for layer in (0, 1) for side in "ab"}
    low = adapters["low"]
    found = AdapterSet("tiny", inputs_of(**names))
    with pytest.raises(ModelError, match=r"lora\.0\.qkv\.a \[32, 8\] does not fit"):
        found.load("low", Path(low.folder), low.adapter_hash)
    assert "low" not in found
    assert "" in found
    with pytest.raises(RequestError):
        found.unload("")


def test_a_missing_file_is_refused_by_its_path(tmp_path: Path) -> None:
    found = AdapterSet("tiny", inputs_of(lora_0_qkv_a=(32, -1), lora_0_qkv_b=(-1, 64)))
    with pytest.raises(ModelError, match="cannot be read"):
        found.load("low", tmp_path, "00")


def test_loading_says_which_inputs_the_graph_has(engine: EngineDriver, base: ModelDescription, kv: KvFile) -> None:
    loaded = engine.load(with_adapters(base)[0], kv)
    assert isinstance(loaded, Loaded)
    assert any(info.name == "lora.0.qkv.a" for info in loaded.inputs)


def test_an_adapter_runs_by_further_sessions_whose_graph_has_its_inputs_only(
    engine: EngineDriver, base: ModelDescription, adapters: dict[str, AdapterDescription], new_kv: NewKv
) -> None:
    with_inputs, _ = with_adapters(base)
    engine.load(with_inputs, new_kv(base, slots=4, max_len=48))
    load_adapter(engine, adapters["low"])
    names = ("low", "")
    want = [engine.generate(PROMPT, adapter=name, max_new_tokens=20)[0] for name in names]
    same, plain = SessionSpec(threads=2), SessionSpec(threads=2, graph_file=base.graph_file)
    for session in (same, plain):
        engine.send(PrepareSession(request_id=engine.new_id(), model="tiny", session=session))
        engine.wait(SessionPrepared)
    by_session: dict[SessionSpec, list[SessionSpec | None]] = {}
    for session in (same, plain):
        engine.send(UseSessions(request_id=engine.new_id(), model="tiny", decode=session, prefill=session))
        engine.stats()
        seen = len(engine.steps)
        assert [engine.generate(PROMPT, adapter=name, max_new_tokens=20)[0] for name in names] == want
        engine.stats()
        groups = [group for steps in engine.steps[seen:] for group in steps.groups if group.kind == "decode"]
        by_session[session] = [group.session for group in groups]
    assert set(by_session[same]) == {same}
    assert set(by_session[plain]) == {None, plain}
