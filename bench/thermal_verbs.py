"""The verb of `scripts/bench` about heat."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.command import Json, console, leave_if, write_json
from bench.thermal import (
    AS_PROFILED,
    BOARDS,
    CONTENDERS,
    COOL,
    HOT_LOAD,
    OTHER_LOADS,
    Job,
    Outcome,
    Point,
    best_fixed,
    cool_jobs,
    hot_jobs,
    missed,
    other_jobs,
    outcomes,
    run_all,
    run_job,
)
from magnitude.simulate.trace import Summary


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest fixed point of a board, and what it comes to."""

    board: str
    point: Point
    summary: Summary


def register(app: typer.Typer) -> None:
    app.command()(thermal)


def thermal(
    hours: Annotated[float, typer.Option(min=0.1, max=48, help="Simulated time of each run.")] = 2.0,
    ambient: Annotated[float, typer.Option(help="The air around the board, °C.")] = 25.0,
    best: Annotated[bool, typer.Option(help="Also search the best fixed operating point (minutes).")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the runs on boards as profiled (docs/thermal.svg).")] = None,
    json: Json = None,
) -> None:
    """Simulated: boards with the thermal governor beside the same boards without it, also where the profile is
    wrong."""
    if plot is not None:
        from magnitude.picture import can_plot

        can_plot(plot)
    jobs = [*hot_jobs(hours, ambient), *other_jobs(hours, ambient), *cool_jobs(hours, ambient)]
    with console.status("") as status:
        results = run_all(jobs, status.update)
        bests = [Best(board=board, point=point, summary=summary)
                 for board in (BOARDS if best else ())
                 for point, summary in [best_fixed(board, hours, ambient, status.update)]]  # fmt: skip
    found = outcomes(results)
    console.print(
        f"Simulated, {hours:g} h at {ambient:g} °C. x: against the same board without the governor. hot, s: seconds "
        "at or above the soft limit."
    )
    for board, load in [*itertools.product(BOARDS, (HOT_LOAD, *OTHER_LOADS)), *COOL]:
        console.print(_table(results, [each for each in found if (each.job.board, each.job.load) == (board, load)]))
    for each in bests:
        stock = next(
            summary
            for job, summary in results.items()
            if (job.board, job.load, job.variant, job.contender) == (each.board, HOT_LOAD, AS_PROFILED, "off")
        )
        console.print(
            f"best fixed point of {each.board}: prefill {each.point.prefill_khz / 1e6:.2f} GHz, decode "
            f"{each.point.decode_khz / 1e6:.2f} GHz on {each.point.decode_threads} threads: "
            f"{each.summary.tokens_s / stock.tokens_s:.3f} x the tokens/s, "
            f"{(each.summary.board_j_per_token or 0) / (stock.board_j_per_token or 1):.3f} x the energy a token, "
            f"hottest {each.summary.peak_c:.1f} °C",
            soft_wrap=True,
        )
    if plot is not None:
        _draw(hours, ambient, plot)
    write_json(json, simulated=True, runs=[{"job": job, "summary": summary} for job, summary in results.items()],
               outcomes=found, best_fixed=bests)  # fmt: skip
    leave_if(missed(found))


def _table(results: dict[Job, Summary], found: list[Outcome]) -> Table:
    """One board under one load: the run without the governor in figures, those with it as ratios to it."""
    first = found[0].job
    # Where agents are mostly away, tokens over all the time say nothing: there speed is while anything ran.
    cool = (first.board, first.load) in COOL
    table = Table(
        box=SIMPLE_HEAD, title=f"simulated: {first.board}, load {first.load}{', while busy' if cool else ''}"
    )
    for name in ("variant", "governor", "tokens/s", "J/token", "p95/p50", "max °C", "hot, s"):
        table.add_column(name, no_wrap=True)
    for each in found:
        job = each.job
        if job.contender == CONTENDERS[1]:
            stock = results[msgspec.structs.replace(job, contender="off")]
            speed = stock.busy_tokens_s if cool else stock.tokens_s
            table.add_row(job.variant.name, "off", f"{speed or 0:.2f}", f"{stock.board_j_per_token or 0:.3f}",
                          *_rest(stock))  # fmt: skip
        ratio = each.busy_speed if cool else each.speed
        table.add_row("", job.contender, f"{ratio or 0:.3f} x", f"{each.energy or 0:.3f} x", *_rest(each.summary))
    return table


def _rest(summary: Summary) -> tuple[str, str, str]:
    return (f"{summary.inter_token_p95_over_p50 or 0:.2f}", f"{summary.peak_c:.1f}", str(summary.soft_s))


def _draw(hours: float, ambient_c: float, target: Path) -> None:
    from magnitude.board.profiles import load_profile
    from magnitude.simulate.plot import plot

    columns = [
        (
            load_profile(board),
            [
                run_job(
                    Job(board=board, load=HOT_LOAD, variant=AS_PROFILED, contender=contender, hours=hours,
                        ambient_c=ambient_c)
                )
                for contender in CONTENDERS[:2]
            ],
        )
        for board in BOARDS
    ]  # fmt: skip
    plot(columns, target)
    console.print(f"written: {target}")
