"""`magnitude simulate`: hours of a load on a simulated board, in seconds."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from magnitude.simulate.trace import Summary, Trace

# Longer would only say the same again, and hold a row for each second in memory.
MOST_HOURS = 24 * 31


class Governed(StrEnum):
    """Who decides about heat."""

    OFF = "off"
    MAGNITUDE = "magnitude"
    BOTH = "both"


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def simulate(
    *,
    board: Annotated[
        str, typer.Option("--board", "-b", metavar="BOARD", help="A board's name, or a profile's file.")
    ],
    load: Annotated[str, typer.Option("--load", "-l", metavar="LOAD", help="A load's name, or its file.")] = "agent",
    hours: Annotated[float, typer.Option("--hours", help="Simulated time.")] = 2.0,
    governor: Annotated[Governed, typer.Option("--governor", "-g", help="Who decides about heat.")] = Governed.BOTH,
    ambient: Annotated[float, typer.Option("--ambient", metavar="°C", help="The air around the board.")] = 25.0,
    seed: Annotated[int | None, typer.Option("--seed", help="Another course of the same load.")] = None,
    fixed_threads: Annotated[
        bool, typer.Option("--fixed-threads", help="One thread pool of fixed size: clocks alone are governed.")
    ] = False,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures and decisions.")
    ] = None,
) -> None:
    """Run a load on a simulated board, with the thermal governor, without it, or both beside each other.

    Everything printed is computed from the board's profile, not measured: docs/simulator.md says how, and how far.
    """
    from magnitude.board.profiles import load_profile
    from magnitude.simulate.load import read_load

    if not 0 < hours <= MOST_HOURS:
        raise ConfigError(
            f"--hours {hours:g} cannot be simulated",
            hint=f"Give more than 0 and at most {MOST_HOURS}",
            param="--hours",
        )
    if not -40 <= ambient <= 85:
        raise ConfigError(
            f"--ambient {ambient:g} is no air that a board runs in", hint="Give -40 to 85 °C", param="--ambient"
        )
    profile, asked = load_profile(board), read_load(load)
    for file in (plot, json):
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(f"there is no folder {file.absolute().parent}", hint="Make it, or name another file")

    if plot is not None:
        from magnitude.picture import can_plot

        can_plot(plot)

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from magnitude.simulate.closed_loop import simulate as run
    from magnitude.simulate.controllers import STOCK_THREADS, Controller, GovernedController, StockController

    controllers: list[Controller] = []
    if governor is not Governed.MAGNITUDE:
        controllers.append(StockController())
    if governor is not Governed.OFF:
        controllers.append(GovernedController(profile, threads=STOCK_THREADS if fixed_threads else None))
    traces = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        for controller in controllers:
            task = bar.add_task(f"{profile.name}, governor {controller.name}", total=1.0)
            traces.append(
                run(
                    profile,
                    asked,
                    controller,
                    hours=hours,
                    ambient_c=ambient,
                    seed=seed,
                    follow_threads=not fixed_threads,
                    progress=_follower(bar, task),
                )
            )
    typer.echo(_table([trace.summary for trace in traces], profile.title, asked.title))
    if plot is not None:
        from magnitude.simulate.plot import plot as draw

        draw([(profile, traces)], plot)
        typer.echo(f"written: {plot}")
    if json is not None:
        _write(traces, json)
        typer.echo(f"written: {json}")


def _follower(bar: Progress, task: TaskID) -> Callable[[float], None]:
    def show(share: float) -> None:
        bar.update(task, completed=share)

    return show


def _table(summaries: list[Summary], board: str, load: str) -> str:
    first = summaries[0]
    head = f"simulated: {board}; {load}; {first.hours:g} h at {first.ambient_c:g} °C"
    rows: list[tuple[str, list[str]]] = [
        ("governor", [each.governor for each in summaries]),
        ("tokens/s", [f"{each.tokens_s:.2f}" for each in summaries]),
        ("tokens/s while decoding", [_said(each.decode_tokens_s, ".2f") for each in summaries]),
        ("J/token, board", [_said(each.board_j_per_token, ".3f") for each in summaries]),
        ("J/token, chip", [_said(each.chip_j_per_token, ".3f") for each in summaries]),
        ("between tokens, p50 ms", [_said(each.inter_token_p50_s, ".1f", 1e3) for each in summaries]),
        ("between tokens, p95/p50", [_said(each.inter_token_p95_over_p50, ".2f") for each in summaries]),
        ("first token, p50 s", [_said(each.ttft_p50_s, ".2f") for each in summaries]),
        ("hottest °C", [f"{each.peak_c:.1f}" for each in summaries]),
        ("mean °C", [f"{each.mean_c:.1f}" for each in summaries]),
        ("seconds above soft limit", [str(each.soft_s) for each in summaries]),
        ("seconds above hard limit", [str(each.hard_s) for each in summaries]),
        ("mean clock while busy, GHz", [_said(each.mean_busy_khz, ".2f", 1e-6) for each in summaries]),
        ("changes of clock limits", [str(each.cap_changes) for each in summaries]),
    ]
    wide = max(len(name) for name, _ in rows)
    return "\n".join(
        [head, *(f"  {name:<{wide}}" + "".join(f"{cell:>12}" for cell in cells) for name, cells in rows)]
    )


def _said(value: float | None, form: str, times: float = 1.0) -> str:
    return "-" if value is None else format(value * times, form)


def _write(traces: list[Trace], target: Path) -> None:
    import msgspec

    runs = [
        {"summary": trace.summary, "decisions": [{"at_s": at_s, "text": text} for at_s, text in trace.decisions]}
        for trace in traces
    ]
    try:
        target.write_bytes(
            msgspec.json.format(msgspec.json.encode({"simulated": True, "runs": runs}), indent=2) + b"\n"
        )
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}", hint="Name another file") from error
