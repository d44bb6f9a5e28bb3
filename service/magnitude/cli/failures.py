"""`magnitude failures`: how engines were lost, and what each left behind."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.options import JsonOption

if TYPE_CHECKING:
    from magnitude.feedback.bundles import FailureBundle

WIDE = 240


def register(app: typer.Typer) -> None:
    app.command("failures")(failures)


def failures(
    name: Annotated[
        str | None, typer.Argument(metavar="[BUNDLE]", help="Show this one: its number, its id or its file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the engines that were lost, or show what one of them left behind. `magnitude replay` tries it again."""
    import msgspec

    from magnitude.feedback.bundles import FOLDER, BundleRefused, find_bundle, read_all, read_bundle
    from magnitude.paths import find_paths

    folder = find_paths().state / FOLDER
    if name is not None:
        bundle = read_bundle(find_bundle(name, folder))
        if as_json:
            typer.echo(json.dumps(msgspec.to_builtins(bundle), indent=2))
        else:
            _show(bundle)
        return
    try:
        found = list(read_all(folder))
    except OSError as error:
        raise BundleRefused(f"{folder} cannot be read: {error.strerror}", hint="Ask with sudo") from error
    for problem in (entry for entry in found if isinstance(entry, BundleRefused)):
        typer.echo(f"warning: {problem.message}", err=True)
    bundles = [entry for entry in found if not isinstance(entry, BundleRefused)]
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(bundles), indent=2))
    elif bundles:
        _list(bundles)
    else:
        typer.echo("No engine was lost, as far as is on record.")


def _list(bundles: list[FailureBundle]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("BUNDLE", "AGO", "CAUSE", "REQUESTS", "CONTENT", "REASON"):
        table.add_column(heading, justify="right" if heading == "REQUESTS" else "left")
    for bundle in bundles:
        content = "kept" if bundle.with_content else "-"
        table.add_row(
            bundle.bundle_id, _ago(bundle), bundle.loss.cause, str(len(bundle.requests)), content, bundle.loss.reason
        )
    Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE, markup=False).print(table)


def _show(bundle: FailureBundle) -> None:
    from rich.console import Console

    from magnitude.cli.numbers import size

    console = Console(highlight=False, soft_wrap=True, markup=False, width=None if sys.stdout.isatty() else WIDE)
    console.print(f"{bundle.bundle_id}, {_ago(bundle)} ago: {bundle.loss.reason}")
    console.print("; ".join(f"{name} {value}" for name, value in bundle.versions.items() if value))
    for note in bundle.notes:
        console.print(f"note: {note}")
    for request in bundle.requests:
        shape = request.shape
        said = f"request {shape.request_id}: {shape.message} on {shape.model}, {shape.prompt_tokens} tokens"
        if shape.kind == "generate":
            said += f", {shape.emitted_tokens} of at most {shape.max_new_tokens} emitted"
        if shape.strikes:
            said += "; it had been there when an earlier engine was lost"
        if shape.refused:
            said += "; it is not tried again"
        console.print(said + ("; its content is kept" if request.content is not None else ""))
    for model in bundle.models:
        facts = model.facts
        console.print(
            f"model {facts.model}: {facts.graph_file}, {facts.threads} threads, "
            f"batch {facts.max_batch}, {model.slots} slots of {facts.context_tokens} {facts.kv_type or '-'}"
        )
    memory = bundle.circumstances.memory_headroom_bytes
    if memory is not None:
        console.print(f"memory left afterwards: {size(memory)}")
    if bundle.series:
        last = bundle.series[-1]
        console.print(
            f"last heartbeat: step {last.steps}, {last.open_requests} open, "
            f"in one run for {last.busy_s:.1f} s, {size(last.rss_bytes)} resident"
        )
    if bundle.last_lines:
        console.print("the engine's last words:")
        for line in bundle.last_lines:
            console.print(f"  {line}")


def _ago(bundle: FailureBundle) -> str:
    from magnitude.board.boot import Clocks, age_s
    from magnitude.cli.numbers import age

    ago = age_s(bundle.stamp, Clocks().now())
    return age(ago) if ago is not None else "?"
