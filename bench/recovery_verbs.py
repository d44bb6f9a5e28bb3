"""The verbs of `scripts/bench` about engines that are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from bench.command import CHAT_MODEL, Json, console, leave_if, models_folder, write_json
from bench.machine import read_machine
from bench.report import print_machine

# The deadline for silence alone is 5 s: a few rounds show it.
HANG_ROUNDS = 3
EMBEDDER = "all-minilm-l6-v2"
PARTS = ("detect", "start", "load", "first step", "deliver")


def register(app: typer.Typer) -> None:
    for verb in (recycle, kills):
        app.command()(verb)


def recycle(
    rounds: Annotated[int, typer.Option(min=1, help="Losses of each way.")] = 20,
    streams: Annotated[str, typer.Option(help="Numbers of streams, comma-separated.")] = "1,4",
    ways: Annotated[str, typer.Option(help="Only these ways, comma-separated; empty: all.")] = "",
    json: Json = None,
) -> None:
    """How long a stream stands still when its engine is lost or replaced, and whether its text stays the same."""
    from bench.recycle import HOT, WAYS, Losses
    from bench.service_process import running_service

    print_machine(console, read_machine())
    folder = models_folder()
    manifest = msgspec.json.decode((folder / CHAT_MODEL / "manifest.json").read_bytes())
    unknown = {way for way in ways.split(",") if way} - set(WAYS)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: the ways are {', '.join(WAYS)}")
    chosen = [way for way in WAYS if not ways or way in ways.split(",")]
    results = []
    for spare in ("hot", "warm"):
        of_spare = [way for way in chosen if (way == HOT) == (spare == "hot")]
        if not of_spare:
            continue
        with running_service(folder, {"engine": {"spare": spare}}) as service, console.status("") as status:
            losses = Losses(service, CHAT_MODEL, manifest["special"]["eos"])
            for way in of_spare:
                for number in map(int, streams.split(",")):
                    most = min(rounds, HANG_ROUNDS) if way == WAYS[-1] else rounds
                    results.append(losses.measure(way, number, most, status.update))
    for row in results:
        stall, noun = row.stall_s, "streams" if row.streams > 1 else "stream"
        console.print(
            f"[bold]{row.way}[/bold], {row.streams} {noun}: nothing came for {stall.median * 1000:.0f} ms "
            f"({stall.low * 1000:.0f} to {stall.high * 1000:.0f}; usually {row.usual_s.median * 1000:.0f}, later "
            f"up to {row.later_s.high * 1000:.0f}); same text in {row.rounds - row.different} of {row.rounds}"
        )
    table = Table("ms", "streams", *PARTS)
    for row in results:
        parts = (row.detect_s, row.start_s, row.load_s, row.first_step_s, row.deliver_s)
        table.add_row(row.way, str(row.streams), *(f"{part.median * 1000:.0f}" for part in parts))
    console.print(table)
    write_json(json, recycle=results)
    leave_if([line for row in results for line in row.missed])


def kills(
    requests: Annotated[int, typer.Option(min=10, help="Requests of all kinds.")] = 1000,
    distinct: Annotated[int, typer.Option(min=8, help="Of which so many differ.")] = 150,
    kill: Annotated[int, typer.Option(min=1, help="Kills of the engine.")] = 250,
    seed: Annotated[int, typer.Option(help="The same seed gives the same requests.")] = 1,
    models: Annotated[Path | None, typer.Option(help="Folder of models; unset: the imported ones.")] = None,
    json: Json = None,
) -> None:
    """A thousand requests while their engine is killed in every phase, each compared with an undisturbed run."""
    from bench.kill_requests import Setting
    from bench.kill_requests import requests as make_requests
    from bench.kills import Campaign, undisturbed
    from bench.service_process import running_service

    print_machine(console, read_machine())
    folder = models or models_folder()
    manifest = msgspec.json.decode((folder / CHAT_MODEL / "manifest.json").read_bytes())
    setting = Setting(chat=CHAT_MODEL, eos=tuple(manifest["special"]["eos"]), embedder=EMBEDDER)
    wanted = make_requests(setting, seed, requests, distinct)
    with running_service(folder) as service, console.status("") as status:
        expected = undisturbed(service.port, wanted, status.update)
        result = Campaign(service, wanted, expected, kills=kill, seed=seed).run(status.update)
    console.print(
        f"{result.requests} requests, {result.kills} kills ({result.left_out} found nothing in their phase) in "
        f"{result.wall_s:.0f} s: {result.right} right, {result.errors} told that they failed, {result.wrong} wrong; "
        f"{result.recovered} went on with another engine, {result.recomputed_tokens} positions computed again"
    )
    table = Table("struck in", "kills", "requests", "right", "errors", "wrong")
    for row in result.phases:
        numbers = (row.kills, row.requests, row.right, row.errors, row.wrong)
        table.add_row(row.phase, *map(str, numbers))
    console.print(table)
    for kind, counts in result.kinds.items():
        console.print(f"  {kind}: " + ", ".join(f"{verdict} {number}" for verdict, number in counts.items()))
    write_json(json, kills=result)
    leave_if(result.missed)
