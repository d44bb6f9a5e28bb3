"""Bringing models up in a fresh engine: each for itself, whatever the others do."""

import asyncio

import msgspec
import pytest
from scripted_engine import Answer, ScriptedEngine

from magnitude.engine.message import Message
from magnitude.engine.protocol import (
    Done,
    Failed,
    Finished,
    Loaded,
    LoadModel,
    PrefillProgress,
    TensorInfo,
    Tokens,
    ToService,
    UnloadModel,
)
from magnitude.errors import MagnitudeError, ModelError
from magnitude.feedback.records import Feedback
from magnitude.models.description import KERNEL_GRAPH_FILE, ModelDescription
from magnitude.policy.provision import Provision
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.loading import DEATHS_TOLERATED, LOAD_BASE_S, ModelLoader, load_deadline_s
from magnitude.schedule.plan import ModelPlan
from magnitude.supervise.lifecycle import EngineLifecycle, LoadFailed, ModelsReady


class NoEngine:
    lifecycle = EngineLifecycle(load_deadline_s=1, step_deadline_s=1)
    pid = None
    heartbeat = None


def plan(name: str, *, weight_bytes: int = 1, fallback: str | None = None, serving: str | None = None) -> ModelPlan:
    description = ModelDescription(
        name=name,
        kind="tensors",
        family="onnx",
        folder="/nowhere",
        graph_file="model.onnx" if serving is None else KERNEL_GRAPH_FILE,
        serving_graph_file=serving,
        fallback_graph_file=fallback,
        model_hash="0",
        weight_bytes=weight_bytes,
    )
    return ModelPlan(description, Provision(threads=1, prefill_chunk=8, slots=0, context_length=0, kv_type=None))


def loader_of(plans: list[ModelPlan], admit=None) -> ModelLoader:
    dispatcher = Dispatcher(plans, aliases={}, max_queue=1, feedback=Feedback(), engine=NoEngine())
    return ModelLoader(dispatcher, admit)


def load(loader: ModelLoader, answer: Answer) -> ModelsReady | LoadFailed:
    engine = ScriptedEngine(answer)
    engine.deliver = loader.on_message
    return asyncio.run(loader.load_all(engine))  # type: ignore[arg-type]


def loaded(message: Message) -> ToService:
    if isinstance(message, UnloadModel):
        return Done(request_id=message.request_id)
    assert isinstance(message, LoadModel)
    inputs = (TensorInfo(name="x", dtype="float32", shape=(-1, 3)),)
    return Loaded(request_id=message.request_id, model=message.model.name, load_s=0.1, inputs=inputs)


def failing(*names: str, permanent: bool = True) -> Answer:
    def answer(message: Message) -> ToService:
        assert isinstance(message, LoadModel)
        if message.model.name in names:
            return Failed(
                request_id=message.request_id, code="model_file_torn", message="it is torn", permanent=permanent
            )
        return loaded(message)

    return answer


def test_every_plan_is_loaded_and_gets_the_signature_of_its_graph() -> None:
    plans = [plan("a"), plan("b")]
    assert load(loader_of(plans), loaded) == ModelsReady()
    assert [p.failure for p in plans] == [None, None]
    assert all(p.signature and p.signature[0][0].name == "x" for p in plans)


def test_one_that_fails_does_not_take_the_others_along() -> None:
    plans = [plan("a"), plan("b")]
    assert load(loader_of(plans), failing("a")) == ModelsReady()
    assert isinstance(plans[0].failure, ModelError)
    assert plans[0].failure.code == "model_file_torn"
    assert plans[1].failure is None


@pytest.mark.parametrize("permanent", [True, False])
def test_when_nothing_loads_it_is_final_only_if_trying_again_cannot_help(permanent: bool) -> None:
    outcome = load(loader_of([plan("a"), plan("b")]), failing("a", "b", permanent=permanent))
    assert isinstance(outcome, LoadFailed)
    assert outcome.permanent is permanent
    assert "it is torn" in outcome.reason


def test_a_model_that_is_mended_serves_with_the_next_engine() -> None:
    plans = [plan("a"), plan("b")]
    loader = loader_of(plans)
    load(loader, failing("a"))
    load(loader, loaded)
    assert plans[0].failure is None


def test_a_model_that_does_not_prove_itself_is_not_served() -> None:
    async def admit(judged: ModelPlan, graph_file: str, engine: FreshEngine) -> MagnitudeError | None:
        return ModelError("it computes something else") if judged.description.name == "a" else None

    plans = [plan("a"), plan("b")]
    assert load(loader_of(plans, admit), loaded) == ModelsReady()
    assert str(plans[0].failure) == "it computes something else"
    assert plans[1].failure is None


