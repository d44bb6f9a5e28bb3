"""`magnitude import`: make a model folder of a GGUF file, a Hugging Face folder or an ONNX graph."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from magnitude.cli.models_folder import ModelsFolderOption, models_folder
from magnitude.cli.options import ConfigOption, JsonOption


class Bits(StrEnum):
    four = "4"
    eight = "8"
    sixteen = "16"


class Kv(StrEnum):
    float = "float"
    int8 = "int8"


def register(app: typer.Typer) -> None:
    app.command("import")(import_source)


def import_source(
    source: Annotated[Path, typer.Argument(help="A .gguf or .onnx file, or a model's folder.", show_default=False)],
    *,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Name of the model (else made of the file's).")
    ] = None,
    bits: Annotated[
        Bits | None,
        typer.Option(
            "--bits", help="Width of weights that are quantised here; 16 keeps them float. Else as they are."
        ),
    ] = None,
    kv: Annotated[Kv, typer.Option("--kv", help="Type of the KV cache.")] = Kv.float,
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import a model: convert it, compare it with its float form, and put it into the models folder.

    A failed import leaves nothing behind.
    """
    import msgspec
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from magnitude.cli.numbers import size
    from magnitude.models.importing.parent import import_model
    from magnitude.models.importing.sandbox import Progress as Step
    from magnitude.models.manifest import read_manifest

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    start_s = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)

        def show(step: Step) -> None:
            bar.update(task, completed=step.fraction, description=step.text)
            if not console.is_terminal:
                typer.echo(f"{step.fraction:4.0%} {step.text}", err=True)

        model = import_model(
            source,
            name=name,
            bits=None if bits is None else cast(Literal[4, 8, 16], int(bits)),
            kv=kv.value,
            models_folder=models_folder(folder, config),
            progress=show,
        )
        bar.update(task, completed=1.0, description="done")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(model), indent=2).decode())
        return
    manifest = read_manifest(Path(model.folder))
    typer.echo(
        f"{model.name}: {model.kind}, {model.family}, {size(model.weight_bytes)} of weights, "
        f"{time.monotonic() - start_s:.0f} s, in {model.folder}"
    )
    if manifest.quantisation is not None and manifest.quantisation.accuracy_level is not None:
        typer.echo(f"accuracy level {manifest.quantisation.accuracy_level}: {manifest.quantisation.accuracy_reason}")
    if model.kind == "decoder" and model.chat_template_file is None:
        typer.echo("It brings no chat template: chat requests will be refused, completions work.")
    if manifest.quantisation is not None and bits is not None:
        kept = sum(group.lossless for group in manifest.quantisation.groups)
        if kept and manifest.quantisation.bits != 16:
            typer.echo(
                f"{kept} of {len(manifest.quantisation.groups)} groups of tensors keep the blocks they came in"
            )
    for note in manifest.notes:
        typer.echo(f"note: {note}")
