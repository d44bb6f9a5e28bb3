"""`magnitude ps`: what is running, and what it holds."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption, reach_service

if TYPE_CHECKING:
    from magnitude.board.sim.told import SimulatedState
    from magnitude.feedback.records import TaskFigures
    from magnitude.policy.field_test import FieldTest
    from magnitude.schedule.figures import ModelFigures
    from magnitude.schedule.inference import ModelState, ServiceState
    from magnitude.schedule.slot_terms import KvFigures
    from magnitude.schedule.strategy_report import StrategyState
    from magnitude.supervise.recovery import Recovery


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
    if (recovery := state.engine_last_recovery) is not None:
        console.print(recovery_line(recovery, state.engine_last_loss), markup=False)
    console.print(f"memory: engine {size(state.engine_rss_bytes)}, service {size(state.service_rss_bytes)}")
    if (board := state.simulated_board) is not None:
        console.print(simulated_line(board), style="bold yellow", markup=False)
    for source, shares in state.pace.items():
        console.print(
            f"paced by {source}: prompts {shares.prefill:.0%}, answers {shares.decode:.0%} of the time", markup=False
        )
    if state.memory.step != "normal":
        console.print(f"memory is short: step {state.memory.step}; {state.memory.reason}", style="red", markup=False)
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
            model.failure or standing(model),
        )
    console.print(table)
    for model_name, strategy in state.strategy.items():
        if strategy.on or strategy.fault:
            console.print(strategy_line(model_name, strategy), markup=False)
    if (test := state.field_test).name:
        console.print(field_test_line(test), markup=False)
    for model_name, schedule in state.schedule.models.items():
        for line in schedule_lines(model_name, schedule):
            console.print(line, markup=False)
    if state.schedule.runs_running or state.schedule.runs_waiting:
        console.print(
            f"encoder and tensor runs: {state.schedule.runs_running} running, {state.schedule.runs_waiting} waiting"
        )
    for name, figures in state.figures.items():
        console.print(
            f"{name}: {figures.count} done, {figures.failed} failed, {figures.cancelled} cancelled; "
            f"prefill {figures.prefill_tokens_per_s:.0f} and decode {figures.decode_tokens_per_s:.1f} tokens/s; "
            f"queue P95 {figures.queue_p95_s:.3f} s; run P50 {figures.run_p50_s:.3f} s, "
            f"P95 {figures.run_p95_s:.3f} s{_extras(figures)}",
            markup=False,
        )


def simulated_line(board: SimulatedState) -> str:
    """What is not measured but computed."""
    clocks = ", ".join(f"{policy} {khz / 1000:.0f} MHz" for policy, khz in board.khz.items())
    return (
        f"SIMULATED board {board.board}: {board.temp_c:.1f} °C, {clocks}, {board.board_w:.1f} W "
        "(computed, nothing of it measured)"
    )


def recovery_line(recovery: Recovery, reason: str) -> str:
    """How the last engine was lost, and what replacing it took."""
    parts = (("start", recovery.start_s), ("load", recovery.load_s), ("first step", recovery.first_step_s))
    known = ", ".join(f"{name} {part_s:.2f}" for name, part_s in parts if part_s is not None)
    took = f"replaced in {recovery.total_s:.2f} s ({known})" if recovery.load_s is not None else "being replaced"
    return f"last engine lost: {reason or recovery.cause}; {took}, {recovery.open_requests} requests went on"


def strategy_line(name: str, strategy: StrategyState) -> str:
    """How a model is run, and what is being compared."""
    from magnitude.cli.numbers import age, size

    if strategy.fault:
        return f"{name}: strategy loop given up ({strategy.fault}); {strategy.in_words}"
    line = f"{name}: {strategy.in_words} (for {age(strategy.since_s)}, strategy {strategy.strategy_id})"
    for session in strategy.sessions:
        line += f"; session {session.session} {session.state}, {size(session.size_bytes)}"
    return line + (f"; comparing {strategy.experiment}" if strategy.experiment else "")


def field_test_line(test: FieldTest) -> str:
    """On which side of a field test the device is."""
    if not test.arm:
        return f"field test {test.name}: no part, {test.reason}"
    share = test.share if test.arm == "on" else 1 - test.share
    return f"field test {test.name}: strategy loop {test.arm}, as on {share:.0%} of the devices"


def standing(model: ModelState) -> str:
    """Whether the model is in memory, and how long it will be."""
    if model.residency == "loaded":
        return "serving, on request" if model.stay == "on_demand" else "serving"
    if model.residency == "absent":
        return "on request" if model.stay == "on_demand" else "not loaded"
    return model.residency


def schedule_lines(name: str, figures: ModelFigures) -> list[str]:
    """A model's slots, prefixes and conversations, a subject a line."""
    from magnitude.cli.numbers import size

    kv, capacity = figures.kv, figures.capacity
    waiting = ", ".join(f"{count} {priority}" for priority, count in figures.waiting.items() if count)
    lines = [
        f"{name}: KV slots {kv.running_slots} running, {kv.idle_slots} idle, {kv.free_slots} free; "
        f"{size(kv.resident_bytes)} of {size(kv.budget_bytes)} in {kv.resident_tokens} tokens",
        f"  compute slots: {figures.running} of {capacity.compute_slots} busy; waiting {waiting or 'none'}; "
        f"{figures.paused} paused, {figures.reserved} reserved, {figures.preemptions} preempted so far",
        f"  conversations: {capacity.alive} now, {capacity.limit:.1f} taken in freely, "
        f"{capacity.conversations:.1f} keep the compute slots busy; "
        f"{kv.saved_copies} saved ({size(figures.saved_bytes)})",
        f"  prefixes: {_hit_rate(kv)}; {kv.reused_tokens} tokens not computed again "
        f"({kv.copied_tokens} copied, {kv.restored_tokens} from disk), {kv.evictions} evicted",
    ]
    for segment in figures.segments:
        waits = f"waits {segment.wait_s:.2f} s ({segment.wait_samples})" if segment.wait_samples else "waits unknown"
        lines.append(
            f"  task {segment.task}: computes {segment.compute_s:.2f} s ({segment.compute_samples}), {waits}"
        )
    return lines


def _hit_rate(kv: KvFigures) -> str:
    misses = ", ".join(f"{reason} {count}" for reason, count in sorted(kv.misses.items()) if count)
    return f"{kv.hits} hits, {sum(kv.misses.values())} misses" + (f" ({misses})" if misses else "")


def _extras(figures: TaskFigures) -> str:
    """What is only said where there is something to say."""
    said = ""
    if figures.cached_share:
        said += f"; {figures.cached_share:.0%} of prompts cached"
    if figures.accepted_share:
        said += f"; {figures.accepted_share:.0%} of drafts right"
    if figures.batch:
        said += f"; batch {figures.batch:.1f}"
    return said
