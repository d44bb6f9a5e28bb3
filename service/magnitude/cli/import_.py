"""`magnitude import`: make a model folder of a GGUF file, a Hugging Face folder or an ONNX graph."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from magnitude.cli.models_folder import ModelsFolderOption, models_folder
from magnitude.cli.options import ConfigOption, JsonOption
from magnitude.errors import RequestError

if TYPE_CHECKING:
    from magnitude.models.adapters import AdapterDescription
    from magnitude.models.description import ModelDescription
    from magnitude.models.manifest import Manifest
    from magnitude.models.tolerance import Tolerance


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
    lora: Annotated[bool, typer.Option("--lora", help="Also write the graph that LoRA adapters need.")] = False,
    adapter_for: Annotated[
        str | None,
        typer.Option(
            "--adapter-for",
            metavar="MODEL",
            help="SOURCE is a LoRA adapter (a PEFT folder or a GGUF file) of this imported model.",
            show_default=False,
        ),
    ] = None,
    variant_of: Annotated[
        str | None,
        typer.Option(
            "--variant-of",
            metavar="MODEL",
            help="SOURCE is this imported model in another precision: the service chooses between them.",
            show_default=False,
        ),
    ] = None,
    max_kl: Annotated[
        float | None,
        typer.Option("--max-kl", min=0.0, help="Most nats that a variant may differ from its model by."),
    ] = None,
    min_top1: Annotated[
        float | None,
        typer.Option("--min-top1", min=0.0, max=1.0, help="Least share of top tokens that they must have in common."),
    ] = None,
    min_cosine: Annotated[
        float | None,
        typer.Option("--min-cosine", min=-1.0, max=1.0, help="Of an encoder: least cosine of their vectors."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Take the place of a model of that name; `magnitude rollback` puts it back."),
    ] = False,
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import a model, a variant of one, or a LoRA adapter: convert it, check it, and put it into the models folder.

    A failed import leaves nothing behind.
    """
    import msgspec
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from magnitude.models.adapters import AdapterDescription
    from magnitude.models.catalogue import find, open_folder
    from magnitude.models.importing.adapter import import_adapter
    from magnitude.models.importing.parent import import_model
    from magnitude.models.importing.sandbox import Progress as Step

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    place = models_folder(folder, config)
    start_s = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)

        def show(step: Step) -> None:
            bar.update(task, completed=step.fraction, description=step.text)
            if not console.is_terminal:
                typer.echo(f"{step.fraction:4.0%} {step.text}", err=True)

        made: AdapterDescription | ModelDescription
        if adapter_for is not None:
            tolerances = {"--max-kl": max_kl, "--min-top1": min_top1, "--min-cosine": min_cosine}
            refuse_options(bits=bits, kv=kv, lora=lora, variant_of=variant_of, replace=replace, **tolerances)
            made = import_adapter(source, open_folder(find(place, adapter_for)), name=name, progress=show)
        else:
            made = import_model(
                source,
                name=name,
                bits=None if bits is None else cast(Literal[4, 8, 16], int(bits)),
                kv=kv.value,
                lora=lora,
                variant_of=None if variant_of is None else open_folder(find(place, variant_of)),
                tolerance=stated_tolerance(max_kl, min_top1, min_cosine),
                replace=replace,
                models_folder=place,
                progress=show,
            )
        bar.update(task, completed=1.0, description="done")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())
    elif isinstance(made, AdapterDescription):
        print_adapter(made)
    else:
        print_model(made, asked=bits, took_s=time.monotonic() - start_s)


def print_model(model: ModelDescription, *, asked: Bits | None, took_s: float) -> None:
    """What became of a model; `asked` is the width that the caller wanted."""
    from magnitude.cli.numbers import size
    from magnitude.models.manifest import read_manifest

    manifest = read_manifest(Path(model.folder))
    typer.echo(
        f"{model.name}: {model.kind}, {model.family}, {size(model.weight_bytes)} of weights, "
        f"{took_s:.0f} s, in {model.folder}"
    )
    if manifest.quantisation is not None and manifest.quantisation.accuracy_level is not None:
        typer.echo(f"accuracy level {manifest.quantisation.accuracy_level}: {manifest.quantisation.accuracy_reason}")
    if model.kind == "decoder" and model.chat_template_file is None:
        typer.echo("It brings no chat template: chat requests will be refused, completions work.")
    if manifest.quantisation is not None and asked is not None:
        kept = sum(group.lossless for group in manifest.quantisation.groups)
        if kept and manifest.quantisation.bits != 16:
            typer.echo(
                f"{kept} of {len(manifest.quantisation.groups)} groups of tensors keep the blocks they came in"
            )
    if manifest.variant_of:
        print_variant(manifest)
    for note in manifest.notes:
        typer.echo(f"note: {note}")


def print_variant(manifest: Manifest) -> None:
    """How near the variant is to its parent, and what that means."""
    for entry in manifest.verification:
        if entry.reference.startswith(f"{manifest.variant_of} ("):
            figures = (("top-1", entry.top1_agreement), ("KL", entry.kl_nats), ("lowest cosine", entry.cosine))
            shown = ", ".join(f"{name} {figure:.4f}" for name, figure in figures if figure is not None)
            typer.echo(f"{entry.graph}: {shown}, against {entry.reference}")
    if manifest.outside:
        typer.echo(
            f"note: it is outside the tolerance of {manifest.variant_of} and never chosen by itself: "
            f"{manifest.outside}"
        )
    else:
        typer.echo(f"within the tolerance: requests for {manifest.variant_of} may be answered by it")


def stated_tolerance(max_kl: float | None, min_top1: float | None, min_cosine: float | None) -> Tolerance | None:
    """The tolerance that the options state; what they leave out is as usual. None without any."""
    from magnitude.models.tolerance import Tolerance

    if max_kl is None and min_top1 is None and min_cosine is None:
        return None
    return Tolerance(top1_agreement=min_top1, kl_nats=max_kl, cosine=min_cosine, reason="stated at import")


def refuse_options(
    *, bits: Bits | None, kv: Kv, lora: bool, variant_of: str | None, replace: bool, **others: float | None
) -> None:
    """Raises `RequestError` for options that say how a model is built: an adapter takes its base as it is."""
    given = {
        "--bits": bits is not None,
        "--kv": kv is not Kv.float,
        "--lora": lora,
        "--variant-of": variant_of is not None,
        "--replace": replace,
        **{option: value is not None for option, value in others.items()},
    }
    for option, is_given in given.items():
        if is_given:
            raise RequestError(
                f"{option} is for models, and --adapter-for imports an adapter",
                hint=f"Leave {option} out; the model was built when it was imported",
                param=option,
            )


def print_adapter(adapter: AdapterDescription) -> None:
    from magnitude.cli.numbers import size
    from magnitude.models.adapters import read_adapter_manifest

    modules = ", ".join(module.split(".")[-1] for module in adapter.modules)
    typer.echo(
        f"{adapter.full_name}: rank {adapter.rank} on {modules} of {adapter.layers} layers, "
        f"{size(adapter.size_bytes)}, in {adapter.folder}"
    )
    for note in read_adapter_manifest(Path(adapter.folder)).notes:
        typer.echo(f"note: {note}")
