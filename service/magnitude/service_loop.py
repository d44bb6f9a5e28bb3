"""The service's main loop: opens the sockets, runs the parts until it is told to stop, tells the service manager."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnitude import __version__
from magnitude.board.oom_score import protect_from_oom
from magnitude.board.process_memory import read_process, read_storage_bytes
from magnitude.board.profiles import load_profile
from magnitude.board.roots import HostRoots
from magnitude.config import Settings
from magnitude.config.load import Loaded
from magnitude.errors import ConfigError, EngineNotReady, MagnitudeError
from magnitude.intake.app import build_app
from magnitude.intake.live import LiveSettings
from magnitude.intake.serve import serve
from magnitude.intake.sockets import open_sockets
from magnitude.models.description import ModelDescription
from magnitude.paths import Paths, find_paths
from magnitude.reload import Reloader
from magnitude.schedule.dispatcher import Dispatcher
from magnitude.schedule.kept_memory import KeptMemory
from magnitude.service import Service
from magnitude.supervise.cgroup_leaf import EngineCgroup, enter_leaf
from magnitude.supervise.exit_status import EXIT_BROKEN, EXIT_ENGINE_BUDGET_SPENT
from magnitude.supervise.inherited import InheritedFd, take_inherited
from magnitude.supervise.last_words import speak_when_killed
from magnitude.supervise.lifecycle import EngineLifecycle, Phase
from magnitude.supervise.load_progress import LoadSample
from magnitude.supervise.notify import Notifier
from magnitude.supervise.restart_job import restart_follows
from magnitude.supervise.status_line import StatusFacts
from magnitude.supervise.stopping import Stopping
from magnitude.supervise.teller import Look, Teller
from magnitude.supervise.watchdog import EngineView
from magnitude.text.catalogue import TextCatalogue

if TYPE_CHECKING:
    from magnitude.simulate.live import LiveBoard, SimulateOptions

log = logging.getLogger("magnitude.service")

# How long open requests may go on after SIGTERM: a third of the time that the unit gives a stop (TimeoutStopSec=). A
# person at a terminal or a board that loses power soon does not wait longer; most answers end within it.
GRACEFUL_S = 10.0
# So long before that, what is still open is ended with an error that its client can read.
FAREWELL_S = 1.0


def run_service(
    settings: Settings,
    *,
    environ: MutableMapping[str, str] | None = None,
    read: Callable[[], Loaded] | None = None,
    roots: HostRoots | None = None,
    simulate: SimulateOptions | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, on the board described below `roots`; the exit status. `read` reads the
    configuration again at a SIGHUP; without it there is no reload. `simulate`: heat, clocks and speed are those of a
    simulated board. Raises `MagnitudeError` when the service cannot start."""
    environ = os.environ if environ is None else environ
    speak_when_killed()
    notifier = Notifier.from_environ(environ)
    inherited = take_inherited(environ)
    paths = find_paths(environ)
    prepare_state_folder(paths.state)
    simulated = _simulated_board(simulate, paths.run) if simulate is not None else None
    engine_cgroup = enter_leaf(roots)
    try:
        return asyncio.run(
            _serve(
                settings,
                paths,
                notifier,
                inherited,
                read,
                engine_cgroup=engine_cgroup,
                roots=roots,
                simulated=simulated,
            )
        )
    except MagnitudeError as error:
        notifier.status(f"failed: {error}")
        raise
    finally:
        notifier.close()
        if simulated is not None:
            simulated.close()


async def _serve(
    settings: Settings,
    paths: Paths,
    notifier: Notifier,
    inherited: Sequence[InheritedFd],
    read: Callable[[], Loaded] | None,
    *,
    engine_cgroup: EngineCgroup,
    roots: HostRoots | None,
    simulated: LiveBoard | None,
) -> int:
    sockets = open_sockets(settings.server, inherited, run_folder=paths.run)
    protect_from_oom(roots)
    stored = [one for one in inherited if not one.is_socket]
    kept = KeptMemory(notifier, stored, returns=partial(restart_follows, roots=roots) if notifier.active else None)
    service = Service(settings, paths, roots=roots, engine_cgroup=engine_cgroup, kept=kept, simulated=simulated)
    live, metrics, stopping = LiveSettings(settings), service.metrics(), service.stopping
    app = build_app(
        service.dispatcher,
        live,
        texts=service.texts,
        metrics=metrics,
        records=service.recorder.store,
        strategies=service.strategies,
    )
    accepting = asyncio.Event()
    teller = Teller(notifier, lambda: look_at(service, accepting), on_failed=_gives_up(notifier, stopping))
    if read is not None:
        live.reload = Reloader(read, live=live, service=service, sockets=sockets, teller=teller).reload
    tasks = _Tasks(stopping)
    tasks.essential("supervision", service.supervisor.run())
    tasks.essential("saving conversations", service.dispatcher.conversations.run())
    tasks.essential("watching memory", service.memory.run())
    tasks.essential("watching the board", service.board.run())
    if simulated is not None:
        tasks.essential("simulating the board", service.simulate())
    if notifier.active:
        tasks.essential("telling the service manager", teller.run())
    # Tokenizers are read while the engine starts, so that the first request does not wait for them.
    tasks.start(_report_text_problems(service.loaded_at_start(), service.texts))
    tasks.start(_say_farewell(service.dispatcher, stopping, teller))
    _handle_signals(stopping, live, tasks)

    def started() -> None:
        accepting.set()
        addresses = ", ".join(listening.address for listening in sockets)
        log.info("listening", extra={"fields": {"addresses": addresses, "version": __version__, "pid": os.getpid()}})

    try:
        await serve(
            app,
            sockets,
            server=settings.server,
            metrics=metrics,
            stop=stopping.asked,
            graceful_s=GRACEFUL_S,
            on_started=started,
        )
    finally:
        tasks.cancel()
        await service.stop()
        log.info("stopped")
    return stopping.status


