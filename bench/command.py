"""What the verbs of `scripts/bench` share: where models are, and where results go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from bench.contender import PROJECT
from bench.machine import read_machine

console = Console(highlight=False)

CHAT_MODEL = "smollm2-135m-instruct"

Json = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")]


def home() -> Path:
    return Path(os.environ.get("MAGNITUDE_HOME") or PROJECT / ".magnitude")


def models_folder() -> Path:
    """The imported models. Leaves with a message when they are not there."""
    folder = home() / "models"
    if not (folder / CHAT_MODEL / "manifest.json").is_file():
        console.print(f"[red]{CHAT_MODEL} is not in {folder}.[/red] Run scripts/run --no-serve first.")
        raise typer.Exit(1)
    return folder


def write_json(target: Path | None, **results: Any) -> None:
    """Write `results` with the machine they were taken on."""
    if target is not None:
        data = msgspec.json.encode({"machine": read_machine(), **results})
        target.write_bytes(msgspec.json.format(data, indent=2) + b"\n")
        console.print(f"written: {target}")


def leave_if(missed: list[str]) -> None:
    """Say what was not reached, and leave with 1 when that is anything."""
    for line in missed:
        console.print(f"[yellow]missed:[/yellow] {escape(line)}", soft_wrap=True)
    if missed:
        raise typer.Exit(1)
