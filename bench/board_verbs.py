"""The verbs of `scripts/bench` about reading the board."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bench.command import Json, console, leave_if, write_json
from bench.machine import read_machine
from bench.report import print_machine


def register(app: typer.Typer) -> None:
    app.command("sampler")(sampler)


def sampler(
    seconds: Annotated[float, typer.Option(min=2.0, help="How long each is measured.")] = 20.0,
    json: Json = None,
) -> None:
    """CPU time of looking at the board: a tree like an RK3588's, and this machine."""
    from bench.sampler import MOST_SHARE, measure, write_board
    from magnitude.board.profiles import find_profile, load_profile
    from magnitude.board.roots import HostRoots

    print_machine(console, read_machine())
    # Nothing else may run in this process meanwhile, not even a spinner.
    with tempfile.TemporaryDirectory() as folder:
        boards = [
            ("a tree like an RK3588's", write_board(Path(folder)), load_profile("rock5b")),
            ("this machine", HostRoots(), find_profile(HostRoots())),
        ]
        results = [
            measure(where, roots, profile, calm=calm, wall_s=seconds)
            for where, roots, profile in boards
            for calm in (False, True)
        ]
    table = Table("board", "rate", "sensors", "snapshots a second", "CPU time, of one core")
    for row in results:
        table.add_row(row.where, row.rate, str(row.sensors), f"{row.snapshots / row.wall_s:.1f}", f"{row.share:.2%}")
    console.print(table)
    write_json(json, sampler=results)
    leave_if(
        [
            f"{row.where}, {row.rate}: {row.share:.2%} of a core, more than {MOST_SHARE:.1%}"
            for row in results
            if row.share > MOST_SHARE
        ]
    )
