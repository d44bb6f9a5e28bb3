"""`magnitude show`: everything that is known of one model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from magnitude.cli.models_folder import ModelsFolderOption, models_folder
from magnitude.cli.options import ConfigOption, JsonOption
from magnitude.cli.show_adapter import show_adapter
from magnitude.errors import ModelError

if TYPE_CHECKING:
    from magnitude.models.description import ModelDescription
    from magnitude.models.golden import GoldenResult
    from magnitude.models.manifest import Manifest


def register(app: typer.Typer) -> None:
    app.command("show")(show)


def show(
    model: Annotated[str, typer.Argument(help="Name or folder of the model, or MODEL:ADAPTER.", show_default=False)],
    verify: Annotated[
        bool, typer.Option("--verify", help="Hash all files, and run the golden set on this machine.")
    ] = False,
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model's shape, files, source, quantisation and how it compares with its float form."""
    import msgspec

    from magnitude.models.adapters import split_name
    from magnitude.models.catalogue import find, open_folder, verify_integrity
    from magnitude.models.manifest import MANIFEST_FILE, read_manifest

    place = models_folder(folder, config)
    base, adapter = split_name(model)
    if adapter and not Path(model).exists():
        show_adapter(open_folder(find(place, base)), adapter, verify=verify, as_json=as_json)
        return
    description = open_folder(find(place, model))
    path = Path(description.folder)
    manifest = read_manifest(path) if (path / MANIFEST_FILE).exists() else None
    golden = None
    if verify:
        verify_integrity(description, deep=True)
        golden = _run_golden(description)
    if as_json:
        everything: dict[str, Any] = {
            "model": msgspec.to_builtins(description),
            "manifest": msgspec.to_builtins(manifest),
            "golden": msgspec.to_builtins(golden),
        }
        typer.echo(json.dumps(everything, indent=2))
    else:
        _print(description, manifest, golden)
    if golden is not None and not golden.passed:
        raise ModelError(
            f"{description.name}: {golden.reason}",
            hint="This CPU or ONNX Runtime computes the model wrongly: import it again here, or update ONNX Runtime",
        )


def _run_golden(description: ModelDescription) -> GoldenResult | None:
    """The golden set on this machine; None for a model that has none. Raises `ModelError`."""
    from magnitude.models.golden import check, read_golden
    from magnitude.models.importing.graph_runner import DecoderRunner, EncoderRunner

    path = Path(description.folder)
    golden = read_golden(path, description.model_hash)
    if golden is None:
        return None
    graph = path / description.graph_file
    if description.decoder is not None:
        runner = DecoderRunner(graph, description.decoder)
        return check(lambda ids: runner.logits(ids)[-1], golden)
    assert description.encoder is not None
    return check(EncoderRunner(graph, description.encoder).vector, golden)


