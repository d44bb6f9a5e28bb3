"""What a generation needs to go on after its engine was killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_driver import EngineDriver, KvFile
from tiny_decoder import write_decoder

from magnitude.engine.protocol import Failed, Finished, GrammarSpec, PrefillProgress, SamplerSettings, Tokens
from magnitude.models.description import ModelDescription

NewKv = Callable[..., KvFile]
PROMPT = [(i * 37) % 250 for i in range(23)]
SAMPLED: dict[str, Any] = {
    "sampler": SamplerSettings(temperature=0.8, top_p=0.95, presence_penalty=0.5, repetition_penalty=1.1, seed=99),
    "max_new_tokens": 50,
    "prefill_chunk": 8,
}


def killed_run(
    model: ModelDescription, kv: KvFile, kill_after: list[int], *, keep_kv: bool, **fields: Any
) -> tuple[list[int], Finished | Failed]:
    """A generation whose engine is killed when so many ids have arrived; each next engine gets the ids alone."""
    emitted: list[int] = []
    for kill_at in [*kill_after, None]:
        with EngineDriver() as engine:
            engine.load(model, kv)
            valid = len(PROMPT) + len(emitted) - 1 if keep_kv and emitted else 0
            request_id = engine.start(PROMPT, emitted=list(emitted), kv_valid_tokens=valid, **fields)
            while kill_at is None or len(emitted) < kill_at:
                message = engine.next()
                if isinstance(message, Tokens):
                    emitted += message.ids
                elif isinstance(message, (Finished, Failed)):
                    assert message.request_id == request_id
                    return emitted, message
            engine.kill()
            try:  # what it had still sent counts: the service reads to the end
                while True:
                    message = engine.next()
                    emitted += message.ids if isinstance(message, Tokens) else []
            except (EOFError, ConnectionError):
                pass
    raise AssertionError("the generation never ended")


@pytest.mark.parametrize("keep_kv", [True, False])
@pytest.mark.parametrize("kv_type", ["float32", "int8"])
def test_a_generation_killed_twice_gives_the_undisturbed_ids(
    folder: Path, new_kv: NewKv, keep_kv: bool, kv_type: str
):
    model = write_decoder(folder, kv_type=kv_type)
    with EngineDriver() as engine:
        engine.load(model, new_kv(model))
        undisturbed, _ = engine.generate(PROMPT, **SAMPLED)
    ids, end = killed_run(model, new_kv(model), [1, 31], keep_kv=keep_kv, **SAMPLED)
    assert ids == undisturbed
    assert isinstance(end, Finished)
    assert end.reason == "length"


def test_a_constrained_generation_goes_on_inside_its_grammar(tiny: ModelDescription, new_kv: NewKv):
    fields = SAMPLED | {"grammar": GrammarSpec(kind="regex", text="([a-f]{3}-){10}")}
    with EngineDriver() as engine:
        engine.load(tiny, new_kv(tiny))
        undisturbed, _ = engine.generate(PROMPT, **fields)
    ids, end = killed_run(tiny, new_kv(tiny), [22], keep_kv=True, **fields)
    assert ids == undisturbed
    assert isinstance(end, Finished)
    assert (len(ids), end.reason) == (40, "stop")


def test_kept_positions_are_not_computed_again(tiny_engine: EngineDriver):
    whole, _ = tiny_engine.generate(PROMPT, **(SAMPLED | {"max_new_tokens": 21}))
    tiny_engine.generate(PROMPT, **(SAMPLED | {"max_new_tokens": 20}))
    before = tiny_engine.stats().steps
    fields = SAMPLED | {"max_new_tokens": 21, "kv_valid_tokens": len(PROMPT) + 19}
    rest, _ = tiny_engine.generate(PROMPT, emitted=whole[:20], **fields)
    assert rest == whole[20:]
    assert tiny_engine.stats().steps - before == 1


@pytest.mark.parametrize("spoil", ["other text", "other slot"])
def test_positions_that_the_slot_does_not_vouch_for_are_computed_again(tiny_engine: EngineDriver, spoil: str):
    ids, _ = tiny_engine.generate(PROMPT, **SAMPLED)
    slot = 0
    if spoil == "other text":
        tiny_engine.generate([9] * 30, **SAMPLED)
    else:
        slot = 1
    request_id = tiny_engine.start(PROMPT, slot=slot, emitted=ids[:20], kv_valid_tokens=len(PROMPT) + 19, **SAMPLED)
    first = tiny_engine.next()
    assert isinstance(first, PrefillProgress)
    assert first.done_tokens == 8
    assert tiny_engine.collect(request_id)[0] == ids[20:]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_new_tokens": 3}, "length"),
        ({"max_new_tokens": 9, "stop_ids": (7,)}, "stop"),
        ({"max_new_tokens": 9, "grammar": GrammarSpec(kind="regex", text="!!!")}, "stop"),
    ],
)
def test_a_generation_that_was_already_at_its_end_only_says_so(
    tiny_engine: EngineDriver, fields: dict[str, Any], reason: str
):
    emitted = [0, 0, 7] if "stop_ids" in fields else [0, 0, 0]
    ids, end = tiny_engine.generate(PROMPT, emitted=emitted, **fields)
    assert ids == []
    assert isinstance(end, Finished)
    assert (end.reason, end.new_tokens) == (reason, 0)
