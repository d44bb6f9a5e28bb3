"""The verbs of `scripts/bench policy`: what the strategy loop gains, what it costs, and what it must not do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench import policy_service_verbs
from bench.command import Json, console, leave_if, write_json
from bench.parallel import in_parallel
from bench.policy_courses import (
    NOISES,
    SURVIVORS,
    NoiseKind,
    NoiseResult,
    Survivor,
    SurvivorCourse,
    SurvivorsResult,
    noise_course,
    noise_result,
    survivor_course,
    survivors_result,
)
from bench.policy_load import LoadResult
from bench.policy_simulated import BOARDS, LOADS, Outcome, jobs, missed, outcomes, run_all

app = typer.Typer(help=__doc__, no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="policy")


policy_service_verbs.register(app)


@app.command()
def simulated(
    hours: Annotated[float, typer.Option(min=0.1, max=48, help="Simulated time of each run.")] = 2.0,
    board: Annotated[str, typer.Option(help="Boards, comma-separated.")] = ",".join(BOARDS),
    load: Annotated[str, typer.Option(help="Loads, comma-separated.")] = ",".join(LOADS),
    json: Json = None,
) -> None:
    """Simulated: boards with the strategy loop beside an engine with a thread on every core."""
    with console.status("") as status:
        results = run_all(jobs(hours, board.split(","), load.split(",")), status.update)
    found = outcomes(results)
    console.print(
        f"Simulated, {hours:g} h at 25 °C, learning from nothing included. x: against all cores, no governor, no "
        "loop. Of chat the tokens/s while anything ran."
    )
    console.print("best fixed: threads for prompts and for answers that stay, found by trying all.")
    for place in dict.fromkeys((one.board, one.load) for one in found):
        console.print(_simulated_table([one for one in found if (one.board, one.load) == place]))
    for one in found:
        if one.summary.strategy:
            console.print(f"{one.board}, {one.load}, {one.contender}: {one.summary.strategy}", soft_wrap=True)
    write_json(json, simulated=True, runs=[{"job": job, "summary": summary} for job, summary in results.items()],
               outcomes=found)  # fmt: skip
    leave_if(missed(found))


@app.command()
def noise(
    hours: Annotated[float, typer.Option(min=1, help="Simulated time of each seed.")] = 6.0,
    seeds: Annotated[int, typer.Option(min=1, help="Courses of chance for each kind of noise.")] = 10,
    json: Json = None,
) -> None:
    """Simulated: how often the loop switches when times scatter by 30 % and there is nothing, or little, to gain."""
    gaps = (0.0, 0.02)
    works = [(kind, gap, seed, hours) for kind in NOISES for gap in gaps for seed in range(seeds)]
    with console.status(f"{len(works)} courses of {hours:g} h"):
        courses = in_parallel(_noise_course, works)
    results = [
        noise_result(kind, gap, hours, [courses[kind, gap, seed, hours] for seed in range(seeds)])
        for kind in NOISES
        for gap in gaps
    ]
    console.print(f"Simulated, {seeds} seeds of {hours:g} h each; the loop's rules as shipped.")
    console.print(_noise_table(results))
    write_json(json, simulated=True, noise=results)
    leave_if([line for result in results for line in result.missed])


@app.command()
def survivors(
    hours: Annotated[float, typer.Option(min=1, help="Simulated time of each seed.")] = 6.0,
    seeds: Annotated[int, typer.Option(min=1, help="Courses of chance.")] = 10,
    json: Json = None,
) -> None:
    """Simulated: a strategy that takes a fifth less time, but under which 5 % of the tasks time out."""
    relative = 0.8
    works = [
        (what, relative, seed, hours, failing)
        for what in SURVIVORS
        for failing in (True, False)
        for seed in range(seeds)
    ]
    with console.status(f"{len(works)} courses of {hours:g} h"):
        courses = in_parallel(_survivor_course, works)
    results = []
    for what in SURVIVORS:
        failing, without = (
            [courses[what, relative, seed, hours, fails] for seed in range(seeds)] for fails in (True, False)
        )
        results.append(survivors_result(what, relative, hours, failing, without))
    console.print(f"Simulated, {seeds} seeds of {hours:g} h each; time by the strategy in question: {relative:g} x.")
    console.print("kept: seeds that end with it, without failures and with them; under it: tasks that ran with it.")
    console.print(_survivors_table(results))
    write_json(json, simulated=True, survivors=results)
    leave_if([line for result in results for line in result.missed])


@app.command()
def plot(
    target: Annotated[Path, typer.Argument(help="docs/strategy.svg")],
    board: Annotated[str, typer.Option(help="The simulated board.")] = "rock5b",
    load: Annotated[str, typer.Option(help="The load.")] = "agent",
    hours: Annotated[float, typer.Option(min=0.1, max=48, help="Simulated time.")] = 0.75,
    figures: Annotated[
        Path | None,
        typer.Option("--from", help="What `policy load --json` wrote: draw that, instead of a simulation."),
    ] = None,
) -> None:
    """A timeline of what the loop chose, and how long work took meanwhile: simulated, or of a load that was run."""
    from bench.policy_plot import draw, draw_load
    from magnitude.picture import can_plot

    can_plot(target)
    if figures is None:
        draw(board, load, hours, target)
    else:
        draw_load(msgspec.json.decode(figures.read_bytes(), type=_Written).load.runs, target)
    console.print(f"written: {target}")


class _Written(msgspec.Struct):
    """What is needed of the file that `policy load` writes."""

    load: LoadResult


def _noise_course(work: tuple[NoiseKind, float, int, float]) -> tuple[list[float], bool]:
    return noise_course(*work)


def _survivor_course(work: tuple[Survivor, float, int, float, bool]) -> SurvivorCourse:
    what, relative, seed, hours, failing = work
    return survivor_course(what, relative, seed, hours, failing=failing)


def _simulated_table(found: list[Outcome]) -> Table:
    table = Table(box=SIMPLE_HEAD, title=f"simulated: {found[0].board}, load {found[0].load}")
    for name in ("", "tokens/s", "prompts", "TTFT p95", "gap p95", "J/token", "switches"):
        table.add_column(name, no_wrap=True)
    for one in found:
        figures = (one.speed, one.prompt_speed, one.ttft_p95, one.inter_token_p95, one.energy)
        shown = [f"{figure:.2f} x" if figure is not None else "-" for figure in figures]
        table.add_row(one.contender, *shown, str(one.summary.switches))
    return table


def _noise_table(results: list[NoiseResult]) -> Table:
    table = Table(box=SIMPLE_HEAD, title="simulated, noise of ±30 %")
    for name in ("factor drawn for", "apart", "switches/h", "most in 1 h", "ended wrong"):
        table.add_column(name, no_wrap=True)
    for one in results:
        table.add_row(one.noise, f"{one.gap:.0%}", f"{one.switches_an_hour:.2f}", str(one.worst_hour),
                      f"{one.ended_wrong} of {one.seeds}")  # fmt: skip
    return table


def _survivors_table(results: list[SurvivorsResult]) -> Table:
    table = Table(box=SIMPLE_HEAD, title="simulated, 5 % of tasks time out")
    for name in ("strategy", "kept without", "kept with", "under it", "failed", "last quarter"):
        table.add_column(name, no_wrap=True)
    for one in results:
        table.add_row(one.what, f"{one.chosen_without} of {one.seeds}", f"{one.chosen_with} of {one.seeds}",
                      f"{one.tasks_under_it:.0f}", f"{one.failed_tasks:.1f}", f"{one.last_share:.1%}")  # fmt: skip
    return table