def admits(*graph_files: str):
    """An `admit` that lets these graphs serve."""

    async def admit(judged: ModelPlan, graph_file: str, engine: FreshEngine) -> MagnitudeError | None:
        return None if graph_file in graph_files else ModelError("it is nonsense", code="golden_failed")

    return admit


def graphs_after(loader: ModelLoader) -> list[str]:
    """Graphs that stay loaded in the engine when loading is over."""
    engine = ScriptedEngine(loaded)
    engine.deliver = loader.on_message
    asyncio.run(loader.load_all(engine))  # type: ignore[arg-type]
    graphs: list[str] = []
    for message in engine.sent:
        if isinstance(message, LoadModel):
            graphs.append(message.model.graph_file)
        elif isinstance(message, UnloadModel):
            graphs.pop()
    return graphs


def test_a_graph_that_computes_nonsense_gives_way_to_its_fallback() -> None:
    shaky = plan("a", fallback="fallback.onnx")
    assert graphs_after(loader_of([shaky], admits("fallback.onnx"))) == ["fallback.onnx"]
    assert shaky.failure is None
    assert "it is nonsense" in shaky.degraded


@pytest.mark.parametrize("serves", ["model.onnx", "fallback.onnx"])
def test_a_kernel_plan_that_computes_nonsense_gives_way_to_the_serving_graph_before_any_fallback(serves: str) -> None:
    shaky = plan("a", fallback="fallback.onnx", serving="model.onnx")
    assert graphs_after(loader_of([shaky], admits(serves, "fallback.onnx"))) == [serves]
    assert shaky.failure is None
    assert shaky.graph_file == serves
    assert "it is nonsense" in shaky.degraded


def test_a_kernel_plan_that_does_not_load_gives_way_to_the_serving_graph() -> None:
    def without_kernels(message: Message) -> ToService:
        assert isinstance(message, LoadModel)
        if message.model.graph_file == KERNEL_GRAPH_FILE:
            return Failed(request_id=message.request_id, code="kernels_unusable", message="they are damaged")
        return loaded(message)

    shaky = plan("a", serving="model.onnx")
    assert load(loader_of([shaky]), without_kernels) == ModelsReady()
    assert (shaky.failure, shaky.graph_file) == (None, "model.onnx")
    assert "they are damaged" in shaky.degraded


def test_a_kernel_plan_that_is_right_serves_alone() -> None:
    sound = plan("a", serving="model.onnx")
    assert graphs_after(loader_of([sound], admits(KERNEL_GRAPH_FILE, "model.onnx"))) == [KERNEL_GRAPH_FILE]
    assert (sound.failure, sound.degraded) == (None, "")


def test_a_graph_that_is_right_needs_no_fallback() -> None:
    sound = plan("a", fallback="fallback.onnx")
    assert graphs_after(loader_of([sound], admits("model.onnx", "fallback.onnx"))) == ["model.onnx"]
    assert (sound.failure, sound.degraded) == (None, "")


def test_nothing_stays_loaded_of_a_model_that_may_not_serve() -> None:
    hopeless = plan("a", fallback="fallback.onnx")
    assert graphs_after(loader_of([hopeless], admits())) == []
    assert hopeless.failure is not None


def test_a_fault_in_the_proof_of_one_model_is_that_models_alone() -> None:
    async def admit(judged: ModelPlan, graph_file: str, engine: FreshEngine) -> MagnitudeError | None:
        if judged.description.name == "a":
            raise IndexError("a list that was never empty before")
        return None

    plans = [plan("a"), plan("b")]
    assert load(loader_of(plans, admit), loaded) == ModelsReady()
    assert isinstance(plans[0].failure, ModelError)
    assert plans[0].failure.hint
    assert plans[1].failure is None


def dies_loading(loader: ModelLoader, name: str) -> ModelsReady | LoadFailed | None:
    """Loading with an engine that ends while it loads `name`; None when it ended."""

    async def scenario() -> ModelsReady | LoadFailed | None:
        engine = ScriptedEngine(lambda m: None if isinstance(m, LoadModel) and m.model.name == name else loaded(m))
        engine.deliver = loader.on_message
        loading = asyncio.create_task(loader.load_all(engine))  # type: ignore[arg-type]
        for _ in range(20):
            await asyncio.sleep(0)
        if loading.done():
            return loading.result()
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        return None

    return asyncio.run(scenario())


