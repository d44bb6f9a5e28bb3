"""The verb of `scripts/bench` about instructions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bench.command import CHAT_MODEL, Json, console, home, models_folder, write_json


def register(app: typer.Typer) -> None:
    app.command()(instructions)


def instructions(
    model: Annotated[Path | None, typer.Option(help="A model folder; unset: the embedded chat model.")] = None,
    arm: Annotated[
        Path | None, typer.Option(help="What scripts/emulated-arm made; unset: in MAGNITUDE_HOME.")
    ] = None,
    json: Json = None,
) -> None:
    """Instructions of one token on Arm, counted under an emulator: kernel plans beside the serving graph."""
    from bench.instructions import EmulationFailed, measure_instructions

    folder = (model or models_folder() / CHAT_MODEL).absolute()
    with console.status("") as status:
        try:
            found = measure_instructions(
                folder, (arm or home() / "cache/emulated-arm").absolute(), progress=status.update
            )
        except EmulationFailed as error:
            console.print(f"[red]{error}[/red]", soft_wrap=True)
            raise typer.Exit(1) from error
    table = Table(
        "millions a token", "run", "graph", "all", "loads, stores", "vector", "dot", "matrix", title=folder.name
    )
    for row in found:
        millions = [f"{value / 1e6:.2f}" for value in (row.counts.memory, row.counts.vector)]
        millions += [f"{value / 1e6:.2f}" for value in (row.counts.dot, row.counts.matrix)]
        name = f"{row.graph} {row.instruction_set}".strip()
        table.add_row(row.processor, row.run, name, f"{row.counts.all / 1e6:.1f}", *millions)
    console.print(table)
    write_json(json, instructions=found)
