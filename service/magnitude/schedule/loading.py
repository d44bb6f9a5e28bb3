"""Loading the planned models into a fresh engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

import msgspec

from magnitude.engine.client import EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import (
    Failed,
    LoadAdapter,
    Loaded,
    LoadModel,
    PrefillProgress,
    Tokens,
    ToService,
    UnloadModel,
)
from magnitude.errors import EngineError, MagnitudeError, ModelError
from magnitude.log import ORDINARY_BURST
from magnitude.models.description import ModelDescription
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.engine_errors import error_from
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.plan import ModelPlan
from magnitude.supervise.lifecycle import LoadFailed, ModelsReady

log = logging.getLogger("magnitude.schedule")

# Reading the weights is what loading waits for: an SD card gives about 20 MB/s at worst, and a graph of any size
# takes some seconds to build on a small core, and some ten times as long where other work takes that core. Each model
# has its graph, so each has the time for it.
SLOWEST_READ_BYTES_PER_S = 10_000_000
LOAD_BASE_S = 60.0
# Engines that may die while they load a model before it is left out for the sake of the others. One or two can be
# accidents (killed from outside, for want of memory while something else started); three in a row are its own fault.
DEATHS_TOLERATED = 3


def load_deadline_s(plans: list[ModelPlan]) -> float:
    """Time after which loading all of `plans`, one after the other, counts as hung."""
    models = [model for plan in plans for model in (plan.description, plan.draft) if model is not None]
    weight_bytes = sum(model.weight_bytes for model in models)
    # Without a model there is still an engine to be reached.
    return LOAD_BASE_S * max(1, len(models)) + weight_bytes / SLOWEST_READ_BYTES_PER_S


class _Fresh:
    """The engine that is being loaded, for asking it something before it serves."""

    def __init__(self, loader: ModelLoader, link: EngineLink) -> None:
        self._loader = loader
        self._link = link

    def next_id(self) -> int:
        return self._loader.next_id()

    async def ask(self, message: Message, request_id: int, *, whole: bool = False) -> ToService:
        return await self._loader.ask(self._link, message, request_id, whole=whole)


class ModelLoader:
    """Loads every planned model and lets it prove itself; one that fails does not take the others along.

    `admit(plan, graph_file, engine)` is asked after each load and says why the model may not serve, or None.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        admit: Callable[[ModelPlan, str, FreshEngine], Awaitable[MagnitudeError | None]] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._admit = admit
        self._answers: dict[int, asyncio.Future[ToService]] = {}
        # Those of them whose tokens are not the answer yet.
        self._whole: set[int] = set()
        # Engines in a row that ended while they loaded the model of that name.
        self._deaths: dict[str, int] = {}

    def on_message(self, message: ToService) -> bool:
        """True when `message` belongs to loading."""
        request_id = getattr(message, "request_id", None)
        if isinstance(message, PrefillProgress) or (isinstance(message, Tokens) and request_id in self._whole):
            return request_id in self._answers
        answer = self._answers.pop(request_id, None) if request_id is not None else None
        if answer is None:
            return False
        if not answer.done():
            answer.set_result(message)
        return True

    async def ask(
        self, link: EngineLink, message: Message, request_id: int, fd: int | None = None, *, whole: bool = False
    ) -> ToService:
        """Send `message` and wait for the answer with its id; `whole`: for the end of a generation."""
        answer: asyncio.Future[ToService] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = answer
        if whole:
            self._whole.add(request_id)
        try:
            link.send(message, fd)
            return await answer
        finally:
            self._answers.pop(request_id, None)
            self._whole.discard(request_id)

    def next_id(self) -> int:
        return self._dispatcher.next_id()

    async def load_all(self, link: EngineLink, only: Collection[str] | None = None) -> ModelsReady | LoadFailed:
        """Load every plan, or those named, one after the other. Failed only when nothing at all can be served.
        What failed of the others with an earlier engine may be tried again with this one.

        To be cancelled when the engine is gone, since its answers will not come any more.
        """
        failures: list[MagnitudeError] = []
        plans = [plan for plan in self._dispatcher.plans() if only is None or plan.description.name in only]
        for plan in self._dispatcher.plans():
            if plan not in plans:
                plan.failure = None
        for plan in plans:
            plan.failure = await self.bring_up(link, plan)
            if plan.failure is not None:
                failures.append(plan.failure)
        if plans and len(failures) == len(plans):
            reason = "; ".join(str(failure) for failure in failures)
            return LoadFailed(reason, permanent=all(failure.permanent for failure in failures))
        return ModelsReady()

    async def preload(self, link: EngineLink, plans: Collection[ModelPlan]) -> None:
        """Load the plans, as `load_all` would, into an engine that stands by: it then has nothing more to do for
        them. What does not work there is left for `load_all` to find.

        To be cancelled when the engine is gone.
        """
        for plan in plans:
            if plan.failure is not None or plan.degraded:
                continue
            request_id = self._dispatcher.next_id()
            message = load_message(plan, plan.description, request_id)
            answer = await self.ask(link, message, request_id, plan.kv.fd if plan.kv else None)
            if isinstance(answer, Loaded):
                await self._load_adapters(link, plan)
            else:
                reason = answer.message if isinstance(answer, Failed) else type(answer).__name__
                fields = {"model": plan.description.name, "reason": reason}
                log.warning("model not loaded into the spare engine", extra={"fields": fields})

    async def take_down(self, link: EngineLink, plan: ModelPlan) -> None:
        """Unload the model; returns when the engine has let go of it. It must have no open requests.

        To be cancelled when the engine is gone.
        """
        request_id = self._dispatcher.next_id()
        message = UnloadModel(request_id=request_id, model=plan.description.name)
        answer = await self.ask(link, message, request_id)
        fields = {"model": plan.description.name}
        if isinstance(answer, Failed):  # it was not loaded, so that it is gone all the same
            log.warning("model was not unloaded", extra={"fields": fields | {"reason": answer.message}})
        else:
            cause = f"model unloaded {plan.description.name}"
            log.info("model unloaded", extra={"cause": cause, "burst": ORDINARY_BURST, "fields": fields})

    async def bring_up(self, link: EngineLink, plan: ModelPlan) -> MagnitudeError | None:
        """Why the model may not serve, or None when it is loaded and has proved itself.

        To be cancelled when the engine is gone; that counts as the engine's death by this model.
        """
        name = plan.description.name
        if self._deaths.get(name, 0) >= DEATHS_TOLERATED:
            # One more try with the next engine, whenever there is a reason for one: memory may be there by then.
            self._deaths[name] = DEATHS_TOLERATED - 1
            error = EngineError(
                f"the engine died {DEATHS_TOLERATED} times in a row while it loaded {name}",
                code="engine_died_loading",
                hint="See the log for how it ended, and 'magnitude budget' for the memory that it needs",
            )
            log.error("model left out", extra={"fields": {"model": name, "reason": str(error)}})
            return error
        try:
            failure = await self._load_or_fall_back(link, plan)
        except asyncio.CancelledError:
            self._deaths[name] = self._deaths.get(name, 0) + 1
            raise
        except Exception:
            # Nothing in one model's files may keep the others from serving.
            log.exception("a model could not be brought up, on an error that nobody foresaw")
            failure = ModelError(f"{name} could not be brought up", hint="Import it again; the log has the details")
        self._deaths.pop(name, None)
        return failure

    async def _load_or_fall_back(self, link: EngineLink, plan: ModelPlan) -> MagnitudeError | None:
        plan.degraded = ""
        plan.graph_file = plan.description.graph_file
        failure = await self._load_and_admit(link, plan, plan.description)
        serving = plan.description.serving_graph_file
        if failure is not None and serving is not None:
            log.warning("trying the serving graph", extra={"fields": {"model": plan.description.name}})
            plan.degraded = f"on its serving graph, because its kernel plan does not work: {failure.message}"
            plan.graph_file = serving
            description = msgspec.structs.replace(plan.description, graph_file=serving)
            failure = await self._load_and_admit(link, plan, description)
        fallback = plan.description.fallback_graph_file
        if failure is not None and failure.code == "golden_failed" and fallback is not None:
            log.warning("trying the fallback graph", extra={"fields": {"model": plan.description.name}})
            plan.degraded = f"on its slow fallback graph, because {failure.message}"
            plan.graph_file = fallback
            description = msgspec.structs.replace(plan.description, graph_file=fallback)
            failure = await self._load_and_admit(link, plan, description)
        return failure

    async def _load_and_admit(
        self, link: EngineLink, plan: ModelPlan, description: ModelDescription
    ) -> MagnitudeError | None:
        """None when the model is loaded and may serve; a model that may not is unloaded again."""
        failure = await self._load(link, plan, description)
        if failure is None:
            await self._load_adapters(link, plan)
        if failure is not None or self._admit is None:
            return failure
        failure = await self._admit(plan, description.graph_file, _Fresh(self, link))
        if plan.kv is not None:
            plan.kv.release_slot(plan.scratch_slot)
        if failure is not None:
            request_id = self._dispatcher.next_id()
            await self.ask(link, UnloadModel(request_id=request_id, model=description.name), request_id)
        return failure

    async def _load_adapters(self, link: EngineLink, plan: ModelPlan) -> None:
        """An adapter that cannot be loaded costs its own requests only: they are told that it is not."""
        for adapter in plan.adapters:
            request_id = self._dispatcher.next_id()
            message = LoadAdapter(
                request_id=request_id,
                model=plan.description.name,
                name=adapter.name,
                folder=adapter.folder,
                adapter_hash=adapter.adapter_hash,
            )
            answer = await self.ask(link, message, request_id)
            if isinstance(answer, Failed):
                fields = {"adapter": adapter.full_name, "reason": str(error_from(answer))}
                log.error("adapter not loaded", extra={"fields": fields})

    async def _load(self, link: EngineLink, plan: ModelPlan, description: ModelDescription) -> MagnitudeError | None:
        name = description.name
        request_id = self._dispatcher.next_id()
        message = load_message(plan, description, request_id)
        answer = await self.ask(link, message, request_id, plan.kv.fd if plan.kv else None)
        match answer:
            case Loaded():
                plan.signature = (answer.inputs, answer.outputs)
                if answer.draft_failure:
                    plan.degraded = "; ".join(
                        part for part in (plan.degraded, f"without its draft model: {answer.draft_failure}") if part
                    )
                log.info(
                    "model loaded",
                    extra={
                        "cause": f"model loaded {name}",
                        "burst": ORDINARY_BURST,
                        "fields": {
                            "model": name,
                            "load_s": round(answer.load_s, 3),
                            "weights_mb": round(plan.description.weight_bytes / 1e6),
                            "threads": plan.provision.threads,
                            "slots": plan.provision.slots,
                            "context": plan.provision.context_length,
                        },
                    },
                )
                return None
            case Failed():
                error = error_from(answer)
                log.error("model not loaded", extra={"fields": {"model": name, "reason": str(error)}})
                return error
            case _:
                return MagnitudeError(f"unexpected answer {type(answer).__name__} to loading {name}")


def load_message(plan: ModelPlan, description: ModelDescription, request_id: int) -> LoadModel:
    """What an engine is asked for to have the model as it is planned, with `description` for its graph."""
    return LoadModel(
        request_id=request_id,
        model=description,
        threads=plan.provision.threads,
        kv=plan.kv.layout if plan.kv else None,
        max_batch=max(1, plan.provision.max_batch),
        max_inter_token_ms=plan.provision.max_inter_token_ms,
        draft=plan.draft,
    )
