"""`magnitude budget`: does it fit, and if not, what would?"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from magnitude.cli.models_folder import ModelsFolderOption, models_folder
from magnitude.cli.options import ConfigOption, JsonOption
from magnitude.errors import BudgetExceeded, RequestError


class Kv(StrEnum):
    float = "float"
    int8 = "int8"


def register(app: typer.Typer) -> None:
    app.command("budget")(budget)


def budget(
    model: Annotated[str, typer.Argument(help="Name or folder of the model.", show_default=False)],
    *,
    context: Annotated[
        int | None, typer.Option("--context", min=1, help="Positions of a slot (else engine.context_length).")
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", min=1, max=64, help="Generations at once (else engine.max_batch_size).")
    ] = None,
    kv: Annotated[Kv | None, typer.Option("--kv", help="Type of the KV cache (else the model's own).")] = None,
    memory_mb: Annotated[
        int | None, typer.Option("--memory", min=1, metavar="MB", help="Memory to plan for (else what is free here).")
    ] = None,
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sum up weights, KV cache, activations and processes against the memory there is.

    Exit status 1 when it does not fit.
    """
    import msgspec
    from rich.console import Console
    from rich.table import Table

    from magnitude.board.memory import effective_memory
    from magnitude.cli.numbers import size
    from magnitude.cli.options import read_configuration
    from magnitude.models.catalogue import find, open_folder
    from magnitude.models.description import KvType
    from magnitude.models.ledger import ledger

    description = open_folder(find(models_folder(folder, config), model))
    engine = read_configuration(config).settings.engine
    longest = description.decoder.context_length if description.decoder else engine.context_length
    if context is not None and description.decoder is not None and context > longest:
        raise RequestError(
            f"{description.name} knows {longest} positions, so a slot of {context} cannot be used",
            hint=f"Ask for --context {longest} or less, or for a model with a longer context",
            param="--context",
        )
    wanted = context or min(engine.context_length, longest)
    kv_type: KvType | None = None if kv is None else ("int8" if kv is Kv.int8 else "float32")
    sheet = ledger(
        description,
        available_bytes=memory_mb * 1_000_000 if memory_mb else effective_memory().headroom_bytes,
        context=wanted,
        slots=slots or engine.max_batch_size,
        prefill_chunk=engine.prefill_chunk_size,
        kv_type=kv_type,
    )
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(sheet), indent=2).decode())
    else:
        table = Table(box=None, pad_edge=False, header_style="bold", show_footer=False)
        table.add_column("what")
        table.add_column("memory", justify="right")
        table.add_column("how it was computed", style="dim")
        for row in sheet.rows:
            table.add_row(row.name, size(row.bytes), row.how)
        table.add_section()
        table.add_row("[bold]together[/bold]", f"[bold]{size(sheet.total_bytes)}[/bold]", "")
        table.add_row("available", size(sheet.available_bytes), f"of which {size(sheet.reserve_bytes)} stay free")
        console = Console()
        console.print(table)
        if description.decoder is not None:
            trained = description.decoder.context_length
            console.print(f"largest context that fits: {sheet.largest_context} (the model has {trained})")
    if not sheet.fits:
        short = sheet.total_bytes + sheet.reserve_bytes - sheet.available_bytes
        raise BudgetExceeded(
            f"{description.name} with a context of {wanted} does not fit: {size(short)} are missing",
            hint="What would fit: " + "; or ".join(sheet.advice),
        )
