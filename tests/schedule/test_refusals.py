"""Tasks that are turned away before anything is computed leave a record all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from dispatcher_house import House, plan, read, task
from sample_plans import encoder_plan

from magnitude.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    EngineNotReady,
    MemoryPressure,
    ModelError,
    ModelNotFound,
    Overloaded,
    Quarantined,
)
from magnitude.feedback.records import Feedback, TaskRow
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.inference import Deadline


class Seat:
    """A dispatcher whose engine never comes, and what it recorded."""

    def __init__(self, **fields: Any) -> None:
        self.kept: list[TaskRow] = []
        self.dispatcher = Dispatcher(
            [plan("m"), encoder_plan("e")],
            aliases={},
            max_queue=1,
            feedback=Feedback(keep=self.kept.append),
            engine=House([plan("m")]).supervisor,
            **fields,
        )

    def play(self, work: Callable[[Dispatcher], Awaitable[Any]], raises: type[Exception]) -> list[tuple[str, ...]]:
        async def run() -> None:
            with pytest.raises(raises):
                await work(self.dispatcher)
            await self.dispatcher.close()

        asyncio.run(run())
        return [(row.task.kind, row.task.model, row.task.outcome, row.task.code) for row in self.kept]


def embed(dispatcher: Dispatcher, **fields: Any) -> Awaitable[Any]:
    return dispatcher.embed("e", [[1, 2, 3]], [], request_key="r", **fields)


def test_a_model_that_cannot_serve() -> None:
    seat = Seat()
    seat.dispatcher.models_served.by_name["m"].failure = ModelError("it is torn")
    rows = seat.play(lambda dispatcher: dispatcher.generate(task([1, 2])), EngineNotReady)
    assert rows == [("generate", "m", "refused", "engine_not_ready")]
    assert (seat.kept[0].task.prompt_tokens, seat.kept[0].task.request) == (2, "r")


def test_a_model_that_does_not_fit() -> None:
    seat = Seat(left_out={"large": BudgetExceeded("too large")})
    rows = seat.play(lambda dispatcher: dispatcher.generate(task([1], model="large")), BudgetExceeded)
    assert rows == [("generate", "large", "out_of_memory", "memory_budget_exceeded")]


def test_a_long_prompt_while_memory_is_short() -> None:
    seat = Seat()
    seat.dispatcher.long_prompts.refused = True
    rows = seat.play(lambda dispatcher: dispatcher.generate(task([1])), MemoryPressure)
    assert rows == [("generate", "m", "out_of_memory", "memory_pressure")]


def test_an_embedding_whose_deadline_passes_while_it_waits() -> None:
    late = Deadline(at_s=time.monotonic())
    rows = Seat().play(lambda dispatcher: embed(dispatcher, deadline=late), DeadlineExceeded)
    assert ("embed", "e", "timed_out", "deadline_exceeded") in rows


def test_a_service_that_is_being_stopped() -> None:
    seat = Seat()
    seat.dispatcher.refuse_all(EngineNotReady("it stops"))
    assert seat.play(embed, EngineNotReady) == [("embed", "e", "refused", "engine_not_ready")]


def test_a_full_queue_leaves_one_record_for_each_request_that_found_it_so() -> None:
    async def three(dispatcher: Dispatcher) -> None:
        for _ in range(4):
            await dispatcher.generate(task([1]))

    rows = Seat().play(three, Overloaded)
    assert [row for row in rows if row[2] == "refused"] == [("generate", "m", "refused", "queue_full")]


def test_a_request_that_is_wrong_in_itself_is_no_task() -> None:
    assert Seat().play(lambda dispatcher: dispatcher.generate(task([1], model="gone")), ModelNotFound) == []


def test_a_request_that_ends_engines_is_recorded_as_refused_each_time() -> None:
    async def scenario(house: House) -> None:
        for _ in range(2):
            with pytest.raises(Quarantined):
                await read(house, [2, 5])

    house = House([plan("m")])
    kept: list[TaskRow] = []
    house.feedback._keep = kept.append
    house.play(scenario)
    assert [(row.task.outcome, row.task.code) for row in kept] == [("refused", "request_quarantined")] * 2
