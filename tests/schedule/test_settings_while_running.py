"""Settings that change while the schedule runs: they count from the next decision on and disturb nothing."""

from __future__ import annotations

import asyncio

import pytest
from admission_bench import Bench, starts
from test_model_switch import Switching

from magnitude.config.kv import KvSettings
from magnitude.config.schedule import ScheduleSettings
from magnitude.errors import ModelNotFound
from magnitude.feedback.records import Feedback
from magnitude.models.description import ModelDescription
from magnitude.policy.provision import Provision
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.encode_batching import EncodeBatching, EncodeJob, EncodeLimits, EngineLoad, RunBatch
from magnitude.schedule.encode_batching import Tick as EncodeTick
from magnitude.schedule.events import Reject, Tick
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.save_policy import HOUR_S, Candidate, SavePolicy
from magnitude.supervise.lifecycle import EngineLifecycle

MB = 1_000_000


def test_a_longer_queue_takes_more_at_once_and_a_shorter_one_throws_nobody_out() -> None:
    bench = Bench(slots=1, max_queue=1)
    bench.submit(1)
    bench.submit(2)
    assert [type(effect) for effect in bench.submit(3)] == [Reject]
    bench.admission.tune(max_queue=3, aging_s=10.0, utilisation=0.7)
    assert bench.submit(4) == bench.submit(5) == []
    bench.admission.tune(max_queue=0, aging_s=10.0, utilisation=0.7)
    assert [type(effect) for effect in bench.submit(6)] == [Reject]
    assert bench.order_of_starts() == [2, 4, 5]


def test_a_shorter_aging_time_lets_those_who_wait_rise_sooner() -> None:
    bench = Bench(slots=1, aging_s=1000.0)
    bench.submit(1)
    bench.submit(2, priority="background")
    bench.admission.tune(max_queue=32, aging_s=10.0, utilisation=0.7)
    bench.apply(Tick(), after_s=500.0)
    bench.submit(3, priority="interactive")
    assert starts(bench.end(1)) == [2]


def test_models_stay_as_long_as_is_said_now() -> None:
    async def scenario(house: Switching) -> None:
        house.up()
        house.request("a")
        await house.until(lambda: house.switch.state("a") == "loaded")
        house.end("a")
        house.now_s = 100.0
        house.switch.keep_alive(900.0)
        await asyncio.sleep(0.01)
        assert house.switch.state("a") == "loaded"
        house.switch.keep_alive(50.0)
        await house.until(lambda: house.switch.state("a") == "absent")

    Switching(["chat", "a"]).play(scenario)


def test_bounds_of_saving_count_at_the_next_look_and_never_grant_more_than_an_hour() -> None:
    policy = SavePolicy(KvSettings(save_after_s=300, saved_hourly_bytes=30 * MB), 0.0)
    candidates = [Candidate(slot=slot, tokens=1000, size_bytes=20 * MB, idle_s=200.0) for slot in range(10)]
    assert policy.decide(candidates, [], 0.0).save == ()
    policy.tune(KvSettings(save_after_s=100, saved_hourly_bytes=60 * MB))
    assert len(policy.decide(candidates, [], 0.0).save) == 1  # what was left of the smaller bound
    assert len(policy.decide(candidates, [], 10 * HOUR_S).save) == 3


def test_texts_wait_for_each_other_as_long_as_is_said_now() -> None:
    batching = EncodeBatching(EncodeLimits(wait_s=60.0))
    batching.apply(EngineLoad(True), 0.0)
    assert batching.apply(EncodeJob(1, "m", (10,), 64), 0.0) == []
    assert batching.next_wake_s() == 60.0
    batching.tune(EncodeLimits(wait_s=0.5))
    assert batching.next_wake_s() == 0.5
    assert [type(effect) for effect in batching.apply(EncodeTick(), 0.5)] == [RunBatch]


class NoEngine:
    lifecycle = EngineLifecycle(load_deadline_s=1, step_deadline_s=1)
    pid = None
    heartbeat = None


def test_an_alias_that_comes_is_known_and_one_that_goes_is_not() -> None:
    async def scenario() -> None:
        description = ModelDescription(
            name="tiny",
            kind="tensors",
            family="onnx",
            folder="/nowhere",
            graph_file="model.onnx",
            model_hash="0",
            weight_bytes=1,
        )
        provision = Provision(threads=1, prefill_chunk=8, slots=0, context_length=0, kv_type=None)
        dispatcher = Dispatcher(
            [ModelPlan(description, provision)],
            aliases={"old": "tiny"},
            max_queue=1,
            feedback=Feedback(),
            engine=NoEngine(),
        )
        assert dispatcher.model("old").name == "tiny"
        dispatcher.tune(aliases={"new": "tiny"}, max_queue=1, schedule=ScheduleSettings(), kv=KvSettings())
        assert dispatcher.model("new").name == "tiny"
        with pytest.raises(ModelNotFound):
            dispatcher.model("old")
        await dispatcher.close()

    asyncio.run(scenario())
