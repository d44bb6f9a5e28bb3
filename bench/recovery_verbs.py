"""The verbs of `scripts/bench` about engines that are lost."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.table import Table

from bench.command import CHAT_MODEL, Json, console, leave_if, models_folder, write_json
from bench.machine import read_machine
from bench.report import print_machine

# The deadline for silence alone is 5 s: a few rounds show it.
HANG_ROUNDS = 3
PARTS = ("detect", "start", "load", "first step", "deliver")


def register(app: typer.Typer) -> None:
    app.command()(recycle)


def recycle(
    rounds: Annotated[int, typer.Option(min=1, help="Losses of each way.")] = 20,
    streams: Annotated[str, typer.Option(help="Numbers of streams, comma-separated.")] = "1,4",
    ways: Annotated[str, typer.Option(help="Only these ways, comma-separated; empty: all.")] = "",
    json: Json = None,
) -> None:
    """How long a stream stands still when its engine is lost or replaced, and whether its text stays the same."""
    from bench.recycle import WAYS, Losses
    from bench.service_process import running_service

    print_machine(console, read_machine())
    folder = models_folder()
    manifest = msgspec.json.decode((folder / CHAT_MODEL / "manifest.json").read_bytes())
    chosen = [way for way in WAYS if not ways or way in ways.split(",")]
    results = []
    with running_service(folder) as service, console.status("") as status:
        losses = Losses(service, CHAT_MODEL, manifest["special"]["eos"])
        for way in chosen:
            for number in map(int, streams.split(",")):
                most = min(rounds, HANG_ROUNDS) if way == WAYS[-1] else rounds
                results.append(losses.measure(way, number, most, status.update))
    for row in results:
        console.print(
            f"[bold]{row.way}[/bold], {row.streams} {'streams' if row.streams > 1 else 'stream'}: nothing came for "
            f"{row.stall_s.median * 1000:.0f} ms ({row.stall_s.low * 1000:.0f} to {row.stall_s.high * 1000:.0f}; "
            f"otherwise {row.usual_s.median * 1000:.0f}); same text in {row.rounds - row.different} of {row.rounds}"
        )
    table = Table("ms", "streams", *PARTS)
    for row in results:
        parts = (row.detect_s, row.start_s, row.load_s, row.first_step_s, row.deliver_s)
        table.add_row(row.way, str(row.streams), *(f"{part.median * 1000:.0f}" for part in parts))
    console.print(table)
    write_json(json, recycle=results)
    leave_if([line for row in results for line in row.missed])
