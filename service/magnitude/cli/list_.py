"""`magnitude list`: the models that are there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from magnitude.cli.models_folder import ModelsFolderOption, models_folder
from magnitude.cli.options import ConfigOption, JsonOption

if TYPE_CHECKING:
    from rich.console import Console

    from magnitude.models.description import ModelDescription


def register(app: typer.Typer) -> None:
    app.command("list")(list_models)


def list_models(folder: ModelsFolderOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the models in the models folder; broken ones are shown with what is wrong."""
    import msgspec

    from magnitude.models.adapters import AdapterDescription, BrokenAdapter, scan_adapters
    from magnitude.models.catalogue import BrokenModel, scan
    from magnitude.models.variants import strays, variants_of

    place = models_folder(folder, config)
    entries = scan(place)
    usable = [entry for entry in entries if not isinstance(entry, BrokenModel)]
    adapters = {entry.name: scan_adapters(entry) for entry in usable}
    stray = strays(usable)
    variants = {entry.name: variants_of(entry, usable) for entry in usable}
    entries = [entry for entry in entries if not getattr(entry, "variant_of", "") or entry.name in stray]
    if as_json:
        listed = [
            {
                **msgspec.to_builtins(entry),
                "broken": isinstance(entry, BrokenModel),
                "variants": msgspec.to_builtins(variants.get(entry.name, [])),
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
    table.add_column("name", overflow="fold")  # a name is of use only as a whole
    for column in ("kind", "family"):
        table.add_column(column)
    for column in ("weights", "context"):
        table.add_column(column, justify="right")
    table.add_column("KV cache")
    table.add_column("licence")
    broken: list[BrokenModel | BrokenAdapter] = []
    for entry in entries:
        if isinstance(entry, BrokenModel):
            broken.append(entry)
            continue
        for model in (entry, *variants[entry.name]):
            table.add_row(*_row(model))
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
    for name, reason in stray.items():
        _say(
            console, f"[yellow]{name} is not served[/yellow]", reason, f"`magnitude rm {name}`, then import it again"
        )
    for entry in usable:
        if entry.outside and entry.name not in stray:
            _say(console, f"[yellow]{entry.name} is never chosen by itself[/yellow]", entry.outside)
    for wrong in broken:
        name = wrong.name if isinstance(wrong, BrokenModel) else f"{wrong.base}:{wrong.name}"
        _say(console, f"[red]{name} cannot be used[/red]", wrong.message, wrong.hint)


def _row(model: ModelDescription) -> tuple[str, ...]:
    """A model's line, or that of a variant below its model's."""
    from magnitude.cli.numbers import size

    longest, kv = "", ""
    if model.decoder is not None:
        longest = str(model.decoder.context_length)
        kv = f"{model.decoder.kv_type}, {size(model.decoder.kv_bytes_per_token())} a token"
    elif model.encoder is not None:
        longest = str(model.encoder.max_tokens)
    kind, family = (f"variant, {model.precision}", "") if model.variant_of else (model.kind, model.family)
    return model.name, kind, family, size(model.weight_bytes), longest, kv, model.licence


def _say(console: Console, what: str, reason: str, hint: str = "") -> None:
    console.print(f"{what}: ", end="")
    console.print(reason, markup=False, highlight=False)
    if hint:
        console.print(f"  {hint}", markup=False, highlight=False)
