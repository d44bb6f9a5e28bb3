"""Runs that are timed for the loop: only while nothing else runs, and in nobody's way."""

from __future__ import annotations

import asyncio

import pytest
from scripted_chooser import TWO
from sessions_bench import PROBE, Bench, play

from magnitude.engine import session_messages as engine
from magnitude.engine.protocol import ToService
from magnitude.policy.terms import ProbeDone


def test_runs_are_timed_as_the_loop_names_them() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.have(TWO)
        bench.sessions.probe(PROBE)
        await bench.until(lambda: len(bench.told) == 2)
        [asked] = bench.sent(engine.Probe)
        assert isinstance(asked, engine.Probe)
        assert asked.runs == (
            engine.ProbedRun(session=None, rows=1, tokens=16),
            engine.ProbedRun(session=TWO, rows=1, tokens=32),
        )
        assert asked.rounds == 3
        assert asked.past_tokens + 32 < bench.plan.provision.context_length
        assert bench.told[1] == ProbeDone(PROBE, ((1.0,), (2.0,)), complete=True)

    play(scenario)


def test_nothing_is_timed_while_the_model_works() -> None:
    async def scenario(bench: Bench) -> None:
        bench.idle, bench.busy = False, True
        bench.sessions.probe(PROBE)
        await bench.until(lambda: bool(bench.told))
        assert bench.told == [ProbeDone(PROBE, (), complete=False)]
        assert not bench.engine.sent

    play(scenario)


def test_timing_waits_for_the_work_of_other_models() -> None:
    async def scenario(bench: Bench) -> None:
        bench.idle = False
        bench.sessions.probe(PROBE)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not bench.engine.sent
        bench.idle = True
        bench.desk.load_changed()
        await bench.until(lambda: bool(bench.told))
        assert len(bench.sent(engine.Probe)) == 1

    play(scenario)


def test_timing_is_given_up_under_a_load_of_other_models_that_lasts() -> None:
    async def scenario(bench: Bench) -> None:
        bench.idle = False
        bench.sessions.probe(PROBE)
        await bench.until(lambda: bool(bench.told))
        assert bench.told == [ProbeDone(PROBE, (), complete=False)]
        assert (bench.engine.sent, bench.timing) == ([], [])

    play(scenario, Bench(probe_patience_s=0.01))


@pytest.mark.parametrize("answer", [engine.Probed(request_id=0, seconds=((1.0,),), complete=True), None])
def test_a_probe_is_under_way_only_while_the_engine_runs_it(answer: ToService | None) -> None:
    async def scenario(bench: Bench) -> None:
        bench.answer = lambda message: answer
        bench.sessions.probe(PROBE)
        await bench.until(lambda: bench.timing == ([True, False] if answer is not None else [True]))
        bench.lose()
        await bench.until(lambda: bench.timing == [True, False])

    play(scenario)
