"""The embedded model loaded by its kernel plan alone, over either cache: one text, whatever happens meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from engine_driver import EngineDriver, KvFile
from tokenizers import Tokenizer

from magnitude.engine.protocol import SamplerSettings, Tokens
from magnitude.kernels.library import KernelLibrary
from magnitude.models.catalogue import scan
from magnitude.models.description import (
    KERNEL_GRAPH_FILE,
    KERNEL_GRAPH_FILES,
    KERNEL_KV8_GRAPH_FILE,
    ModelDescription,
)
from magnitude.models.golden import check, read_golden
from magnitude.models.graphs.kernel_plan import write_kernel_plan
from magnitude.models.importing.graph_runner import DecoderRunner

pytestmark = pytest.mark.models

TEXT = Path(__file__).parent.parent.parent / "docs/operations.md"
PROMPT_TOKENS, NEW_TOKENS = 90, 40
SAMPLED = {
    "model": "smollm2-135m-instruct",
    "max_new_tokens": NEW_TOKENS,
    "sampler": SamplerSettings(temperature=0.8, seed=11),
}


@pytest.fixture(scope="module", params=["float32", "int8_per_token"])
def written(
    request: pytest.FixtureRequest, magnitude_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> ModelDescription:
    """The embedded model with a kernel plan for its own graph, whatever the import here wrote."""
    (found,) = [
        entry
        for entry in scan(magnitude_home / "models")
        if isinstance(entry, ModelDescription) and entry.name == "smollm2-135m-instruct"
    ]
    folder = tmp_path_factory.mktemp("alone") / found.name
    folder.mkdir()
    for file in Path(found.folder).iterdir():
        if file.is_file() and file.name not in KERNEL_GRAPH_FILES:
            (folder / file.name).write_bytes(file.read_bytes())
    over_bytes = request.param == "int8_per_token"
    plan = KERNEL_KV8_GRAPH_FILE if over_bytes else KERNEL_GRAPH_FILE
    assert write_kernel_plan(folder / found.graph_file, folder / plan, over_bytes=over_bytes)
    assert found.decoder is not None
    shape = msgspec.structs.replace(found.decoder, kv_type=request.param)
    return msgspec.structs.replace(found, folder=str(folder), graph_file=plan, decoder=shape)


@pytest.fixture
def model(written: ModelDescription, kernels_here: KernelLibrary) -> ModelDescription:
    return written


@pytest.fixture(scope="module")
def prompt(written: ModelDescription) -> list[int]:
    tokenizer = Tokenizer.from_file(str(Path(written.folder) / "tokenizer.json"))
    found: list[int] = tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids[:PROMPT_TOKENS]
    return found


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options of engines that share one folder of packed weights."""
    return ("--packed", str(tmp_path_factory.mktemp("packed") / "packed"))


NewKv = Callable[..., KvFile]


@pytest.fixture
def undisturbed(
    model: ModelDescription, prompt: list[int], packed: tuple[str, ...], new_kv: NewKv
) -> Iterator[list[int]]:
    with EngineDriver(options=packed) as engine:
        engine.load(model, new_kv(model, max_len=256), threads=2)
        ids, _ = engine.generate(prompt, **SAMPLED)
    assert len(set(ids)) > NEW_TOKENS // 3
    yield ids


def test_the_plan_passes_the_golden_set_of_the_serving_graph(model: ModelDescription) -> None:
    golden = read_golden(Path(model.folder), model.model_hash)
    assert golden is not None and golden.prompts and model.decoder is not None
    runner = DecoderRunner(Path(model.folder) / model.graph_file, model.decoder)
    assert check(lambda ids: runner.logits(ids)[-1], golden).passed


def test_the_text_does_not_depend_on_pieces_threads_and_neighbours(
    model: ModelDescription, prompt: list[int], undisturbed: list[int], packed: tuple[str, ...], new_kv: NewKv
) -> None:
    with EngineDriver(options=packed) as engine:
        engine.load(model, new_kv(model, max_len=256, slots=3), threads=1)
        for chunk in (1, 7, 64):
            assert engine.generate(prompt, prefill_chunk=chunk, **SAMPLED)[0] == undisturbed
        started = [engine.start(prompt[skip:], slot=skip, **SAMPLED) for skip in (2, 1, 0)]
        texts: dict[int, list[int]] = {request_id: [] for request_id in started}
        while len(texts[started[2]]) < NEW_TOKENS:
            message = engine.next()
            if isinstance(message, Tokens):
                texts[message.request_id] += message.ids
    assert texts[started[2]] == undisturbed
    assert texts[started[0]] != undisturbed


@pytest.mark.parametrize("keep_kv", [True, False])
def test_an_engine_that_takes_over_goes_on_with_the_same_text(
    model: ModelDescription,
    prompt: list[int],
    undisturbed: list[int],
    packed: tuple[str, ...],
    new_kv: NewKv,
    keep_kv: bool,
) -> None:
    file = new_kv(model, max_len=256)
    emitted: list[int] = []
    with EngineDriver(options=packed) as engine:
        engine.load(model, file, threads=2)
        engine.start(prompt, **SAMPLED)
        while len(emitted) < NEW_TOKENS // 2:
            message = engine.next()
            emitted += message.ids if isinstance(message, Tokens) else []
        engine.kill()
    del emitted[NEW_TOKENS // 2 :]
    with EngineDriver(options=packed) as engine:
        engine.load(model, file if keep_kv else new_kv(model, max_len=256), threads=len(os.sched_getaffinity(0)))
        valid = len(prompt) + len(emitted) - 1 if keep_kv else 0
        rest, _ = engine.generate(prompt, emitted=list(emitted), kv_valid_tokens=valid, **SAMPLED)
    assert [*emitted, *rest] == undisturbed
