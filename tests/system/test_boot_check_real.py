"""The check after a boot against a real service with real models: what it asks is compared with the golden sets."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from started_service import RunningService

from magnitude.cli.client import Address, ServiceClient
from magnitude.models.catalogue import open_folder
from magnitude.models.description import ModelDescription
from magnitude.models.golden import GoldenPrompt, GoldenVector, read_golden, write_golden
from magnitude.update.boot_check import Surroundings, check_boot
from magnitude.update.proof import GOLDEN_TEXTS, Wrong, prove
from magnitude.update.this_device import usable_models

pytestmark = pytest.mark.models

CHAT = "smollm2-135m-instruct"
EMBEDDER = "all-minilm-l6-v2"


@pytest.fixture
def client(service: RunningService) -> Iterator[ServiceClient]:
    with ServiceClient(Address(socket=str(service.socket))) as client:
        yield client


def test_chat_model_and_embedder_answer_as_at_import(client: ServiceClient, magnitude_home: Path) -> None:
    models = usable_models(magnitude_home / "models")
    proofs = prove(client, models.get)
    assert [(proof.model, proof.compared) for proof in proofs] == [(CHAT, GOLDEN_TEXTS), (EMBEDDER, 0)]


def test_a_real_service_passes(service: RunningService, magnitude_home: Path) -> None:
    around = Surroundings(
        connect=lambda: ServiceClient(Address(socket=str(service.socket))),
        models=usable_models(magnitude_home / "models"),
        clock=time.monotonic,
        sleep=lambda seconds: time.sleep(seconds / 20),
        steady_s=0.5,
    )
    report = check_boot(around, within_s=60)
    assert report.verdict.passed, report


def known_as(folder: Path, change: Callable[[ModelDescription], None]) -> Callable[[str], ModelDescription | None]:
    """What a check knows of the model whose copy lies in `folder` once `change` has been made there."""
    model = open_folder(folder)
    change(model)
    return lambda name: model if name == model.name else None


def golden_only(model: Path, place: Path) -> Path:
    """A copy of the model with a golden set of its own; the other files are the same ones."""
    copy = place / model.name
    shutil.copytree(model, copy, symlinks=True, copy_function=os.link)
    (copy / "golden.json").unlink()
    shutil.copy(model / "golden.json", copy / "golden.json")
    return copy


def other_prompts(model: ModelDescription) -> None:
    golden = read_golden(Path(model.folder), model.model_hash)
    assert golden is not None
    prompts = [GoldenPrompt(ids=one.ids, top=one.top[::-1], logits=one.logits) for one in golden.prompts]
    write_golden(Path(model.folder), msgspec.structs.replace(golden, prompts=prompts))


def other_vectors(model: ModelDescription) -> None:
    golden = read_golden(Path(model.folder), model.model_hash)
    assert golden is not None
    # Of a text that a client can send: those of the import are cut pieces.
    vectors = [GoldenVector(ids=[101, 2054, 102], vector=[1.0, *[0.0] * (len(golden.vectors[0].vector) - 1)])]
    write_golden(Path(model.folder), msgspec.structs.replace(golden, vectors=vectors))


@pytest.mark.parametrize(("name", "change"), [(CHAT, other_prompts), (EMBEDDER, other_vectors)])
def test_a_model_that_answers_otherwise_than_at_import_is_found_out(
    client: ServiceClient,
    magnitude_home: Path,
    tmp_path: Path,
    name: str,
    change: Callable[[ModelDescription], None],
) -> None:
    copy = golden_only(magnitude_home / "models" / name, tmp_path)
    with pytest.raises(Wrong):
        prove(client, known_as(copy, change))
