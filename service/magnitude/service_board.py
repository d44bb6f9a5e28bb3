"""What sees the board, and what governs its heat and supply: built for a service."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from magnitude.board.cap_files import CapFiles
from magnitude.board.clock_caps import CapOutcome, ClockCaps
from magnitude.board.event_source import UdevSource
from magnitude.board.events import DeviceEvent, DeviceEvents
from magnitude.board.sampler import Sampler
from magnitude.paths import Paths
from magnitude.schedule.phase_meter import LoadLooks
from magnitude.schedule.plan import ModelPlan
from magnitude.supervise.board_watch import BoardWatch
from magnitude.supervise.cap_thread import CapThread
from magnitude.supervise.permissions import PermissionRequests

if TYPE_CHECKING:
    from magnitude.service import Service


def watch_board(service: Service, paths: Paths, plan: ModelPlan) -> tuple[Sampler, BoardWatch]:
    """What sees the board, and what governs its heat and supply."""
    settings, simulated, roots, profile = service.settings, service.simulated, service.board_roots, service.profile
    sampler = Sampler(
        roots,
        profile,
        period_s=settings.board.sensor_period_ms / 1000,
        engine_pid=lambda: service.supervisor.pid,
    )
    permissions = PermissionRequests(paths.run)
    run_folder = simulated.run_folder if simulated is not None else paths.run

    def ask(refused: Path) -> None:
        permissions.ask(refused, time.monotonic())

    def caps(told: Callable[[CapOutcome], None]) -> CapThread:
        return CapThread(partial(ClockCaps, roots, run_folder, ask_permission=ask), told)

    dispatcher = service.dispatcher
    devices = DeviceEvents(partial(UdevSource, roots), partial(_device_told, sampler))
    watch = BoardWatch(
        settings.thermal,
        settings.power,
        profile=profile,
        eyes=sampler,
        caps=caps,
        load=LoadLooks(dispatcher.work, lambda: (dispatcher.running, dispatcher.waiting)),
        pace=lambda share: service.pace.set("governor", share, share),
        limit=dispatcher.limit_generations,
        # Neither threads nor devices of this machine are a simulated board's.
        threads=profile.prefill_threads if simulated is not None else plan.provision.threads,
        devices=devices if simulated is None else None,
        ask_permission=lambda policies: ask(CapFiles(roots).limit_path(policies[0])),
        simulated=simulated is not None,
        speed=simulated.options.speed if simulated is not None else 1.0,
        told=service.recorder.board_decided,
    )
    return sampler, watch


def _device_told(sampler: Sampler, event: DeviceEvent) -> None:
    """A device that came or went is looked for; one that has changed is looked at."""
    if event.action == "change":
        sampler.hurry()
    else:
        sampler.changed()
