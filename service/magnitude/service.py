"""The service: builds the parts, owns start and stop.

    intake ──▶ dispatcher (admission, strategy) ──▶ engine process ──▶ feedback
                          supervisor keeps the engine alive

No model runs in this process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import MutableMapping, Sequence
from pathlib import Path

import psutil

from magnitude import __version__
from magnitude.board.cpu import read_cpu
from magnitude.board.memory import effective_memory
from magnitude.board.roots import HostRoots
from magnitude.config import Settings
from magnitude.engine.client import EngineLink
from magnitude.engine.protocol import PoolUse, Steps, ToService
from magnitude.errors import EngineNotReady, MagnitudeError, ModelError
from magnitude.feedback.metrics import Metrics
from magnitude.feedback.records import Feedback
from magnitude.intake.app import build_app
from magnitude.intake.serve import serve
from magnitude.intake.sockets import open_sockets
from magnitude.models.adapters import with_adapters
from magnitude.models.catalogue import BrokenModel, find, open_folder, resolve, scan
from magnitude.models.description import ModelDescription
from magnitude.paths import Paths, find_paths
from magnitude.policy.fitting import fit_together
from magnitude.policy.strategy import BoardFacts, Strategy, default_strategy, draft_bytes
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.golden_gate import GoldenGate
from magnitude.schedule.loading import ModelLoader, load_deadline_s
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.slot_files import SlotFiles
from magnitude.schedule.throughput import Throughput
from magnitude.supervise.lifecycle import EngineLifecycle, LoadFailed, ModelsReady
from magnitude.supervise.supervisor import EngineSupervisor
from magnitude.text.catalogue import TextCatalogue

log = logging.getLogger("magnitude.service")

# How long open requests may go on after SIGTERM. systemd gives 90 s before it kills, but a person at a terminal or
# a board that loses power soon does not wait so long; most answers end within it.
GRACEFUL_S = 10.0
# So long before that, what is still open is ended with an error that its client can read.
FAREWELL_S = 1.0


def choose_models(settings: Settings, found: list[ModelDescription]) -> list[ModelDescription]:
    """The models to serve, default chat model first.

    The chat model is the first decoder of `found` that is more than a draft model. Besides it come those that
    `models.load` names, or every model that is not a decoder. Raises `ModelError` for a name that is not there.
    """
    by_name = {model.name: model for model in found}
    if settings.models.load is not None:
        missing = [name for name in settings.models.load if name not in by_name]
        if missing:
            raise ModelError(
                f"models.load names {', '.join(missing)}, which the models folder does not hold",
                param="models.load",
                hint=f"There are: {', '.join(sorted(by_name)) or 'none'}; see 'magnitude list'",
            )
        others = [by_name[name] for name in settings.models.load]
    else:
        others = [model for model in found if model.kind != "decoder"]
    decoders = [model for model in found if model.kind == "decoder"]
    chat = next((model for model in decoders if model.name != settings.engine.draft_model), None)
    chosen = [chat] if chat is not None else []
    return chosen + [model for model in others if model is not chat]


def find_models(settings: Settings, models_folder: Path) -> list[ModelDescription]:
    """What is to be served, from the models folder and `engine.model_path`. Raises `ModelError` when nothing is."""
    folder = Path(settings.models.folder) if settings.models.folder else models_folder
    found: list[ModelDescription] = []
    for entry in scan(folder):
        if isinstance(entry, BrokenModel):
            log.error(
                "model folder is broken",
                extra={"fields": {"folder": entry.folder, "reason": entry.message, "hint": entry.hint}},
            )
        else:
            found.append(entry)
    if settings.engine.model_path:
        chat = open_folder(resolve(Path(settings.engine.model_path)))
        found = [chat, *(model for model in found if model.name != chat.name)]
    chosen = choose_models(settings, found)
    if not chosen:
        raise ModelError(
            f"there is no model to serve: {folder} holds none that can be used",
            hint="Import one with 'magnitude import SOURCE', or let scripts/run fetch the embedded models",
        )
    return chosen


def find_draft_model(settings: Settings, models_folder: Path) -> ModelDescription | None:
    """The model that `engine.draft_model` names. Raises `ModelError` when it is not there or no decoder."""
    name = settings.engine.draft_model
    if name is None or settings.engine.speculation == "off":
        return None
    folder = Path(settings.models.folder) if settings.models.folder else models_folder
    model = open_folder(find(folder, name))
    if model.kind != "decoder":
        raise ModelError(
            f"engine.draft_model names {name}, which generates no text",
            param="engine.draft_model",
            hint="Name a small model of the chat model's family, or leave it unset",
        )
    return model


class Service:
    """One running service: the engine's supervisor and the dispatcher in front of it."""

    def __init__(self, settings: Settings, paths: Paths, *, roots: HostRoots | None = None) -> None:
        self.settings = settings
        self.feedback = Feedback()
        self._golden = GoldenGate(paths.state)
        self._throughput = Throughput(paths.state)
        self._cpu = read_cpu(roots)
        board = BoardFacts(usable_threads=self._cpu.threads)
        draft = find_draft_model(settings, paths.models)
        free_bytes = effective_memory(roots).headroom_bytes - draft_bytes(draft, settings.engine)
        plans = self._plans(find_models(settings, paths.models), board, free_bytes, draft)
        self.supervisor = EngineSupervisor(
            EngineLifecycle(load_deadline_s=load_deadline_s(plans), step_deadline_s=settings.engine.step_deadline_s),
            load=self._load,
            on_message=self._on_message,
            on_up=self._on_up,
            on_down=self._on_down,
            on_failed=self._on_failed,
        )
        self.dispatcher = Dispatcher(
            plans,
            aliases=settings.models.aliases,
            max_queue=settings.server.max_queue,
            feedback=self.feedback,
            engine=self.supervisor,
            schedule=settings.schedule,
            kv=settings.kv,
            files=SlotFiles(paths.state / "kv", roots=roots),
        )
        self.loader = ModelLoader(self.dispatcher, self._admit)

    def metrics(self) -> Metrics:
        """Instruments that read this service's numbers when they are asked."""
        metrics = Metrics()
        process, supervisor = psutil.Process(), self.supervisor
        metrics.watch_memory(
            service_rss_bytes=lambda: process.memory_info().rss,
            engine_rss_bytes=lambda: supervisor.heartbeat.rss_bytes if supervisor.heartbeat else 0,
            kv_bytes=self.dispatcher.kv_resident_bytes,
            run_pool=lambda: supervisor.heartbeat.run_pool if supervisor.heartbeat else PoolUse(),
        )
        metrics.watch_runs(self.feedback.runs.figures)
        metrics.watch_load(
            running=lambda: self.dispatcher.running,
            queued=lambda: self.dispatcher.waiting,
            engine_restarts=lambda: supervisor.lifecycle.restarts,
        )
        return metrics

    async def stop(self) -> None:
        """End the engine and give the KV memory back."""
        await self.supervisor.stop()
        await self.dispatcher.close()

    def _plans(
        self, models: list[ModelDescription], board: BoardFacts, free_bytes: int, draft: ModelDescription | None
    ) -> list[ModelPlan]:
        """Plans that fit together. The chat model must fit; another one that does not is left out and reported.

        `draft` drafts for the chat model.
        """

        def wish(model: ModelDescription) -> Strategy:
            return default_strategy(board, self.settings.engine, model.decoder, self.settings.kv)

        fitted = fit_together(models, wish, free_bytes)
        for model, error in fitted.left_out:
            log.error("model left out", extra={"fields": {"model": model.name, "reason": str(error)}})
        for model, strategy in fitted.served:
            if strategy.context_length != wish(model).context_length:
                log.warning(
                    "context shortened to fit the memory",
                    extra={
                        "fields": {
                            "model": model.name,
                            "wished": wish(model).context_length,
                            "context": strategy.context_length,
                            "slots": strategy.slots,
                            "free_mb": free_bytes // 1_000_000,
                        }
                    },
                )
        share = self.settings.kv.share_prefixes
        plans = []
        for model, strategy in fitted.served:
            served, adapters = with_adapters(model)
            plans.append(ModelPlan(served, strategy, adapters=adapters, share_prefixes=share))
        if plans and plans[0].strategy.max_draft:
            plans[0].draft = draft
        return plans

    # --- what the supervisor tells ---

    async def _load(self, link: EngineLink) -> ModelsReady | LoadFailed:
        return await self.loader.load_all(link)

    async def _admit(self, plan: ModelPlan, graph_file: str, engine: FreshEngine) -> MagnitudeError | None:
        hello = self.supervisor.hello
        ort_version = hello.ort_version if hello else ""
        failure = await self._golden.admit(
            plan, engine, graph_file=graph_file, ort_version=ort_version, cpu_features=self._cpu.features
        )
        if failure is None:
            await self._throughput.measure(plan, engine, ort_version=ort_version, cpu_features=self._cpu.features)
        return failure

    def _on_message(self, message: ToService) -> None:
        if isinstance(message, Steps):
            self.feedback.runs.add(message)
        elif not self.loader.on_message(message):
            self.dispatcher.on_message(message)

    def _on_up(self, link: EngineLink) -> None:
        self.dispatcher.engine_up(link)

    def _on_down(self, reason: str) -> None:
        self.dispatcher.engine_down(reason)

    def _on_failed(self, reason: str) -> None:
        self.dispatcher.refuse_all(
            EngineNotReady(f"the engine cannot serve: {reason}", hint="See 'magnitude doctor', then restart")
        )


