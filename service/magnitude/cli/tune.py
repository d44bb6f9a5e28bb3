"""`magnitude tune`: compare all ways to run a model on this board, and keep the best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.models_folder import ModelsFolderOption, models_folder
from magnitude.cli.options import ConfigOption, JsonOption
from magnitude.errors import ConfigError

if TYPE_CHECKING:
    from magnitude.config import Settings
    from magnitude.models.description import ModelDescription
    from magnitude.policy.learned import Binding, Learned, Verified
    from magnitude.policy.terms import BoardSeen
    from magnitude.schedule.plan import ModelPlan
    from magnitude.tuning.kept import SweepFile
    from magnitude.tuning.sweep import Sweep


def register(app: typer.Typer) -> None:
    app.command("tune")(tune)


def tune(
    model: Annotated[str, typer.Argument(help="Name or folder of the model.", show_default=False)],
    *,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw what was compared (.png, .svg or .pdf).")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on with an interrupted sweep.")] = False,
    dry: Annotated[bool, typer.Option("--dry", help="Compare and report, but keep nothing.")] = False,
    session_mb: Annotated[
        int | None,
        typer.Option("--session-memory", metavar="MB", min=1, help="Leave out sessions that take more than this."),
    ] = None,
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare all ways to run a model in an engine of its own, and keep what is best on this board.

    In this order: memory of runs, threads, fusion plans, pieces of prompts; each stage goes on from the best of the
    one before. What was compared is kept, so that an interrupted sweep goes on where it was. Nothing else should run
    meanwhile: what is compared are times.
    """
    import asyncio

    from magnitude.cli.options import read_configuration
    from magnitude.cli.strategy_source import binding_here
    from magnitude.models.catalogue import find, open_folder
    from magnitude.paths import find_paths
    from magnitude.picture import can_plot
    from magnitude.schedule.planned_strategy import model_facts
    from magnitude.tuning.kept import SweepFile
    from magnitude.tuning.sweep import Sweep

    if plot is not None:
        can_plot(plot)
    settings = read_configuration(config).settings
    description = open_folder(find(models_folder(folder, config), model))
    _warn_beside_service(config)
    board = board_now()
    plan = plan_of(description, settings, board)
    binding = binding_here(description.name, description.model_hash, settings)
    kept = SweepFile(find_paths().cache, binding, board)
    if fresh:
        kept.remove()
    before = kept.load()
    sweep = Sweep(model_facts(plan), board, least_gain=settings.policy.least_gain, before=before.compared)
    if before.compared:
        typer.echo(f"going on from a sweep that was broken off, comparisons: {len(before.compared)}", err=True)
    session_bytes = session_mb * 1_000_000 if session_mb is not None else None
    try:
        verified = asyncio.run(_compare(plan, sweep, kept, before.verified, session_bytes))
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {len(sweep.compared)} comparisons are kept, the same command goes on", err=True)
        raise
    learned = outcome(binding, sweep, verified)
    _report(sweep, learned, plans=bool(description.graphs), as_json=as_json)
    if plot is not None:
        from magnitude.tuning.plot import plot as draw

        title = f"{description.name} on {binding.board}"
        draw(title, list(sweep.compared.values()), learned.entries, plot)
        typer.echo(f"drawn: {plot}", err=True)
    if dry:
        typer.echo("nothing was changed; without --dry it is kept", err=True)
        return
    _install(learned, config)
    kept.remove()


def board_now() -> BoardSeen:
    """The CPUs that this process, and so its engine, may use now. Clocks count as they are: a board that is limited
    should cool down first."""
    import os

    from magnitude.board.cpu import cpu_quota, engine_cpus, topology
    from magnitude.board.roots import HostRoots
    from magnitude.policy.terms import BoardSeen

    roots = HostRoots()
    cpus = engine_cpus(topology(roots), os.sched_getaffinity(0), cpu_quota(roots))
    return BoardSeen(cores=cpus.cores, usable=cpus.usable, big=cpus.big)


def plan_of(description: ModelDescription, settings: Settings, board: BoardSeen) -> ModelPlan:
    """The model as the service would load it, alone. Raises `BudgetExceeded` when it does not fit."""
    from magnitude.board.cpu import read_cpu
    from magnitude.board.memory import effective_memory
    from magnitude.kernels.library import kernels
    from magnitude.policy.provision import BoardFacts
    from magnitude.policy.selection import Selection
    from magnitude.schedule.planning import plan_models

    selection = Selection(at_start=(description,), pinned=frozenset([description.name]))
    facts = BoardFacts(usable_threads=read_cpu().threads, no_kernels=kernels.why_not())
    plans, _ = plan_models(settings, selection, facts, effective_memory().headroom_bytes)
    return plans[0]


