"""`magnitude strategy show`: the table of what was learned, and what runs now."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.models_folder import ModelsFolderOption
from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption

if TYPE_CHECKING:
    from rich.console import Console

    from magnitude.policy.dump_exchange import Shown
    from magnitude.policy.learned import Binding, Entry

WIDE = 240
UNITS = {"decode": "step", "prefill": "token", "encode": "position", "variant": "task"}


def register_strategy(group: typer.Typer) -> None:
    group.command("show")(show)


def show(
    *,
    model: Annotated[
        str,
        typer.Argument(help="Model, by name or the first digits of its hash; MODEL@3 for a generation (all models)."),
    ] = "",
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what was learned: for each situation the choices, what they cost, and on how many samples that rests.

    From the running service, with what it does now; without one, from its files.
    """
    import msgspec

    from magnitude.cli.strategy_source import open_source, shown_at

    with open_source(config, url, api_key, folder) as source:
        found = shown_at(source, model)
        where = source.where
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    if not found:
        typer.echo(f"Nothing is learned yet, says {where}.")
        return
    from rich.console import Console

    # A pipe has no width: lines for `grep` must not be folded.
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
    for number, one in enumerate(found):
        if number:
            console.print()
        _print(console, one)


def _print(console: Console, one: Shown) -> None:
    from rich.table import Table

    console.print(f"[bold]{one.model}[/bold]  {one.learned.samples} samples, {_generation(one)}")
    console.print(f"bound to: {bound(one.learned.binding)}", markup=False)
    if one.running is not None:
        state = "" if one.running.on else " (the loop is off)"
        state = f" (the loop was given up: {one.running.fault})" if one.running.fault else state
        console.print(f"runs now: {one.running.in_words}, since {one.running.since_s:.0f} s{state}", markup=False)
    if one.pinned is not None:
        console.print(f"fixed: {one.pinned.in_words}", markup=False)
    for gone in one.retired:
        console.print(f"retired: generation {gone.generation}, {gone.why}", markup=False)
    if one.learned.entries:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("PART", "SITUATION", "", "CHOICE", "COST", "±", "SAMPLES", "FROM"):
            table.add_column(heading, justify="right" if heading in ("COST", "±", "SAMPLES") else "left")
        for entry in sorted(one.learned.entries, key=lambda entry: (entry.part, entry.key)):
            first = (str(entry.part), entry.key, str(entry.origin))
            for row in _rows(entry, first):
                table.add_row(*row)
        console.print(table)
    else:
        console.print("No situation is known yet.")
    for rejected in one.learned.rejected:
        at = f" at {rejected.key}" if rejected.key else ""
        console.print(
            f"rejected: {rejected.part} by {rejected.choice.choice_id}{at}: {rejected.reason}", markup=False
        )
    for verdict in one.learned.verified:
        proof = "equal to the bit" if verdict.equal else f"differs by {verdict.largest_difference:.2g} at most"
        result = proof if verdict.passed else f"failed: {verdict.reason or proof}"
        console.print(f"proven: {verdict.session.session_id}: {result}", markup=False)


def _rows(entry: Entry, first: tuple[str, str, str]) -> Iterator[tuple[str, ...]]:
    """A row for each choice that is known, the chosen one first; what all share stands in the first row only."""
    known = sorted(entry.evidence, key=lambda each: (each.choice != entry.chosen, each.cost_s))
    rows = [
        (
            "*" if each.choice == entry.chosen else "",
            each.choice.choice_id,
            cost_in_words(entry.part, each.cost_s),
            f"{each.log_spread:.0%}",
            f"{each.weight:.0f}",
        )
        for each in known
    ]
    if not known or known[0].choice != entry.chosen:
        rows.insert(0, ("*", entry.chosen.choice_id, "-", "-", "-"))
    part, key, origin = first
    for row in rows:
        yield (part, key, *row, origin)
        part = key = origin = ""


def _generation(one: Shown) -> str:
    if not one.generation:
        return "not saved"
    earlier = f", earlier ones {', '.join(map(str, one.generations))}" if one.generations else ""
    return f"generation {one.generation}{earlier}"


def bound(binding: Binding) -> str:
    """What the figures hold for, in a line."""
    from magnitude.policy.drift import relevant

    parts = [f"board {binding.board}", f"weights {binding.model_hash[:12]}", f"ONNX Runtime {binding.ort_version}"]
    if binding.kernel_version:
        parts.append(f"operator library {binding.kernel_version}")
    return ", ".join([*parts, f"CPU {' '.join(sorted(relevant(binding.cpu_features))) or 'unknown'}"])


def cost_in_words(part: str, cost_s: float) -> str:
    """ "11.0 ms/step" """
    value = (
        f"{cost_s:.2f} s" if cost_s >= 1 else f"{cost_s * 1e3:.3g} ms" if cost_s >= 1e-4 else f"{cost_s * 1e6:.3g} µs"
    )
    return f"{value}/{UNITS.get(part, 'unit')}"
