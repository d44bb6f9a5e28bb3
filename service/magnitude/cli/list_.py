"""`magnitude list`: the models that are there."""

from __future__ import annotations

import json

import typer

from magnitude.cli.models_folder import ModelsFolderOption, models_folder
from magnitude.cli.options import ConfigOption, JsonOption


def register(app: typer.Typer) -> None:
    app.command("list")(list_models)


def list_models(folder: ModelsFolderOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the models in the models folder; broken ones are shown with what is wrong."""
    import msgspec

    from magnitude.models.adapters import AdapterDescription, BrokenAdapter, scan_adapters
    from magnitude.models.catalogue import BrokenModel, scan

    place = models_folder(folder, config)
    entries = scan(place)
    adapters = {entry.name: scan_adapters(entry) for entry in entries if not isinstance(entry, BrokenModel)}
    if as_json:
        listed = [
            {
                **msgspec.to_builtins(entry),
                "broken": isinstance(entry, BrokenModel),
                "adapters": [
                    {**msgspec.to_builtins(adapter), "broken": isinstance(adapter, BrokenAdapter)}
                    for adapter in adapters.get(entry.name, [])
                ],
            }
            for entry in entries
        ]
        typer.echo(json.dumps(listed, indent=2))
        return
    if not entries:
        typer.echo(f"There is no model in {place}. `magnitude import SOURCE` makes one.")
        return
    from rich.console import Console
    from rich.table import Table

    from magnitude.cli.numbers import size

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, justify in (("name", "left"), ("kind", "left"), ("family", "left"), ("weights", "right")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    table.add_column("context", justify="right")
    table.add_column("KV cache")
    table.add_column("licence")
    broken: list[BrokenModel | BrokenAdapter] = []
    for entry in entries:
        if isinstance(entry, BrokenModel):
            broken.append(entry)
            continue
        longest = (
            entry.decoder.context_length if entry.decoder else entry.encoder.max_tokens if entry.encoder else None
        )
        table.add_row(
            entry.name,
            entry.kind,
            entry.family,
            size(entry.weight_bytes),
            "" if longest is None else str(longest),
            f"{entry.decoder.kv_type}, {size(entry.decoder.kv_bytes_per_token())} a token" if entry.decoder else "",
            entry.licence,
        )
        for adapter in adapters[entry.name]:
            if isinstance(adapter, AdapterDescription):
                table.add_row(
                    adapter.full_name, f"adapter, rank {adapter.rank}", "", size(adapter.size_bytes), "", "",
                    adapter.licence,
                )  # fmt: skip
            else:
                broken.append(adapter)
    console = Console()
    if table.row_count:
        console.print(table)
    for wrong in broken:
        name = wrong.name if isinstance(wrong, BrokenModel) else f"{wrong.base}:{wrong.name}"
        console.print(f"[red]{name} cannot be used[/red]: ", end="")
        console.print(wrong.message, markup=False, highlight=False)
        if wrong.hint:
            console.print(f"  {wrong.hint}", markup=False, highlight=False)
