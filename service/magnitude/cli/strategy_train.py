"""`magnitude strategy train`: tables and a tree from records of tasks, off the device."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.options import JsonOption

if TYPE_CHECKING:
    from magnitude.policy.trained import Trained
    from magnitude.training.reading import Skipped

# Something was trained, and would lose somewhere: nothing is written. Told apart from errors of use.
EXIT_REFUSED = 3


def register_strategy(group: typer.Typer) -> None:
    group.command("train")(train)


def train(
    records: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORDS...", help="records.db or Parquet files, or folders of them.", show_default=False
        ),
    ],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="TABLE", help="Where to write the table.")
    ] = None,
    board: Annotated[
        str, typer.Option("--board", metavar="NAME", help="Board of records that do not name theirs.")
    ] = "",
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, max=0.5, help="Share of the time that may be lost anywhere.")
    ] = 0.02,
    failure_price: Annotated[
        float, typer.Option("--failure-price", min=0.0, help="What a failed task costs, in complete ones.")
    ] = 10.0,
    tree: Annotated[bool, typer.Option("--tree/--no-tree", help="Grow a tree for other boards too.")] = True,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a report: .md or .html.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the gains: .png, .svg or .pdf.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write what was read as one Parquet file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Learn the best strategies from records of tasks, of one board or a fleet, and prove them on records that were
    held back.

    Nothing is written, and the exit status is 3, where the table would lose anywhere by more than the tolerance.
    `magnitude strategy import TABLE` installs it. Needs the extra "train".
    """
    from magnitude.errors import ConfigError

    if not (output or export or report or plot or as_json):
        raise ConfigError("nothing is to be written", hint="Name a file for the table with -o", param="--output")
    _can_train()
    from magnitude.training.reading import export_parquet, read_records
    from magnitude.training.report import can_report, write_report

    if report is not None:
        can_report(report)
    if plot is not None:
        from magnitude.picture import can_plot

        can_plot(plot)
    found = read_records(records, board=board)
    if export is not None:
        rows = export_parquet(found, export)
        typer.echo(f"written: {export}, {rows} tasks", err=as_json)
        if not (output or report or plot or as_json):
            return
    from magnitude.policy.trained import write_trained
    from magnitude.training.costs import TrainingRules
    from magnitude.training.gather import gather
    from magnitude.training.training import NothingLearned
    from magnitude.training.training import train as train_on

    rules = TrainingRules(tolerance=tolerance, failure_price=failure_price)
    trained = train_on(gather(found), rules, files=found.files, with_tree=tree, made_at_s=time.time())
    if report is not None:
        write_report(report, trained, found.skipped)
    if plot is not None:
        from magnitude.training.plot import plot_gains

        plot_gains(trained.proof.gains, tolerance, plot)
    if as_json:
        _as_json(trained, found.skipped)
    else:
        _show(trained, found.skipped)
    if trained.proof.losses:
        raise typer.Exit(EXIT_REFUSED)
    if trained.empty:
        raise NothingLearned(
            "nothing was learned: no situation was run both as the model was loaded and otherwise, often enough",
            hint="Record for longer with the strategy loop on, or over more devices",
        )
    if output is not None:
        write_trained(output, trained)
        typer.echo(f"written: {output}, id {trained.trained_id[:12]}", err=as_json)


def _can_train() -> None:
    from magnitude.errors import ConfigError

    try:
        import ibis  # noqa: F401 - whether they are there
        import pyarrow  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"training needs {error.name}, which is not installed",
            hint="pip install 'magnitude[train]', on a computer rather than on a board",
        ) from error


def _as_json(trained: Trained, skipped: tuple[Skipped, ...]) -> None:
    import msgspec

    document = {**msgspec.to_builtins(trained), "left_out": skipped}
    typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _show(trained: Trained, skipped: tuple[Skipped, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    from magnitude.policy.tree import in_words
    from magnitude.training.report import compared, count, gain_in_words

    proof = trained.proof
    for one in skipped:
        typer.echo(f"left out: {one.path}: {one.why}\nhint: {one.hint}", err=True)
    typer.echo(f"{proof.tasks} tasks of {', '.join(proof.boards) or 'no board'}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("BOARD", "MODEL", "PART", "BY", "SITUATION", "SAVED", "COMPARED"):
        table.add_column(heading, no_wrap=True)
    for gain in proof.gains:
        table.add_row(
            gain.board, gain.model, gain.part, gain.method, gain.key or "all", gain_in_words(gain), compared(gain)
        )
    if proof.gains:
        Console(highlight=False, soft_wrap=True, width=200).print(table, markup=False)
    entries = sum(len(one.entries) for one in trained.tables)
    if not trained.empty:  # the error that follows says so
        typer.echo(f"{count(entries, 'situation')} in {count(len(trained.tables), 'table')}")
    for line in _rejected(trained):
        typer.echo(line)
    if trained.tree is not None:
        typer.echo(in_words(trained.tree))
    for note in proof.notes:
        typer.echo(f"note: {note}")
    if proof.losses:
        typer.echo(f"refused: it would lose by more than {proof.tolerance:.0%}", err=True)
        for loss in proof.losses:
            where = f"{loss.model} on {loss.board}, {loss.part}{f' at {loss.key}' if loss.key else ''}"
            typer.echo(f"  by the {loss.method}: {where}: {loss.why}", err=True)
        hint = "--no-tree trains the tables alone" if _only_the_tree(trained) else "record more, or raise --tolerance"
        typer.echo(f"hint: {hint}", err=True)


def _rejected(trained: Trained) -> list[str]:
    """A line for each choice that is not to be used, however many situations say so."""
    found = {
        (one.board, one.model, rejected.part, rejected.choice.choice_id): rejected.reason
        for one in trained.tables
        for rejected in one.rejected
    }
    return [
        f"rejected: {choice} for {part} of {model} on {board}: {reason}"
        for (board, model, part, choice), reason in sorted(found.items())
    ]


def _only_the_tree(trained: Trained) -> bool:
    return all(loss.method == "tree" for loss in trained.proof.losses)
