"""What `magnitude show MODEL:ADAPTER` prints."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from magnitude.models.description import ModelDescription


def show_adapter(base: ModelDescription, name: str, *, verify: bool, as_json: bool) -> None:
    """Show an adapter's rank, layers and source; `verify` hashes its file. Raises `ModelError`."""
    from datetime import UTC, datetime

    import msgspec
    from rich.console import Console
    from rich.table import Table

    from magnitude.cli.numbers import size
    from magnitude.models.adapters import find_adapter, open_adapter, read_adapter_manifest, verify_adapter

    folder = find_adapter(base, name)
    adapter, manifest = open_adapter(folder, base), read_adapter_manifest(folder)
    if verify:
        verify_adapter(adapter)
    if as_json:
        both = {"adapter": msgspec.to_builtins(adapter), "manifest": msgspec.to_builtins(manifest)}
        typer.echo(json.dumps(both, indent=2))
        return
    console = Console(highlight=False)
    console.print(f"[bold]{adapter.full_name}[/bold]  LoRA adapter")
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    facts.add_row("folder", adapter.folder)
    facts.add_row("rank", f"up to {adapter.rank}, {manifest.parameters} parameters in {adapter.layers} layers")
    facts.add_row("modules", ", ".join(module.split(".")[-1] for module in adapter.modules))
    verdict = ", compared with its sha256" if verify else ""
    facts.add_row("matrices", f"{size(adapter.size_bytes)} as the base's graph takes them{verdict}")
    facts.add_row("licence", adapter.licence or "not stated")
    facts.add_row("hash", adapter.adapter_hash)
    facts.add_row("source", f"{Path(manifest.source_file).name} ({manifest.source_format})")
    facts.add_row("imported", datetime.fromtimestamp(manifest.created_s, UTC).strftime("%Y-%m-%d %H:%M UTC"))
    for note in manifest.notes:
        facts.add_row("note", note)
    console.print(facts)
