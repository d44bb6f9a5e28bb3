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
from magnitude.errors import EngineNotReady, MagnitudeError
from magnitude.feedback.metrics import Metrics
from magnitude.feedback.records import Feedback
from magnitude.intake.app import build_app
from magnitude.intake.serve import serve
from magnitude.intake.sockets import open_sockets
from magnitude.models.description import ModelDescription
from magnitude.paths import Paths, find_paths
from magnitude.policy.selection import find_draft_model, find_models, select
from magnitude.policy.strategy import BoardFacts, draft_bytes
from magnitude.schedule.arbiter import Arbiter, MayUse, Want
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.golden_gate import GoldenGate
from magnitude.schedule.loading import ModelLoader, load_deadline_s
from magnitude.schedule.model_switch import ModelSwitch
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.planning import plan_models, residency_of
from magnitude.schedule.slot_files import SlotFiles
from magnitude.schedule.throughput import Throughput
from magnitude.supervise.lifecycle import EngineLifecycle, LoadFailed, ModelsReady
from magnitude.supervise.loss import EngineLoss
from magnitude.supervise.supervisor import EngineSupervisor
from magnitude.text.catalogue import TextCatalogue

log = logging.getLogger("magnitude.service")

# How long open requests may go on after SIGTERM. systemd gives 90 s before it kills, but a person at a terminal or
# a board that loses power soon does not wait so long; most answers end within it.
GRACEFUL_S = 10.0
# So long before that, what is still open is ended with an error that its client can read.
FAREWELL_S = 1.0


# A spare engine is kept while so much memory is free besides: ten times what it takes itself, so that it is never the
# reason why something else does not fit.
SPARE_HEADROOM_BYTES = 300_000_000

# The engine's name in the account of cores and memory.
ENGINE = "engine"


class Service:
    """One running service: the engine's supervisor and the dispatcher in front of it."""

    def __init__(self, settings: Settings, paths: Paths, *, roots: HostRoots | None = None) -> None:
        self.settings = settings
        self.feedback = Feedback()
        self._golden = GoldenGate(paths.state)
        self._throughput = Throughput(paths.state)
        self._cpu = read_cpu(roots)
        allowance = self._allowance(effective_memory(roots).headroom_bytes)
        board = BoardFacts(usable_threads=allowance.threads)
        draft = find_draft_model(settings, paths.models)
        free_bytes = allowance.memory_bytes - draft_bytes(draft, settings.engine)
        selection = select(settings, find_models(settings, paths.models))
        plans, left_out = plan_models(settings, selection, board, free_bytes, draft)
        if not plans:
            raise next(iter(left_out.values()))
        self._start = [plan for plan in plans if plan.stay != "on_demand"]
        self._first: set[str] = set()  # models that the engine loaded before it was up
        self.texts = TextCatalogue()
        self.supervisor = EngineSupervisor(
            EngineLifecycle(
                load_deadline_s=load_deadline_s(self._start), step_deadline_s=settings.engine.step_deadline_s
            ),
            load=self._load,
            on_message=self._on_message,
            on_up=self._on_up,
            on_down=self._on_down,
            on_failed=self._on_failed,
            spare_wanted=lambda: effective_memory(roots).headroom_bytes > SPARE_HEADROOM_BYTES,
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
            left_out=left_out,
        )
        self.loader = ModelLoader(self.dispatcher, self._admit)
        self.switch = ModelSwitch(
            residency_of(plans, free_bytes=free_bytes, keep_alive_s=settings.models.keep_alive_s),
            self.loader,
            plans,
            changed=self.dispatcher.models_changed,
            refuse=self.dispatcher.refuse,
            leaving=self._leaving,
            loading=self.supervisor.model_loads,
        )
        self.dispatcher.use(self.switch)

    def _allowance(self, free_bytes: int) -> MayUse:
        """What the engine may draw from the board's one account of cores and memory. It is the only engine so far and
        gets all of it; a second one would have to ask for a share."""
        self.arbiter = Arbiter(threads=self._cpu.threads, memory_bytes=free_bytes)
        wanted = Want(ENGINE, threads=self._cpu.threads, memory_bytes=free_bytes)
        granted = [effect for effect in self.arbiter.apply(wanted) if isinstance(effect, MayUse)]
        return granted[0] if granted else MayUse(ENGINE, threads=1, memory_bytes=0)

    def loaded_at_start(self) -> list[ModelDescription]:
        return [plan.description for plan in self._start]

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
        await self.switch.close()
        await self.dispatcher.close()

    # --- what the supervisor tells ---

    async def _load(self, link: EngineLink) -> ModelsReady | LoadFailed:
        await self.switch.settled()
        # Where requests wait to go on, what they need comes first; the other models follow while they do.
        at_start = {plan.description.name for plan in self._start}
        self._first = self.dispatcher.begun_models() or at_start
        outcome = await self.loader.load_all(link, only=self._first)
        if isinstance(outcome, LoadFailed) and self._first != at_start:
            self._first = at_start  # one model's trouble is not the others'
            outcome = await self.loader.load_all(link, only=self._first)
        return outcome

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
        plans = {plan.description.name: plan for plan in self.dispatcher.plans()}
        failed = {name: str(plans[name].failure) for name in self._first if plans[name].failure}
        self.switch.engine_up(link, [name for name in self._first if name not in failed], failed)
        for plan in self._start:
            if plan.description.name not in self._first:
                self.switch.wanted(plan.description.name)

    def _on_down(self, loss: EngineLoss) -> None:
        self.switch.engine_down()
        self.dispatcher.engine_down(loss)

    async def _leaving(self, model: str) -> None:
        self.texts.forget(self.dispatcher.model(model))
        await self.dispatcher.conversations.leave(model)

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
    app = build_app(service.dispatcher, settings, texts=service.texts, metrics=metrics)
    addresses = ", ".join(listening.address for listening in sockets)
    watch = loop.create_task(service.supervisor.run())
    keeping = loop.create_task(service.dispatcher.conversations.run())
    # Tokenizers are read while the engine starts, so that the first request does not wait for them.
    reading = loop.create_task(_report_text_problems(service.loaded_at_start(), service.texts))
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