async def _compare(
    plan: ModelPlan, sweep: Sweep, kept: SweepFile, verified: tuple[Verified, ...], session_bytes: int | None
) -> tuple[Verified, ...]:
    from functools import partial

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from magnitude.paths import find_paths
    from magnitude.supervise.engine_process import EngineProcess
    from magnitude.tuning.lone_engine import LoneEngine
    from magnitude.tuning.run import Tuning
    from magnitude.tuning.sweep import Step

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("[progress.description]{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=None)

        def told(step: Step, done: int, known: int) -> None:
            text = f"{step.stage}: {step.part} {step.key}: {step.challenger.choice_id}"
            bar.update(task, completed=done, total=known, description=text)
            if not console.is_terminal:
                typer.echo(f"{done + 1:3} of {known}: {text}", err=True)

        spawn = partial(EngineProcess.spawn, packed=find_paths().cache / "packed")
        async with LoneEngine(plan, spawn=spawn) as engine:
            tuning = Tuning(engine, sweep, session_bytes=session_bytes, verified=verified, told=told, keep=kept.save)
            await tuning.run()
    return tuple(tuning.verified.values())


def outcome(binding: Binding, sweep: Sweep, verified: tuple[Verified, ...]) -> Learned:
    """What the sweep found, as it is dumped."""
    import time

    from magnitude.policy.learned import Learned

    samples = sum(2 * one.pairs for one in sweep.compared.values())
    return Learned(
        binding=binding, entries=sweep.entries(), verified=verified, samples=samples, saved_at_s=time.time()
    )


def _report(sweep: Sweep, learned: Learned, *, plans: bool, as_json: bool) -> None:
    """The chosen way has a star. Costs are those of the model's own session times the ratio: what was compared at
    different moments is comparable so."""
    import sys

    import msgspec
    from rich.console import Console
    from rich.table import Table

    from magnitude.cli.strategy_show import WIDE, cost_in_words

    if as_json:
        report = {"learned": learned, "compared": list(sweep.compared.values())}
        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
        return
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
    for entry in learned.entries:
        mine = [one for one in sweep.compared.values() if (one.step.part, one.step.key) == (entry.part, entry.key)]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("", "STAGE", "WAY TO RUN", "RATIO", "±", "COST", "MEMORY", ""):
            table.add_column(heading, justify="right" if heading in ("RATIO", "±", "COST", "MEMORY") else "left")
        base = entry.evidence_of(mine[0].step.base)
        base_s = base.cost_s if base is not None else mine[0].base_s
        star = "*" if mine[0].step.base == entry.chosen else ""
        cost = cost_in_words(entry.part, base_s)
        table.add_row(star, "", mine[0].step.base.choice_id, "1.000", "", cost, "", "the model's own")
        for one in mine:
            name, star = one.step.challenger.choice_id, "*" if one.step.challenger == entry.chosen else ""
            if one.refused:
                table.add_row("", one.step.stage, name, "", "", "", "", f"left out: {one.refused}")
                continue
            memory = f"{one.added_bytes / 1e6:.0f} MB" if one.added_bytes else ""
            figures = (f"{one.ratio:.3f}", f"{one.error:.3f}", cost_in_words(entry.part, base_s * one.ratio), memory)
            table.add_row(star, one.step.stage, name, *figures, "")
        console.print(f"[bold]{entry.part}[/bold] at {entry.key}: {entry.chosen.choice_id}")
        console.print(table)
        console.print()
    if not plans:
        console.print("There are no fusion plans to compare: import the model again to have them made.")


def _install(learned: Learned, config: Path | None) -> None:
    """Give it to the running service, else to the files that a service here would use."""
    from magnitude.cli.strategy_source import open_source
    from magnitude.policy.dump_exchange import exported

    with open_source(config, None, None, None) as source:
        data = exported(learned, 0)
        changed = source.import_file(data, "what was tuned", model=learned.binding.model, as_prior=False)
    typer.echo(changed.text)


def _warn_beside_service(config: Path | None) -> None:
    from magnitude.cli.client import ServiceUnreachable
    from magnitude.cli.options import reach_service

    try:
        reach_service(config, None, None).close()
    except ServiceUnreachable:
        return
    except ConfigError:
        return
    typer.echo(
        "note: the service is running; what it computes meanwhile disturbs the comparison. "
        "Best stop it, tune, and start it again.",
        err=True,
    )