def test_a_model_that_kills_its_engines_is_left_out_after_some_and_tried_again_later() -> None:
    plans = [plan("deadly"), plan("b")]
    loader = loader_of(plans)
    assert [dies_loading(loader, "deadly") for _ in range(DEATHS_TOLERATED)] == [None] * DEATHS_TOLERATED
    assert dies_loading(loader, "deadly") == ModelsReady()
    assert plans[0].failure is not None
    assert plans[0].failure.code == "engine_died_loading"
    assert plans[1].failure is None
    assert load(loader, loaded) == ModelsReady()
    assert plans[0].failure is None


def test_accidents_that_are_not_in_a_row_are_forgiven() -> None:
    plans = [plan("a")]
    loader = loader_of(plans)
    for _ in range(DEATHS_TOLERATED):
        assert dies_loading(loader, "a") is None
        assert load(loader, loaded) == ModelsReady()
    assert plans[0].failure is None


def test_only_answers_to_its_own_questions_belong_to_loading() -> None:
    async def scenario() -> None:
        loader = loader_of([plan("a")])
        engine = ScriptedEngine(lambda _: None)
        question = asyncio.create_task(
            loader.ask(engine, LoadModel(request_id=7, model=plan("a").description, threads=1), 7)  # type: ignore[arg-type]
        )
        await asyncio.sleep(0)
        assert not loader.on_message(Tokens(request_id=8, ids=[1]))
        assert loader.on_message(PrefillProgress(request_id=7, done_tokens=1, total_tokens=2))
        assert not question.done()
        assert loader.on_message(Tokens(request_id=7, ids=[1]))
        assert await question == Tokens(request_id=7, ids=[1])
        assert not loader.on_message(Tokens(request_id=7, ids=[2]))

    asyncio.run(scenario())


def test_the_deadline_grows_with_the_weights_and_with_each_model() -> None:
    assert load_deadline_s([]) == LOAD_BASE_S
    large = plan("a", weight_bytes=10_000_000_000)
    assert load_deadline_s([large]) > LOAD_BASE_S + 500
    small = [plan(name, weight_bytes=1) for name in "bcd"]
    assert load_deadline_s([large, *small]) >= load_deadline_s([large]) + 3 * LOAD_BASE_S


def test_the_deadline_of_a_model_has_the_time_for_its_draft_model() -> None:
    alone, drafted = plan("a", weight_bytes=1000), plan("a", weight_bytes=1000)
    drafted.draft = plan("small", weight_bytes=1000).description
    assert load_deadline_s([drafted]) == load_deadline_s([alone, alone])


def test_a_generation_may_be_awaited_to_its_end() -> None:
    """Otherwise its first tokens are the answer."""

    async def ask(whole: bool) -> ToService:
        loader = loader_of([plan("a")])
        end = Finished(
            request_id=7,
            reason="length",
            prompt_tokens=1,
            new_tokens=2,
            wait_s=0.0,
            prefill_s=0.1,
            decode_s=0.1,
        )

        def stream(message: Message) -> None:
            for said in (Tokens(request_id=7, ids=[1]), Tokens(request_id=7, ids=[2]), end):
                loader.on_message(said)

        engine = ScriptedEngine(stream)
        return await loader.ask(engine, UnloadModel(request_id=7, model="a"), 7, whole=whole)  # type: ignore[arg-type]

    assert isinstance(asyncio.run(ask(whole=True)), Finished)
    assert isinstance(asyncio.run(ask(whole=False)), Tokens)


def test_what_stands_by_is_asked_for_the_very_load_that_comes_later() -> None:
    plans = [plan("a"), plan("b", fallback="slow.onnx")]
    loader = loader_of(plans)
    asked: list[Message] = []

    def noted(message: Message) -> ToService:
        asked.append(message)
        return loaded(message)

    engine = ScriptedEngine(noted)
    engine.deliver = loader.on_message
    asyncio.run(loader.preload(engine, plans))  # type: ignore[arg-type]
    ahead, asked = asked, []
    assert load(loader, noted) == ModelsReady()
    assert [msgspec.structs.replace(one, request_id=0) for one in ahead] == [
        msgspec.structs.replace(one, request_id=0) for one in asked
    ]


def test_a_model_that_failed_or_runs_on_its_fallback_is_not_loaded_ahead() -> None:
    plans = [plan("a"), plan("b"), plan("c")]
    plans[0].failure = ModelError("torn")
    plans[1].degraded = "on its slow fallback graph"
    loader = loader_of(plans)
    asked: list[str] = []

    def refusing(message: Message) -> ToService:
        assert isinstance(message, LoadModel)
        asked.append(message.model.name)
        return failing("c")(message)

    engine = ScriptedEngine(refusing)
    engine.deliver = loader.on_message
    asyncio.run(loader.preload(engine, plans))  # type: ignore[arg-type]
    assert asked == ["c"]
    assert plans[2].failure is None  # the next engine tries it itself
