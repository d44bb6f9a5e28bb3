"""A conversation that was saved, and goes on in another slot of another memory with another engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_driver import EngineDriver
from tiny_decoder import layout_of, write_decoder

from magnitude.engine.protocol import Failed, Finished, SlotContents
from magnitude.engine.slot_header import HASH_OF_NOTHING, extend_hash
from magnitude.models.description import ModelDescription
from magnitude.schedule.kv_memory import KvMemory
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_files import SlotFiles

PROMPT = [(i * 37) % 250 for i in range(41)]
QUESTION = [(i * 11) % 250 for i in range(13)]


@pytest.fixture(params=["float32", "int8"])
def model(request: pytest.FixtureRequest, folder: Path) -> ModelDescription:
    return write_decoder(folder, kv_type=request.param)


@pytest.fixture
def memories(model: ModelDescription) -> Iterator[list[KvMemory]]:
    """The service's KV memory before and after a restart."""
    made = [KvMemory("test", layout_of(model)) for _ in range(2)]
    yield made
    for kv in made:
        kv.close()


def next_turn(engine: EngineDriver, slot: int, ids: list[int], held: int) -> tuple[list[int], Finished | Failed]:
    holds = SlotContents(tokens=held, ids_hash=extend_hash(HASH_OF_NOTHING, ids[:held]))
    prompt = ids + QUESTION
    return engine.generate(prompt, slot=slot, kv_valid_tokens=held, kv_holds=holds, max_new_tokens=20)


def test_its_next_turn_computes_nothing_twice_and_gives_the_same_answer(
    model: ModelDescription, memories: list[KvMemory], tmp_path: Path
) -> None:
    before, after = memories
    files = SlotFiles(tmp_path / "kv", reserve_bytes=0)
    layout = before.layout
    scope = Scope(
        model=model.name, model_hash=model.model_hash, layout_id=layout.layout_id, plan="", adapter="", owner="ann"
    )
    with EngineDriver() as engine:
        engine.load(model, before)
        answer, _ = engine.generate(PROMPT, max_new_tokens=10)
        ids = PROMPT + answer
        saved = files.save(before, 0, scope, ids, "talk")
        assert saved.tokens == len(ids) - 1  # the last one was never computed
        undisturbed, _ = next_turn(engine, 0, ids, saved.tokens)

    later = SlotFiles(tmp_path / "kv")
    (found,) = later.scan()
    assert later.restore(after, 1, found) == saved.tokens
    with EngineDriver() as engine:
        engine.load(model, after)
        ids_again, end = next_turn(engine, 1, ids, saved.tokens)
    assert ids_again == undisturbed
    assert isinstance(end, Finished)
    assert end.cached_tokens == saved.tokens
