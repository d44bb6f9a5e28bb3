"""Which variant computes a request that names the model, and that nobody ever waits for one."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import msgspec
import pytest
from on_demand_house import House, plan, task, until
from sample_plans import decoder_plan, encoder_plan

from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import SamplerSettings
from magnitude.errors import ModelError, ModelNotFound
from magnitude.policy.situation import TaskKind
from magnitude.schedule.inference import GenerationTask
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.planned_strategy import planned_strategy
from magnitude.schedule.served_models import ServedModels
from magnitude.schedule.slot_terms import Known
from magnitude.schedule.variant_routing import FORGOTTEN_AFTER_S, LOAD_AT_LATEST_S, VariantRouting
from magnitude.supervise.lifecycle import EngineLifecycle


class Engine:
    """As much of an engine as is looked at."""

    lifecycle = EngineLifecycle(load_deadline_s=1, step_deadline_s=1)


class World:
    """A chat model with two variants; what is loaded, held and reserved is set by the test."""

    def __init__(self, *, context: int = 64, names: tuple[str, ...] = ("small", "tiny")) -> None:
        self.chat = decoder_plan("chat", context=64, weight_bytes=9)
        self.variants = [
            decoder_plan(name, context=context, variant_of="chat", weight_bytes=size)
            for size, name in zip((5, 3), names, strict=False)
        ]
        self.loaded = {"chat", *names}
        self.wanted: list[str] = []
        self.now_s = 100.0
        self.held: dict[str, int] = {}
        self.reserved: set[str] = set()
        self.models = ServedModels(
            [self.chat, *self.variants],
            aliases={},
            engine=Engine(),  # type: ignore[arg-type]
            clock=time.monotonic,
        )
        self.routing = VariantRouting(
            self.models,
            ready=lambda name: name in self.loaded,
            wanted=self.wanted.append,
            known=self.known,
            reserved=lambda client, model: client in self.reserved,
            clock=lambda: self.now_s,
        )

    def known(self, plan: ModelPlan, task: GenerationTask) -> Known:
        tokens = self.held.get(plan.description.name, 0)
        return Known(tokens, "talk" if tokens else "")

    def choose(self, name: str, *, forced: bool = False) -> None:
        self.routing.choose_by(lambda model, task: name, lambda: forced)

    def route(
        self, model: str = "chat", *, prompt: int = 4, limit: int = 4, adapter: str = "", **more: object
    ) -> str:
        asked = GenerationTask(
            request_key="r",
            model=model,
            prompt=[1] * prompt,
            max_new_tokens=limit,
            sampler=SamplerSettings(),
            client="c",
            **more,  # type: ignore[arg-type]
        )
        return self.routing.for_generation(self.models.plan(model), asked, adapter).description.name


def test_without_a_word_from_the_policy_the_model_itself_serves() -> None:
    world = World()
    assert world.route() == "chat"
    world.routing.look(idle=True)
    assert world.wanted == []


def test_the_variant_that_the_policy_names_serves() -> None:
    world = World()
    asked: list[tuple[str, TaskKind]] = []

    def variant_of(model: str, task: TaskKind) -> str:
        asked.append((model, task))
        return "small"

    world.routing.choose_by(variant_of)
    assert world.route() == "small"
    assert asked == [("chat", "generate")]


@pytest.mark.parametrize("name", ["", "chat", "gone", "another"])
def test_a_name_that_is_no_variant_means_the_model_itself(name: str) -> None:
    world = World()
    world.choose(name)
    assert world.route() == "chat"


def test_a_variant_that_is_not_loaded_is_loaded_in_a_pause_and_the_model_serves_meanwhile() -> None:
    world = World()
    world.loaded.discard("small")
    world.choose("small")
    assert world.route() == "chat"
    world.routing.look(idle=False)
    assert world.wanted == []
    world.routing.look(idle=True)
    assert world.wanted == ["small"]
    world.loaded.add("small")
    assert world.route() == "small"


def test_a_load_without_a_pause_does_not_keep_a_variant_away_for_ever() -> None:
    world = World()
    world.loaded.discard("small")
    world.choose("small")
    for _ in range(3):
        assert world.route() == "chat"
        world.routing.look(idle=False)
        world.now_s += LOAD_AT_LATEST_S / 2
    assert world.wanted == ["small"]


def test_what_is_wanted_no_more_is_not_loaded_in_a_later_pause() -> None:
    world = World()
    world.loaded.discard("small")
    world.choose("small")
    world.route()
    world.now_s += FORGOTTEN_AFTER_S + 1
    world.routing.look(idle=True)
    assert world.wanted == []


def test_a_variant_outside_its_tolerance_is_neither_used_nor_loaded() -> None:
    world = World()
    world.loaded.discard("small")
    world.variants[0].outside = "on this board: KL 0.3 nats"
    world.choose("small")
    assert world.route() == "chat"
    world.routing.look(idle=True)
    assert world.wanted == []


def test_a_variant_that_failed_for_good_or_fell_back_is_not_used() -> None:
    world = World()
    world.choose("small")
    world.variants[0].failure = ModelError("damaged")
    assert world.route() == "chat"
    world.variants[0].failure = None
    world.variants[0].graph_file = "fallback.onnx"
    assert world.route() == "chat"


def test_a_variant_that_is_named_serves_whatever_the_policy_says() -> None:
    world = World()
    world.choose("tiny")
    assert world.route("small") == "small"


def test_a_conversation_stays_where_its_kv_lies() -> None:
    world = World()
    world.choose("tiny")
    world.held = {"small": 40, "chat": 8}
    assert world.route() == "small"
    world.held = {"chat": 40}
    assert world.route() == "chat"


def test_a_conversation_is_moved_only_where_it_is_forced() -> None:
    world = World()
    world.choose("tiny", forced=True)
    world.held = {"chat": 40}
    assert world.route() == "tiny"


def test_a_conversation_whose_variant_is_not_loaded_goes_on_where_the_policy_says() -> None:
    world = World()
    world.loaded.discard("small")
    world.held = {"small": 40}
    assert world.route() == "chat"
    world.routing.look(idle=True)
    assert world.wanted == []


def test_a_request_that_the_variant_has_no_room_for_stays_with_the_model() -> None:
    world = World(context=16)
    world.choose("small")
    assert world.route(prompt=8, limit=8) == "small"
    assert world.route(prompt=8, limit=9) == "chat"
    assert world.route(prompt=8, limit=500) == "chat"


def test_an_answer_that_slides_out_of_the_context_stays_with_the_model() -> None:
    world = World()
    world.choose("small")
    assert world.route(limit=500, overflow="stop") == "small"
    assert world.route(limit=500, overflow="slide") == "chat"


def test_adapters_and_reservations_belong_to_the_model() -> None:
    world = World()
    world.choose("small")
    assert world.route(adapter="polite") == "chat"
    world.reserved.add("c")
    assert world.route() == "chat"
    world.choose("small", forced=True)
    assert world.route() == "small"


def test_texts_are_routed_as_well() -> None:
    parent, variant = encoder_plan("e"), encoder_plan("e-int8", variant_of="e")
    models = ServedModels([parent, variant], aliases={}, engine=Engine(), clock=time.monotonic)  # type: ignore[arg-type]
    routing = VariantRouting(
        models,
        ready=lambda name: True,
        wanted=lambda name: None,
        known=lambda plan, task: Known(0, ""),
        reserved=lambda client, model: False,
        clock=time.monotonic,
    )
    assert routing.for_texts(parent) is parent
    routing.choose_by(lambda model, task: "e-int8" if task == "embed" else "")
    assert routing.for_texts(parent) is variant
    assert routing.for_texts(variant) is variant


def test_variants_are_no_models_that_clients_are_to_name() -> None:
    world = World()
    assert [model.name for model in world.models.descriptions()] == ["chat"]
    assert world.models.plan("default").description.name == "chat"
    with pytest.raises(ModelNotFound) as caught:
        world.models.plan("nothing")
    assert "small" not in caught.value.hint


def test_variants_of_a_model_come_smallest_first() -> None:
    world = World()
    assert [plan.description.name for plan in world.models.variants("chat")] == ["tiny", "small"]
    assert world.models.variants("small") == []
    assert world.models.smaller("chat") == ("tiny", "small")
    world.variants[0].outside = "far"
    assert world.models.smaller("chat") == ("tiny",)


# --- with the switch, the loader and a process that pretends to compute ---


def test_a_variant_is_loaded_beside_what_is_served_and_answers_from_then_on() -> None:
    async def scenario(house: House) -> None:
        house.dispatcher.variants.choose_by(lambda model, task: "small")
        first = await house.dispatcher.generate(task("chat", 5))
        assert (first.variant, first.model) == ("", "chat")
        while (await first.next()).reason is None:
            pass
        await until(lambda: house.state("small") == "loaded")
        second = await house.dispatcher.generate(task("chat", 6))
        assert (second.variant, second.model) == ("small", "small")
        while (await second.next()).reason is None:
            pass

    House(plan("small", variant_of="chat")).play(scenario)


def test_where_a_variant_cannot_be_loaded_the_model_serves() -> None:
    async def scenario(house: House) -> None:
        house.dispatcher.variants.choose_by(lambda model, task: "torn")
        for word in range(3):
            assert await house.read("chat", word) == [word, word]
            await asyncio.sleep(0.05)
        assert "torn" not in house.loaded()

    House(plan("torn", variant_of="chat")).play(scenario)


@pytest.mark.parametrize("by_failure", [False, True])
def test_a_generation_whose_variant_does_not_come_back_goes_on_with_the_model(by_failure: bool) -> None:
    async def scenario(house: House) -> None:
        house.dispatcher.variants.choose_by(lambda model, task: "small")
        house.dispatcher.strategy_for = lambda plan, tokens, cached: strategies[plan.description.name]
        plans = {name: house.dispatcher.plan(name) for name in ("chat", "small")}
        strategies = {
            name: msgspec.structs.replace(planned_strategy(each), prefill_chunk=chunk)
            for chunk, (name, each) in enumerate(plans.items(), 3)
        }
        await house.read("chat")
        await until(lambda: house.state("small") == "loaded")
        generation = await house.dispatcher.generate(task("chat", 7, limit=40))
        assert generation.strategy_id == strategies["small"].strategy_id
        ids = (await generation.next()).ids
        assert generation.model == "small"
        assert house.supervisor.pid is not None
        os.kill(house.supervisor.pid, signal.SIGKILL)
        await until(lambda: generation.paused)
        if not by_failure:
            house.dispatcher.refuse("small", ModelError("it cannot be loaded any more"))
            assert generation.model == "chat"
            assert generation.variant == "small"  # it wrote the beginning
        while (emission := await generation.next()).reason is None:
            ids += emission.ids
        assert ids == [7] * 40
        assert generation.model == "chat"
        assert generation.strategy_id == strategies["chat"].strategy_id
        assert emission.reason == "length"
        await until(lambda: (house.dispatcher.running, house.dispatcher.waiting) == (0, 0))

    class Damaged(House):
        """The next engine finds the variant damaged, when it loads what was begun."""

        def on_up(self, link: EngineLink) -> None:
            self.plans[1].failure = ModelError("damaged") if self.supervisor.lifecycle.restarts else None
            super().on_up(link)

    (Damaged if by_failure else House)(plan("small", variant_of="chat")).play(scenario)


def test_an_answer_that_a_variant_had_no_part_in_does_not_name_it() -> None:
    async def scenario(house: House) -> None:
        house.dispatcher.variants.choose_by(lambda model, task: "small")
        await house.read("chat")
        await until(lambda: house.state("small") == "loaded")
        house.dispatcher.limit_generations(1)
        first = await house.dispatcher.generate(task("chat", 7, limit=1000))
        await first.next()
        generation = await house.dispatcher.generate(task("chat", 7))
        assert (generation.model, generation.variant) == ("small", "small")
        house.dispatcher.refuse("small", ModelError("it cannot be loaded any more"))
        assert (generation.model, generation.variant) == ("chat", "")
        first.cancel("test")
        while (emission := await generation.next()).reason is None:
            pass
        assert emission.reason == "length"

    House(plan("small", variant_of="chat")).play(scenario)


def test_whoever_names_a_variant_that_does_not_come_is_told() -> None:
    async def scenario(house: House) -> None:
        generation = await house.dispatcher.generate(task("torn", 7))
        with pytest.raises(ModelError):
            await generation.next()

    House(plan("torn", variant_of="chat")).play(scenario)


def test_a_variant_that_nobody_uses_any_more_leaves_memory() -> None:
    async def scenario(house: House) -> None:
        house.dispatcher.variants.choose_by(lambda model, task: "small")
        await house.read("chat")
        await until(lambda: house.state("small") == "loaded")
        house.dispatcher.variants.choose_by(lambda model, task: "")
        house.skipped_s += 901.0
        house.switch.memory_changed(100)
        await until(lambda: house.state("small") == "absent")
        assert await house.read("chat") == [5, 5]

    House(plan("small", variant_of="chat")).play(scenario)


def test_a_variant_is_told_of_with_its_model() -> None:
    async def scenario(house: House) -> None:
        (small,) = house.dispatcher.variant_states("chat")
        assert (small.name, small.residency, small.outside) == ("small", "absent", "")
        assert [model.name for model in house.dispatcher.models()] == ["chat"]
        states = {state.name: state.variant_of for state in house.dispatcher.state().models}
        assert states == {"chat": "", "small": "chat"}

    House(plan("small", variant_of="chat")).play(scenario)


def test_what_is_kept_of_a_model_is_forgotten_with_its_variants() -> None:
    async def scenario(house: House) -> None:
        small = house.plans[1]
        assert small.table is not None
        said = msgspec.structs.replace(task("small", 7), client="c", prompt=[7] * 30)
        house.dispatcher.conversations.place(small, 99, said)
        small.table.finished(99, said.prompt, 0.0)
        assert [kept.model for kept in house.dispatcher.kept("c")] == ["small"]
        assert await house.dispatcher.forget("c", "chat") == 1
        assert house.dispatcher.kept("c") == []

    House(plan("small", variant_of="chat")).play(scenario)
