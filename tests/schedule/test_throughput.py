import asyncio
from pathlib import Path

import pytest
from sample_plans import decoder_plan

from magnitude.engine.message import Message
from magnitude.engine.protocol import Failed, Measure, Measured, ToService
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.throughput import Throughput, measured_rows


def a_plan(*, max_batch: int = 4, speculation: str = "auto", model_hash: str = "0") -> ModelPlan:
    return decoder_plan(slots=max_batch, model_hash=model_hash, max_draft=8, draft_inexact=speculation == "on")


class Engine:
    """Answers measurements with steps of these times, and counts them."""

    def __init__(self, step_s: dict[int, float], *, exact: bool = False, busy: bool = False) -> None:
        self.asked: list[Measure] = []
        self._step_s = step_s
        self._exact = exact
        self._busy = busy

    def next_id(self) -> int:
        return 1

    async def ask(self, message: Message, request_id: int) -> ToService:
        assert isinstance(message, Measure)
        self.asked.append(message)
        if self._busy:
            return Failed(request_id=request_id, code="engine_busy", message="at work")
        times = tuple(self._step_s[rows] for rows in message.rows)
        return Measured(request_id=request_id, step_s=times, verifies_exactly=self._exact)


def measure(throughput: Throughput, plan: ModelPlan, engine: Engine, *, ort_version: str = "1") -> None:
    asyncio.run(throughput.measure(plan, engine, ort_version=ort_version, cpu_features=("avx2",)))


RISING = {1: 0.010, 2: 0.012, 4: 0.018}
FLAT = {1: 0.010, 2: 0.020, 4: 0.040}


@pytest.mark.parametrize(("step_s", "slots"), [(RISING, 4), (FLAT, 1)])
def test_as_many_generations_run_as_the_board_has_throughput_for(
    tmp_path: Path, step_s: dict[int, float], slots: int
) -> None:
    plan = a_plan()
    measure(Throughput(tmp_path), plan, Engine(step_s))
    assert plan.compute_slots == slots


def test_what_was_measured_is_remembered_over_restarts_until_something_it_depends_on_changes(tmp_path: Path) -> None:
    first = Engine(FLAT, exact=True)
    measure(Throughput(tmp_path), a_plan(), first)
    again, plan = Engine(RISING), a_plan()
    measure(Throughput(tmp_path), plan, again)
    assert (again.asked, plan.compute_slots, plan.verifies_exactly) == ([], 1, True)
    measure(Throughput(tmp_path), a_plan(), again, ort_version="2")
    measure(Throughput(tmp_path), a_plan(model_hash="1"), again)
    assert len(again.asked) == 2


def test_nothing_that_can_be_found_again_is_measured_in(tmp_path: Path) -> None:
    plan, engine = a_plan(), Engine(RISING)
    measure(Throughput(tmp_path), plan, engine)
    assert engine.asked[0].slot == plan.scratch_slot


def test_an_engine_at_work_is_not_measured_and_nothing_is_remembered(tmp_path: Path) -> None:
    plan = a_plan()
    measure(Throughput(tmp_path), plan, Engine(FLAT, busy=True))
    assert (plan.compute_slots, plan.verifies_exactly) == (4, False)
    measure(Throughput(tmp_path), plan, Engine(FLAT))
    assert plan.compute_slots == 1


@pytest.mark.parametrize(
    ("exact", "speculation", "drafted"), [(True, "auto", 8), (False, "auto", 0), (False, "on", 8), (True, "on", 8)]
)
def test_tokens_are_drafted_where_that_keeps_the_text_or_where_it_is_asked_for(
    tmp_path: Path, exact: bool, speculation: str, drafted: int
) -> None:
    plan = a_plan(speculation=speculation)
    assert plan.max_draft == (8 if speculation == "on" else 0)
    measure(Throughput(tmp_path), plan, Engine(RISING, exact=exact))
    assert plan.max_draft == drafted


def test_powers_of_two_and_the_largest_batch_are_measured() -> None:
    assert measured_rows(1) == (1,)
    assert measured_rows(4) == (1, 2, 4)
    assert measured_rows(6) == (1, 2, 4, 6)
