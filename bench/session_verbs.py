"""The verb of `scripts/bench` about further sessions of a model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bench.command import CHAT_MODEL, Json, console, models_folder, write_json
from bench.machine import read_machine
from bench.report import print_machine


def register(app: typer.Typer) -> None:
    app.command()(sessions)


def sessions(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 15,
    json: Json = None,
) -> None:
    """Further sessions of a model: time and memory to make them, with and without the cache, and changing between
    them."""
    from bench.sessions import measure_sessions

    machine = read_machine()
    print_machine(console, machine)
    with tempfile.TemporaryDirectory() as cache, console.status("sessions"):
        costs = measure_sessions(models_folder() / CHAT_MODEL, machine.threads, rounds, Path(cache) / "packed")
    table = Table("session", "threads", "load, s", "own memory, MB", "equal to the bit")
    for made in costs.made:
        equal = "yes" if made.equal else "no"
        table.add_row(made.what, str(made.threads), f"{made.load_s:.2f}", f"{made.own_bytes / 1e6:.0f}", equal)
    console.print(table)
    console.print(f"cache on disk: {costs.cache_bytes / 1e6:.0f} MB")
    table = Table("run, and the other session", "after its own, ms", "after the other's, ms")
    for turn in costs.turns:
        table.add_row(turn.run, f"{turn.after_own_s * 1000:.1f}", f"{turn.after_other_s * 1000:.1f}")
    console.print(table)
    write_json(json, sessions=costs)
