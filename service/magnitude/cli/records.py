"""`magnitude records`: what became of the last tasks, whether the service runs or not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption, reach_service

if TYPE_CHECKING:
    from magnitude.feedback.circumstances import Circumstances
    from magnitude.feedback.records import TaskRow

WIDE = 1000


def register(app: typer.Typer) -> None:
    app.command("records")(records)


def records(
    *,
    failures: Annotated[bool, typer.Option("--failures", help="Only tasks that went wrong.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="FILE", help="Write all of them to a new .db (SQLite) or .jsonl file instead."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many, the newest first.")] = 20,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what became of the last tasks: outcome, tokens, times and what they met; never their text.

    Asks the running service; without one, reads what it has written.
    """
    if export is not None:
        _export(export)
        return

    import msgspec

    from magnitude.cli.client import ServiceUnreachable
    from magnitude.feedback.records import TaskRow

    counts: dict[str, int]
    try:
        with reach_service(config, url, api_key) as client:
            outcome = "failures" if failures else ""
            answer = client.get(f"/v1/magnitude/records?outcome={outcome}&limit={limit}")
        rows = msgspec.convert(answer["data"], list[TaskRow])
        counts, off = answer["counts"], answer["persistence"] == "off"
    except ServiceUnreachable:
        if url is not None:
            raise
        rows, counts = _written(failures, limit)
        off = False
    if as_json:
        typer.echo(json.dumps({"data": msgspec.to_builtins(rows), "counts": counts}, indent=2))
        return
    if off:
        typer.echo("persistence: off; `magnitude ps` says why", err=True)
    _show(rows, counts)


def _export(target: Path) -> None:
    from magnitude.feedback.record_export import export
    from magnitude.feedback.recorder import RECORDS_FILE
    from magnitude.paths import find_paths

    count = export(find_paths().state / RECORDS_FILE, target)
    typer.echo(f"written: {target}, {count} task{'' if count == 1 else 's'}")


def _written(failures: bool, limit: int) -> tuple[list[TaskRow], dict[str, int]]:
    from magnitude.feedback import record_table
    from magnitude.feedback.record_file import reading
    from magnitude.feedback.recorder import RECORDS_FILE
    from magnitude.feedback.records import FAILURES
    from magnitude.paths import find_paths

    with reading(find_paths().state / RECORDS_FILE) as connection:
        return record_table.recent(connection, limit, FAILURES if failures else ()), record_table.counts(connection)


def _chip(met: Circumstances) -> str:
    """How warm it was, and whether it was held back."""
    warm = f"{met.temperature_c:.0f} °C" if met.temperature_c is not None else ""
    return ", ".join(text for text in (warm, "held" if met.throttled else "") if text) or "-"


def _show(rows: list[TaskRow], counts: dict[str, int]) -> None:
    from rich.console import Console
    from rich.table import Table

    from magnitude.board.boot import Clocks, age_s
    from magnitude.cli.numbers import age

    now = Clocks().now()
    table = Table(box=None, pad_edge=False, header_style="bold")
    left = ("AGO", "KIND", "MODEL", "OUTCOME", "STRATEGY", "REQUEST")
    for heading in (
        *left[:4],
        "PROMPT",
        "CACHED",
        "NEW",
        "WAITED",
        "PREFILL",
        "DECODE",
        "BATCH",
        "QUEUE",
        "FREE",
        "CHIP",
        "STRATEGY",
        "REQUEST",
    ):
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        task, circumstances = row.task, row.circumstances
        ago = age_s(row.stamp, now)
        free_bytes = circumstances.memory_headroom_bytes
        code = f" ({task.code})" if task.code else ""
        table.add_row(
            age(ago) if ago is not None else "?",
            task.kind,
            task.model,
            f"{task.outcome}{code}",
            str(task.prompt_tokens),
            str(task.cached_tokens),
            str(task.new_tokens),
            f"{task.queue_s:.2f} s",
            f"{task.prefill_s:.2f} s",
            f"{task.decode_s:.2f} s",
            f"{task.batch:.1f}" if task.batch else "-",
            str(circumstances.queue_depth),
            f"{free_bytes / 1e6:.0f} MB" if free_bytes is not None else "-",
            _chip(circumstances),
            task.strategy or "-",
            task.request or "-",
        )
    # A pipe has no width: lines for `grep` must not be folded.
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
    if rows:
        console.print(table)
    total = sum(counts.values())
    by_outcome = ", ".join(
        f"{count} {outcome}" for outcome, count in sorted(counts.items(), key=lambda item: -item[1])
    )
    console.print(
        f"{total} task{'' if total == 1 else 's'} on record{': ' if by_outcome else ''}{by_outcome}", markup=False
    )
