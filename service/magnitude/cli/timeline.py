"""`magnitude timeline`: what was decided when, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption, reach_service
from magnitude.errors import ConfigError

if TYPE_CHECKING:
    from magnitude.feedback.timeline import Moment, Timeline

WIDE = 1000
# As many as the service gives at once.
LIMIT = 10_000


def register(app: typer.Typer) -> None:
    app.command("timeline")(timeline)


def timeline(
    *,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="NAME", help="Only this model's, and the board's.")
    ] = "",
    since: Annotated[str, typer.Option("--since", "-s", metavar="TIME", help="How far back: 30min, 1h, 2d.")] = "1h",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=LIMIT, help="How many decisions, and how many tasks, at most.")
    ] = 2000,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what was decided about strategies, heat, supply and memory, with the time and the reason.

    Asks the running service; without one, reads what it has written.
    """
    import msgspec

    from magnitude.cli.client import ServiceUnreachable
    from magnitude.config.units import parse_duration
    from magnitude.feedback.timeline import Timeline

    try:
        since_s = parse_duration(since)
    except ValueError as error:
        raise ConfigError(str(error), param="--since") from error
    if plot is not None:
        from magnitude.picture import can_plot

        can_plot(plot)
    try:
        with reach_service(config, url, api_key) as client:
            found = msgspec.convert(client.get(_query(since_s, limit, model)), Timeline)
    except ServiceUnreachable:
        if url is not None:
            raise
        found = _written(since_s, limit, model)
    if plot is not None:
        from magnitude.feedback.timeline_plot import draw

        draw(found, plot)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    _show(found, since)
    if plot is not None:
        typer.echo(f"written: {plot}")


def _query(since_s: float, limit: int, model: str) -> str:
    from urllib.parse import urlencode

    return "/v1/magnitude/timeline?" + urlencode({"since_s": since_s, "limit": limit, "model": model})


def _written(since_s: float, limit: int, model: str) -> Timeline:
    from magnitude.board.boot import Clocks
    from magnitude.feedback import record_table
    from magnitude.feedback.history import lately
    from magnitude.feedback.record_file import reading
    from magnitude.feedback.recorder import RECORDS_FILE
    from magnitude.feedback.timeline import timeline_of
    from magnitude.paths import find_paths

    with reading(find_paths().state / RECORDS_FILE) as connection:
        history = lately(
            record_table.decisions(connection, model=model),
            record_table.each(connection, model=model),
            Clocks().now(),
            since_s,
            limit,
        )
    return timeline_of(history, since_s)


def _show(found: Timeline, since: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from magnitude.cli.numbers import age

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("TIME", "AGO", "BY", "KIND", "MODEL", "WHAT", "GAIN", "AFTER", "WHY"):
        table.add_column(heading, justify="right" if heading in ("AGO", "GAIN", "AFTER") else "left")
    for one in found.decisions:
        table.add_row(
            _time(one.wall_s),
            age(one.ago_s),
            one.source,
            one.kind,
            one.model or "-",
            one.what or "-",
            f"{one.gain:.0%}" if one.gain else "-",
            f"{one.delay_s:.1f} s" if one.delay_s else "-",
            _reason(one),
        )
    # A pipe has no width: lines for `grep` must not be folded.
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
    if found.decisions:
        console.print(table)
    count = len(found.decisions)
    console.print(
        f"{count} decision{'' if count == 1 else 's'} and {len(found.tasks)} tasks in the last {since}"
        + ("; older ones are left out, see --limit" if found.cut_off else ""),
        markup=False,
    )


def _reason(one: Moment) -> str:
    return f"{one.reason} (and {one.repeats} times before)" if one.repeats else one.reason


def _time(wall_s: float | None) -> str:
    """Local time; a board whose clock is not set has none."""
    from datetime import datetime

    return datetime.fromtimestamp(wall_s).astimezone().strftime("%m-%d %H:%M:%S") if wall_s is not None else "-"