def _print(description: ModelDescription, manifest: Manifest | None, golden: GoldenResult | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from magnitude.cli.numbers import size

    console = Console(highlight=False)
    console.print(f"[bold]{description.name}[/bold]  {description.kind}, {description.family}")
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    for name, value in _facts(description, manifest).items():
        facts.add_row(name, value)
    console.print(facts)
    if manifest is None:
        console.print(
            "Not imported here: files are as they were made by others, and nothing is known of their origin."
        )
        return
    if manifest.quantisation is not None and manifest.quantisation.groups:
        table = Table(box=None, pad_edge=False, header_style="bold", title="weights", title_justify="left")
        for column in ("tensors", "in the source", "stored as", "values"):
            table.add_column(column)
        for group in manifest.quantisation.groups:
            table.add_row(group.tensors, group.source_format, group.stored_format, group.how)
        console.print(table)
    if manifest.verification:
        table = Table(box=None, pad_edge=False, header_style="bold", title="checked at import", title_justify="left")
        for column in ("graph", "against", "tokens", "top-1", "KL (nats)", "cosine", "perplexity"):
            table.add_column(column)
        for entry in manifest.verification:
            figures = (entry.top1_agreement, entry.kl_nats, entry.cosine)
            shown = ["" if figure is None else f"{figure:.4f}" for figure in figures]
            if entry.perplexity is not None:
                shown.append(f"{entry.perplexity:.2f} ({entry.reference_perplexity:.2f})")
            table.add_row(entry.graph, entry.reference, str(entry.tokens), *shown)
        console.print(table)
    if manifest.graphs:
        table = Table(box=None, pad_edge=False, header_style="bold", title="fusion plans", title_justify="left")
        for column in ("graph", "products", "against the serving graph"):
            table.add_column(column)
        for graph in manifest.graphs:
            if not graph.verified:
                table.add_row(graph.file, graph.plan, "not compared: the import had no kernels")
                continue
            apart = f"logits up to {graph.largest_difference:.3f} apart, top-1 {graph.top1_agreement:.4f}"
            table.add_row(graph.file, graph.plan, "equal to the bit" if graph.equal else apart)
        console.print(table)
    table = Table(box=None, pad_edge=False, header_style="bold", title="files", title_justify="left")
    table.add_column("name")
    table.add_column("size", justify="right")
    table.add_column("sha256", style="dim")
    for name, file in manifest.files.items():
        table.add_row(name, size(file.size_bytes), file.sha256[:16])
    console.print(table)
    if golden is not None:
        verdict = "[green]passed[/green]" if golden.passed else "[red]failed[/red]"
        console.print(
            f"golden set on this machine: {verdict}, {golden.prompts} texts, top-1 {golden.top1_agreement:.3f}, "
            f"logits differ by {golden.mean_logit_difference:.3f}, lowest cosine {golden.lowest_cosine:.5f}"
        )


def _facts(description: ModelDescription, manifest: Manifest | None) -> dict[str, str]:
    from datetime import UTC, datetime

    from magnitude.cli.numbers import size
    from magnitude.models.adapters import scan_adapters
    from magnitude.models.tolerance import told

    facts = {"folder": description.folder, "weights": size(description.weight_bytes)}
    if (shape := description.decoder) is not None:
        facts["shape"] = (
            f"{shape.layers} layers, hidden {shape.hidden_size}, {shape.kv_heads} KV heads of {shape.head_dim}, "
            f"{shape.vocab_size} logits, context {shape.context_length}"
        )
        facts["KV cache"] = f"{shape.kv_type}, {size(shape.kv_bytes_per_token())} a token"
        facts["chat template"] = description.chat_template_file or "none: chat requests are refused"
        special = description.special
        facts["tokens"] = (
            f"begin {special.bos if special.add_bos else 'none'}, end {', '.join(map(str, special.eos)) or 'none'}"
        )
    if (encoder := description.encoder) is not None:
        facts["shape"] = f"vectors of {encoder.width}, texts of up to {encoder.max_tokens} tokens"
    if description.lora_graph_file is not None:
        names = ", ".join(entry.name for entry in scan_adapters(description))
        facts["adapters"] = names or "none yet: `magnitude import SOURCE --adapter-for` this model"
    if description.precision:
        facts["precision"] = description.precision
    if description.variant_of:
        facts["variant of"] = description.variant_of
        facts["chosen by itself"] = f"no: {description.outside}" if description.outside else "yes"
    if description.tolerance is not None:
        facts["tolerance"] = told(description.tolerance)
    facts["licence"] = description.licence or "not stated"
    facts["hash"] = description.model_hash
    if manifest is not None:
        facts["source"] = f"{manifest.source.file} ({manifest.source.format}, {size(manifest.source.size_bytes)})"
        facts["imported"] = datetime.fromtimestamp(manifest.created_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
        facts["made with"] = ", ".join(f"{name} {version}" for name, version in manifest.made_with.items())
        if (quantisation := manifest.quantisation) is not None:
            if quantisation.accuracy_level is not None:
                facts["accuracy level"] = f"{quantisation.accuracy_level}: {quantisation.accuracy_reason}"
            if quantisation.kv_scales:
                facts["KV scales"] = quantisation.kv_scales
        for note in manifest.notes:
            facts.setdefault("note", note)
    return facts
