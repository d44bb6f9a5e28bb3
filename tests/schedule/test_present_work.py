from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnitude.engine.protocol import Embed, SamplerSettings
from magnitude.schedule.inference import GenerationTask
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.open_tasks import OpenRun, OpenTask
from magnitude.schedule.present_work import IDLE, PresentWork, present_work


def generation(*, emitted: int = 0, started: bool = True, model: str = "m") -> OpenGeneration:
    task = GenerationTask(
        request_key="r", model=model, prompt=[1, 2, 3], max_new_tokens=9, sampler=SamplerSettings(seed=5)
    )
    made = OpenGeneration(
        1, task, prefill_chunk=64, max_draft=0, close=lambda task, record: None, withdraw=lambda key: None
    )
    if started:
        made.started(0.0)
    made.emitted = [7] * emitted
    return made


def embedding() -> OpenRun:
    message = Embed(request_id=2, model="e", inputs=[[1]])
    made = OpenRun(
        2, "e", message, kind="embed", tokens=1, close=lambda task, record: None, withdraw=lambda key: None
    )
    made.started(0.0)
    return made


def seen(make: Callable[[], list[OpenTask]]) -> PresentWork:
    async def look() -> PresentWork:
        return present_work(make())

    return asyncio.run(look())


def test_nothing_open_or_nothing_begun_is_rest():
    assert seen(list) == IDLE
    assert seen(lambda: [generation(started=False)]) == IDLE


def test_an_answer_is_written_from_its_first_token_on():
    assert seen(lambda: [generation()]).phase == "prefill"
    work = seen(lambda: [generation(emitted=1), generation(emitted=3)])
    assert (work.phase, work.decoding, work.past_tokens) == ("decode", 2, 5)


def test_a_prompt_or_a_text_beside_an_answer_is_mixed_work():
    assert seen(lambda: [generation(emitted=1), generation()]).phase == "mixed"
    work = seen(lambda: [generation(emitted=1), generation(emitted=1), embedding()])
    assert (work.phase, work.entering, work.model) == ("mixed", 1, "m")


def test_what_no_engine_holds_does_not_count():
    def lost() -> list[OpenTask]:
        made = generation(emitted=2)
        made.lost()
        return [made]

    assert seen(lost) == IDLE