async def _report_text_problems(models: Sequence[ModelDescription], texts: TextCatalogue) -> None:
    """A missing template or a broken tokenizer is said at start, not at the first request."""
    for model in models:
        for problem in await asyncio.to_thread(texts.problems, model):
            log.warning("text of a model is not in order", extra={"fields": {"model": model.name, "reason": problem}})


async def _say_farewell(dispatcher: Dispatcher, stop: asyncio.Event) -> None:
    await stop.wait()
    await asyncio.sleep(GRACEFUL_S - FAREWELL_S)
    dispatcher.refuse_all(
        EngineNotReady("the service is being stopped", hint="Send the request again once it is back")
    )


async def _serve(settings: Settings, paths: Paths, environ: MutableMapping[str, str]) -> None:
    sockets = open_sockets(settings.server, environ, run_folder=paths.run)
    service = Service(settings, paths)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = service.metrics()
    texts = TextCatalogue()
    app = build_app(service.dispatcher, settings, texts=texts, metrics=metrics)
    addresses = ", ".join(listening.address for listening in sockets)
    watch = loop.create_task(service.supervisor.run())
    keeping = loop.create_task(service.dispatcher.conversations.run())
    # Tokenizers are read while the engine starts, so that the first request does not wait for them.
    reading = loop.create_task(_report_text_problems(service.dispatcher.models(), texts))
    farewell = loop.create_task(_say_farewell(service.dispatcher, stop))
    # A supervision that ended by an error of its own must take the service down, not leave it without an engine.
    watch.add_done_callback(lambda _: stop.set())
    try:
        await serve(
            app,
            sockets,
            server=settings.server,
            metrics=metrics,
            stop=stop,
            graceful_s=GRACEFUL_S,
            on_started=lambda: log.info(
                "listening", extra={"fields": {"addresses": addresses, "version": __version__, "pid": os.getpid()}}
            ),
        )
    finally:
        failed = watch.done() and not watch.cancelled() and watch.exception()
        for task in (watch, reading, farewell, keeping):
            task.cancel()
        await service.stop()
        log.info("stopped")
    if failed:
        raise failed


def prepare_state_folder(folder: Path) -> None:
    """Make `folder`. Without one the service runs as well: what it learns is lost at its end, and it says so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning(
            "there is no state folder, nothing is kept over a restart",
            extra={"fields": {"folder": str(folder), "error": error.strerror or str(error)}},
        )


def run_service(settings: Settings, *, environ: MutableMapping[str, str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises `MagnitudeError` when the service cannot start."""
    environ = os.environ if environ is None else environ
    paths = find_paths(environ)
    prepare_state_folder(paths.state)
    asyncio.run(_serve(settings, paths, environ))
