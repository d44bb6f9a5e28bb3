"""`magnitude ps`: what is running, and what it holds."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption, reach_service

if TYPE_CHECKING:
    from magnitude.schedule.inference import ServiceState


WIDE = 240


def register(app: typer.Typer) -> None:
    app.command("ps")(ps)


def ps(
    config: ConfigOption = None, url: UrlOption = None, api_key: KeyOption = None, as_json: JsonOption = False
) -> None:
    """Show the running service: its models, memory and queue. Exit status 1 when it is not ready."""
    import msgspec

    from magnitude.schedule.inference import ServiceState

    with reach_service(config, url, api_key) as client:
        raw = client.get("/v1/magnitude/state")
        where = str(client.address)
    if as_json:
        typer.echo(json.dumps(raw, indent=2))
        raise typer.Exit(0 if raw.get("health", {}).get("ready") else 1)
    state = msgspec.convert(raw, ServiceState)
    show(state, where)
    raise typer.Exit(0 if state.health.ready else 1)


def show(state: ServiceState, where: str) -> None:
    """Print `state` for a person."""
    from rich.console import Console
    from rich.table import Table

    from magnitude.cli.numbers import age, size

    # A pipe has no width: lines for `grep` must not be folded at an imagined 80 columns.
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
    health = state.health
    console.print(f"magnitude {state.version} at {where}, up {age(health.uptime_s)}, ", end="")
    console.print("ready" if health.ready else "not ready", style="green" if health.ready else "bold red")
    for reason in health.reasons:
        console.print(f"  {reason}", style="red", markup=False)
    engine = f"pid {health.engine_pid}" if health.engine_pid else "no process"
    console.print(
        f"engine {state.engine_phase} ({engine}), restarts {health.engine_restarts}, steps {state.engine_steps}, "
        f"running {health.running}, waiting {health.queue_depth}"
    )
    console.print(f"memory: engine {size(state.engine_rss_bytes)}, service {size(state.service_rss_bytes)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("MODEL", "KIND", "WEIGHTS", "THREADS", "SLOTS", "CONTEXT", "KV", "KV IN USE", "STATE"):
        left = heading in ("MODEL", "KIND", "KV", "STATE")
        table.add_column(heading, justify="left" if left else "right")
    for model in state.models:
        table.add_row(
            model.name,
            model.kind,
            size(model.weight_bytes),
            str(model.threads),
            str(model.slots) if model.kv_type else "-",
            str(model.context_tokens) if model.kv_type else "-",
            model.kv_type or "-",
            f"{size(model.kv_resident_bytes)} of {size(model.kv_reserved_bytes)}" if model.kv_type else "-",
            model.failure or "serving",
        )
    console.print(table)
    for name, figures in state.figures.items():
        console.print(
            f"{name}: {figures.count} done, {figures.failed} failed, {figures.cancelled} cancelled; "
            f"prefill {figures.prefill_tokens_per_s:.0f} and decode {figures.decode_tokens_per_s:.1f} tokens/s; "
            f"queue P95 {figures.queue_p95_s:.3f} s; run P50 {figures.run_p50_s:.3f} s, "
            f"P95 {figures.run_p95_s:.3f} s",
            markup=False,
        )