class _Tasks:
    """What runs beside the HTTP server. One that nothing works without takes the service down when it ends by an
    error of its own: to be started anew is better than to go on without it."""

    def __init__(self, stopping: Stopping) -> None:
        self._stopping = stopping
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def essential(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        def ended(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                return
            log.error("%s ended", name, exc_info=task.exception())
            self._stopping.ask(f"{name} ended", EXIT_BROKEN)

        self.start(work).add_done_callback(ended)

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def _handle_signals(stopping: Stopping, live: LiveSettings, tasks: _Tasks) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.ask, f"{number.name} received")
    reload = live.reload
    if reload is None or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # `nohup` wants it ignored
        return
    if sys.stdin is not None and sys.stdin.isatty():
        loop.add_signal_handler(signal.SIGHUP, stopping.ask, "the terminal was closed")
    else:
        loop.add_signal_handler(signal.SIGHUP, lambda: tasks.start(reload()))


def _gives_up(notifier: Notifier, stopping: Stopping) -> Callable[[str], None]:
    """What follows when no engine will come. Under a service manager the service leaves: the next start may find
    another installation or other files. Without one it stays and tells every client why."""

    def given_up(reason: str) -> None:
        if notifier.active:
            stopping.ask(f"the engine cannot serve: {reason}", EXIT_ENGINE_BUDGET_SPENT)

    return given_up


def look_at(service: Service, accepting: asyncio.Event) -> Look:
    """How the service is now. `accepting` is set once its sockets are."""
    supervisor = service.supervisor
    lifecycle, heartbeat, pid = supervisor.lifecycle, supervisor.heartbeat, supervisor.pid
    up = lifecycle.phase is Phase.UP
    health = service.dispatcher.health()
    steps = heartbeat.steps if heartbeat else 0
    read_bytes = rss_bytes = 0
    if pid is not None and not up:
        memory = read_process(HostRoots(), pid)
        read_bytes, rss_bytes = read_storage_bytes(HostRoots(), pid), memory.resident_bytes if memory else 0
    models = service.loaded_at_start()
    return Look(
        engine=EngineView(
            pid=pid,
            phase=lifecycle.phase.value,
            steps=steps,
            work=health.running > 0 or bool(heartbeat and heartbeat.open_requests),
            patience_s=lifecycle.patience_s,
            load_until_s=lifecycle.load_until_s,
        ),
        load=LoadSample(
            pid,
            lifecycle.phase.value,
            read_bytes=read_bytes,
            rss_bytes=rss_bytes,
            steps=steps,
        ),
        facts=StatusFacts(
            model=models[0].name if models else "",
            further_models=max(0, len(models) - 1),
            running=health.running,
            waiting=health.queue_depth,
            engine="" if up else _engine_in_words(lifecycle, rss_bytes),
            temp_c=service.board.temp_c,
            simulated=service.simulated.profile.name if service.simulated is not None else "",
            memory=service.memory.step_text(),
            # The first reason is the engine's then.
            degraded="; ".join(health.reasons if up else health.reasons[1:]),
        ),
        serves=accepting.is_set() and up,
        failed=lifecycle.reason if lifecycle.phase is Phase.FAILED else "",
        generated_tokens=service.feedback.generated_tokens,
    )


def _engine_in_words(lifecycle: EngineLifecycle, rss_bytes: int) -> str:
    """What an engine that does not serve is doing."""
    loaded = f", {rss_bytes // 1_000_000} MB in memory" if rss_bytes and lifecycle.phase is Phase.LOADING else ""
    return f"engine {lifecycle.phase.value}: {lifecycle.reason}{loaded}"


async def _report_text_problems(models: Sequence[ModelDescription], texts: TextCatalogue) -> None:
    """A missing template or a broken tokenizer is said at start, not at the first request."""
    for model in models:
        for problem in await asyncio.to_thread(texts.problems, model):
            log.warning("text of a model is not in order", extra={"fields": {"model": model.name, "reason": problem}})


async def _say_farewell(dispatcher: Dispatcher, stopping: Stopping, teller: Teller) -> None:
    await stopping.asked.wait()
    teller.stopping(stopping.reason)
    await asyncio.sleep(GRACEFUL_S - FAREWELL_S)
    dispatcher.refuse_all(
        EngineNotReady("the service is being stopped", hint="Send the request again once it is back")
    )


def _simulated_board(options: SimulateOptions, run_folder: Path) -> LiveBoard:
    from magnitude.simulate.live import LiveBoard

    profile = load_profile(options.board)
    try:
        simulated = LiveBoard(profile, options, run_folder / "simulated-board")
    except OSError as error:
        raise ConfigError(
            f"the simulated board's files cannot be written below {run_folder}: {error.strerror or error}",
            hint="Set MAGNITUDE_HOME to a folder that this user may write to",
        ) from error
    simulated.announce()
    return simulated


def prepare_state_folder(folder: Path) -> None:
    """Make `folder`. Without one the service runs as well: what it learns is lost at its end, and it says so."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning(
            "there is no state folder, nothing is kept over a restart",
            extra={"fields": {"folder": str(folder), "error": error.strerror or str(error)}},
        )
