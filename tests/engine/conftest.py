from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_driver import EngineDriver, KvFile
from tiny_decoder import layout_of, write_decoder

from magnitude.models.description import ModelDescription


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelDescription:
    return write_decoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def new_kv() -> Iterator[Callable[..., KvFile]]:
    """Makes KV memory for a model; closed at the end of the test."""
    files: list[KvFile] = []

    def make(model: ModelDescription, **fields: int) -> KvFile:
        files.append(KvFile(layout_of(model, **fields)))
        return files[-1]

    yield make
    for file in files:
        file.close()


@pytest.fixture
def engine() -> Iterator[EngineDriver]:
    with EngineDriver() as driver:
        yield driver


class SharedEngine:
    """One engine process with the tiny decoder for all tests that leave it as they found it."""

    def __init__(self, model: ModelDescription) -> None:
        self._model = model
        self._kv = KvFile(layout_of(model))
        self._driver: EngineDriver | None = None

    def take(self) -> EngineDriver:
        if self._driver is None:
            self._driver = EngineDriver()
            self._driver.load(self._model, self._kv)
        return self._driver

    def put_back(self) -> None:
        """Keep the process for the next test only if it is idle and has the one model."""
        if self._driver is not None and not self._driver.settle("tiny"):
            self.stop()

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.__exit__()
            self._driver = None


@pytest.fixture(scope="session")
def shared_engine(tiny: ModelDescription) -> Iterator[SharedEngine]:
    shared = SharedEngine(tiny)
    yield shared
    shared.stop()


@pytest.fixture
def tiny_engine(shared_engine: SharedEngine) -> Iterator[EngineDriver]:
    """An engine with the tiny decoder loaded and nothing open."""
    yield shared_engine.take()
    shared_engine.put_back()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"
