"""Memory of an engine with the embedded encoder: large requests pass, and so do models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_driver import EngineDriver

from magnitude.engine.protocol import Done, Embed, UnloadModel, Vectors
from magnitude.models.description import ModelDescription
from magnitude.models.manifest import describe, read_manifest

pytestmark = pytest.mark.models

MB = 1 << 20
# Room for the allocator's own ways; the first run of the largest shape alone leaves 30 MB behind.
NEAR_BYTES = 12 * MB


@pytest.fixture
def minilm(magnitude_home: Path) -> ModelDescription:
    folder = magnitude_home / "models" / "all-minilm-l6-v2"
    return describe(folder, read_manifest(folder))


def embed(engine: EngineDriver, model: ModelDescription, lengths: list[int]) -> np.ndarray:
    # Few different words: each new one shows another page of the mapped embedding table, which is no heap.
    inputs = [[101, *(1000 + n % 50 for n in range(length - 2)), 102] for length in lengths]
    request_id = engine.new_id()
    engine.send(Embed(request_id=request_id, model=model.name, inputs=inputs))
    answer = engine.wait(Vectors, request_id)
    return np.frombuffer(answer.data, "<f4").reshape(answer.count, answer.width)


def test_one_maximum_request_does_not_set_the_memory_for_ever(engine: EngineDriver, minilm: ModelDescription):
    engine.load(minilm)
    for _ in range(20):
        embed(engine, minilm, [16])
    before = engine.stats()
    embed(engine, minilm, [256] * 8)
    peak = engine.stats()
    for _ in range(20):
        embed(engine, minilm, [16])
    after = engine.stats()
    assert peak.run_pool.peak_bytes > before.run_pool.peak_bytes
    assert after.rss_bytes - before.rss_bytes < NEAR_BYTES
    assert after.run_pool.held_bytes < NEAR_BYTES
    assert after.run_pool.peak_bytes > after.run_pool.mean_bytes > 0


def test_memory_has_a_bound_whatever_the_shapes(engine: EngineDriver, minilm: ModelDescription):
    engine.load(minilm)
    before = engine.stats().rss_bytes
    rng = np.random.default_rng(3)
    highest = 0
    for _ in range(15):
        embed(engine, minilm, [int(n) for n in rng.integers(3, 257, rng.integers(1, 4))])
        highest = max(highest, engine.stats().rss_bytes)
    # A run has at most 256 positions, which took 20 MB; many shapes must not take more than one.
    assert highest - before < 50 * MB


@pytest.mark.slow
def test_loading_and_unloading_twenty_times_does_not_climb(engine: EngineDriver, minilm: ModelDescription):
    resident = []
    for _ in range(20):
        engine.load(minilm)
        embed(engine, minilm, [64] * 4)
        request_id = engine.new_id()
        engine.send(UnloadModel(request_id=request_id, model=minilm.name))
        engine.wait(Done, request_id)
        resident.append(engine.stats().rss_bytes)
    assert max(resident[10:]) - min(resident[2:10]) < NEAR_BYTES
