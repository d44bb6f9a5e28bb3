"""A service's instruments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from magnitude.engine.protocol import PoolUse
from magnitude.feedback.metrics import Metrics

if TYPE_CHECKING:
    from magnitude.service import Service


def metrics_of(service: Service) -> Metrics:
    """Instruments that read this service's numbers when they are asked."""
    metrics = Metrics()
    process, supervisor = psutil.Process(), service.supervisor
    metrics.watch_memory(
        service_rss_bytes=lambda: process.memory_info().rss,
        engine_rss_bytes=lambda: supervisor.heartbeat.rss_bytes if supervisor.heartbeat else 0,
        kv_bytes=service.dispatcher.kv_resident_bytes,
        run_pool=lambda: supervisor.heartbeat.run_pool if supervisor.heartbeat else PoolUse(),
    )
    metrics.watch_memory_steps(service.memory.state)
    metrics.watch_board(service.board.view)
    metrics.watch_runs(service.feedback.runs.figures)
    metrics.watch_operators(service.operators.figures, service.counters.state)
    if service.strategies is not None:
        metrics.watch_strategies(service.strategies.state)
    metrics.watch_load(
        running=lambda: service.dispatcher.running,
        queued=lambda: service.dispatcher.waiting,
        engine_restarts=lambda: supervisor.lifecycle.restarts,
    )
    return metrics
