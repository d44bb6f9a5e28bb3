"""The verb of `scripts/bench` about fusion plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.command import CHAT_MODEL, Json, console, models_folder, write_json
from bench.machine import read_machine
from bench.report import print_machine


def register(app: typer.Typer) -> None:
    app.command()(fusion)


def fusion(
    model: Annotated[Path | None, typer.Option(help="A model folder; unset: the embedded chat model.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 15,
    json: Json = None,
) -> None:
    """Time of a model's fusion plans, by number of threads, against its own graph."""
    from bench.fusion import plan_costs
    from magnitude.models.catalogue import open_folder

    machine = read_machine()
    print_machine(console, machine)
    described = open_folder(model or models_folder() / CHAT_MODEL)
    if not described.graphs:
        console.print(f"[red]{described.name} has no fusion plans.[/red] Import it again.")
        raise typer.Exit(1)
    with console.status("") as status:
        costs = [
            cost
            for threads in dict.fromkeys((machine.threads, 1))
            for cost in plan_costs(
                described, described.graphs, threads=threads, rounds=rounds, progress=status.update
            )
        ]
    table = Table(box=SIMPLE_HEAD)
    for column in ("threads", "run", "own graph, ms", "plan", "time", "processor time", "equal"):
        table.add_column(column, overflow="fold")
    for cost in costs:
        ratios = (f"{s.median:.2f} ({s.low:.2f} to {s.high:.2f})" for s in (cost.ratio, cost.processor_ratio))
        equal = "to the bit" if cost.equal else "no"
        table.add_row(str(cost.threads), cost.run, f"{cost.own_ms:.1f}", cost.graph_file, *ratios, equal)
    console.print(table)
    write_json(json, costs=costs)
