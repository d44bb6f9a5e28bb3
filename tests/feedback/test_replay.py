from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from magnitude.engine.protocol import Embed, EmbedAndRank, Generate, InferTensors, SamplerSettings, Tensor
from magnitude.errors import EngineError
from magnitude.feedback.bundles import FailedRequest, FailureBundle, Victim, shape_of
from magnitude.feedback.circumstances import Circumstances
from magnitude.feedback.replay import Attempt, attempt, models_of, requests_of, same_way
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.loss import EngineLoss
from tests.feedback.failure_samples import MODEL, SERVED
from tests.feedback.record_samples import stamp

FAKE_ENGINE = Path(__file__).parent.parent / "supervise/fake_engine.py"
LEFT = EngineLoss("the engine left with status 7", "left")
# What the first id of a prompt makes the fake engine do.
ANSWER, DIE, HANG = 1, 2, 4


async def spawn(on_exit: OnExit) -> EngineProcess:
    return await EngineProcess.spawn(on_exit, command=(sys.executable, str(FAKE_ENGINE)))


def lost(message: Any, *, content: bool = True, **fields: Any) -> FailedRequest:
    kind = {"Generate": "generate", "InferTensors": "infer"}.get(type(message).__name__, "embed")
    prompt_tokens = len(getattr(message, "prompt", []))
    values: dict[str, Any] = {"kind": kind, "prompt_tokens": prompt_tokens, "emitted_tokens": 0, **fields}
    victim = Victim(request_id=message.request_id, model="m", message=message, **values)
    return FailedRequest(shape=shape_of(victim), content=message if content else None)


def generation(*prompt: int, request_id: int = 40, max_new_tokens: int = 3) -> Generate:
    return Generate(
        request_id=request_id,
        model="m",
        slot=2,
        prompt=list(prompt),
        max_new_tokens=max_new_tokens,
        sampler=SamplerSettings(seed=3),
        kv_valid_tokens=1,
    )


def bundle(*requests: FailedRequest, loss: EngineLoss = LEFT, **fields: Any) -> FailureBundle:
    values: dict[str, Any] = {"models": [SERVED], "step_deadline_s": 60.0, "circumstances": Circumstances(), **fields}
    return FailureBundle(
        bundle_id="000001-left", stamp=stamp(), loss=loss, versions={}, requests=list(requests), **values
    )


def tried(failure: FailureBundle) -> Attempt:
    messages, _ = requests_of(failure)
    return asyncio.run(attempt(failure, messages, models_of(failure, messages), spawn=spawn))


def test_a_request_that_ends_the_engine_does_so_again() -> None:
    again = tried(bundle(lost(generation(DIE, 5)), lost(generation(ANSWER, 5))))
    assert (again.verdict, again.loss) == ("same", LEFT)


def test_a_request_that_makes_the_engine_hang_is_found_by_the_deadline_of_then() -> None:
    hang = EngineLoss("one graph run takes 61 s", "hang")
    again = tried(bundle(lost(generation(HANG)), loss=hang, step_deadline_s=0.2))
    assert again.verdict == "same"
    assert again.loss is not None
    assert again.loss.cause == "hang"


def test_an_engine_that_lives_through_it_says_what_it_did() -> None:
    once = tried(bundle(lost(generation(ANSWER, 5, max_new_tokens=4)), lost(generation(ANSWER, 6, max_new_tokens=2))))
    assert once == Attempt(verdict="through", emitted_tokens=6)


def test_another_end_is_told_apart() -> None:
    assert tried(bundle(lost(generation(DIE)), loss=EngineLoss("ended by SIGSEGV", "crash"))).verdict == "other"


def test_losses_are_alike_by_cause_and_crashes_by_their_signal() -> None:
    assert same_way(EngineLoss("61 s", "hang"), EngineLoss("75 s", "hang"))
    assert same_way(EngineLoss("ended by SIGSEGV", "crash"), EngineLoss("ended by SIGSEGV", "crash"))
    assert not same_way(EngineLoss("ended by SIGSEGV", "crash"), EngineLoss("ended by SIGILL", "crash"))
    assert not same_way(EngineLoss("x", "oom"), EngineLoss("x", "killed"))


def test_a_model_that_cannot_be_loaded_is_an_error_and_no_verdict() -> None:
    broken = msgspec.structs.replace(
        SERVED,
        description=msgspec.structs.replace(MODEL, name="broken"),
        facts=msgspec.structs.replace(SERVED.facts, model="broken"),
    )
    failure = bundle(models=[broken])
    with pytest.raises(EngineError, match="broken cannot be loaded"):
        tried(failure)


def test_a_loss_without_requests_is_tried_by_loading_everything() -> None:
    failure = bundle(loss=EngineLoss("status 1", "start"))
    assert models_of(failure, []) == [SERVED]
    assert tried(failure).verdict == "through"


def test_with_content_the_very_request_goes_into_a_slot_of_its_own_and_is_computed_anew() -> None:
    first, second = generation(7, 8), generation(9)
    messages, notes = requests_of(bundle(lost(first), lost(second, cached_tokens=1)))
    for message, was in zip(messages, (first, second), strict=True):
        assert isinstance(message, Generate)
        assert (message.prompt, message.sampler, message.kv_valid_tokens) == (was.prompt, was.sampler, 0)
    assert [(message.request_id, getattr(message, "slot", None)) for message in messages] == [(1, 0), (2, 1)]
    assert notes == ["request 40 found 1 tokens in its slot; here all are computed"]


def test_without_content_requests_of_the_same_shape_are_made_up_and_this_is_said() -> None:
    tensor = Tensor(name="x", dtype="float32", shape=(2, 3), data=b"\1" * 24)
    requests = [
        lost(generation(*range(50), max_new_tokens=9), content=False),
        lost(Embed(request_id=2, model="m", inputs=[[9] * 3, [9] * 7]), content=False),
        lost(EmbedAndRank(request_id=3, model="m", query=[9] * 2, documents=[[9] * 4], top_k=1), content=False),
        lost(InferTensors(request_id=4, model="m", inputs=[tensor]), content=False),
    ]
    messages, notes = requests_of(bundle(*requests))
    made, embed, rank, infer = messages
    assert isinstance(made, Generate)
    assert (len(made.prompt), made.max_new_tokens, made.sampler.seed) == (50, 9, 3)
    assert made.prompt != list(range(50))
    assert all(0 <= token < 100 for token in made.prompt)
    assert isinstance(embed, Embed)
    assert [len(text) for text in embed.inputs] == [3, 7]
    assert isinstance(rank, EmbedAndRank)
    assert (len(rank.query), [len(text) for text in rank.documents], rank.top_k) == (2, [4], 1)
    assert isinstance(infer, InferTensors)
    assert infer.inputs == [msgspec.structs.replace(tensor, data=b"\0" * 24)]
    assert sum("is made up" in note for note in notes) == 4
    assert requests_of(bundle(*requests))[0] == messages


def test_a_request_to_a_model_that_nothing_is_known_of_is_left_out() -> None:
    messages, notes = requests_of(bundle(lost(generation(1)), models=[]))
    assert messages == []
    assert "left out" in notes[0]
