"""The verbs of `scripts/bench policy` about the real service."""

from __future__ import annotations

from statistics import median
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.command import CHAT_MODEL, Json, console, home, leave_if, models_folder, write_json
from bench.machine import read_machine
from bench.policy_figures import DEFAULT, LOOP, LoadRun, Verdict, by_contender, verdict
from bench.report import print_machine, ratio_text

EMBEDDER = "all-minilm-l6-v2"
KEEP = "cache/bench/policy-load.json"


def register(app: typer.Typer) -> None:
    app.command()(load)
    app.command()(cost)
    app.command()(restart)


def load(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 3,
    threads: Annotated[str, typer.Option(help="Threads that are swept; empty: 1 to all.")] = "",
    chunks: Annotated[str, typer.Option(help="Pieces of a prompt that are swept.")] = "64,128,256",
    scale: Annotated[
        float, typer.Option(min=0.05, help="Work of each phase: 1 is about half a minute in all.")
    ] = 1.0,
    learn: Annotated[float, typer.Option(min=0, help="Seconds that the loop may learn before.")] = 480.0,
    quick: Annotated[bool, typer.Option(help="One short round of few strategies: whether it works.")] = False,
    fresh: Annotated[bool, typer.Option(help="Begin anew, also where a run was cut off.")] = False,
    json: Json = None,
) -> None:
    """The strategy loop under a changing load, beside every fixed strategy, the best one for each phase, and the
    shipped default."""
    from bench.cpu_share import cpu_share
    from bench.policy_load import LoadPlan, measure_load

    machine = read_machine()
    print_machine(console, machine)
    swept = tuple(int(number) for number in threads.split(",") if number) or tuple(range(1, machine.threads + 1))
    plan = LoadPlan(
        rounds=rounds,
        threads=swept,
        chunks=tuple(int(number) for number in chunks.split(",")),
        scale=scale,
        learning_s=learn,
    )
    if quick:
        plan = LoadPlan(rounds=1, threads=(1, machine.threads), chunks=(128,), scale=0.4, learning_s=30.0)
    keep = home() / KEEP
    keep.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        keep.unlink(missing_ok=True)
    with cpu_share() as share, console.status("") as status:
        console.print(f"Half of the processor is taken away by: {share.how}")
        result = measure_load(
            models_folder(),
            plan,
            share,
            chat_model=CHAT_MODEL,
            embedder=EMBEDDER,
            end_ids=_end_ids(),
            keep=keep,
            progress=status.update,
        )
    judged = verdict(result.runs)
    table = by_contender(result.runs)
    console.print(_contenders_table(table))
    console.print(_phases_table(table, judged))
    console.print(
        f"loop on beside the best single fixed strategy ({judged.best_fixed}): {ratio_text(judged.ratio, 3)} x as "
        f"fast; beside the shipped default {ratio_text(judged.ratio_to_default, 3)} x",
        soft_wrap=True,
    )
    console.print(
        f"regret against the per-phase oracle: {judged.honest_regret:+.1%} (its strategies chosen by the other "
        f"rounds); {judged.regret:+.1%} where they are chosen by the very figures that are compared",
        soft_wrap=True,
    )
    console.print(f"P95 of a request, loop by best fixed: {ratio_text(judged.p95_ratio, 3)}")
    write_json(json, load=result, verdict=judged)
    keep.unlink(missing_ok=True)
    leave_if(judged.missed)


def cost(
    rounds: Annotated[int, typer.Option(min=2, help="Pairs of a block with the loop and one without.")] = 12,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a block.")] = 20,
    idle_minutes: Annotated[float, typer.Option(min=0.05, help="Rest at the end.")] = 10.0,
    json: Json = None,
) -> None:
    """Processor time of the strategy loop where there is nothing to gain: under a flat load, and at rest."""
    from bench.policy_cost import measure_cost

    print_machine(console, read_machine())
    with console.status("") as status:
        result = measure_cost(
            models_folder(),
            rounds=rounds,
            requests=requests,
            idle_s=60.0 * idle_minutes,
            chat_model=CHAT_MODEL,
            embedder=EMBEDDER,
            end_ids=_end_ids(),
            progress=status.update,
        )
    per_request = sum(block.loop_cpu_s for block in result.blocks) / (rounds * requests)
    whole = sum(block.on_cpu_s for block in result.blocks) / (rounds * requests)
    ratio, idle = result.cpu_ratio, result.idle
    console.print(
        f"the loop's own processor time for a request: {1e3 * per_request:.2f} ms of {1e3 * whole:.0f} ms, "
        f"{result.loop_share:.3%}"
    )
    console.print(
        f"all processor time of a request, loop on by off: {ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f}); "
        f"its time: {result.time_ratio.value:.3f} ({result.time_ratio.low:.3f}-{result.time_ratio.high:.3f})"
    )
    console.print(
        f"at rest for {idle.seconds / 60:.1f} min: the loop itself {result.idle_share:.3%} of a core; service and "
        f"engine with it {idle.on_cpu_s / idle.seconds:.2%}, without {idle.off_cpu_s / idle.seconds:.2%} "
        f"({idle.probes} probes meanwhile)",
        soft_wrap=True,
    )
    write_json(json, cost=result)
    leave_if(result.missed)


def restart(
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of a start with the dump and one without.")] = 5,
    requests: Annotated[int, typer.Option(min=1, help="First requests that are timed.")] = 20,
    learn: Annotated[float, typer.Option(min=30, help="Seconds after which learning is given up.")] = 900.0,
    json: Json = None,
) -> None:
    """A restart with what was learned and without it: the first decision, and the first requests."""
    from bench.policy_restart import measure_restart

    print_machine(console, read_machine())
    with console.status("") as status:
        result = measure_restart(
            models_folder(),
            rounds=rounds,
            requests=requests,
            learn_s=learn,
            chat_model=CHAT_MODEL,
            embedder=EMBEDDER,
            end_ids=_end_ids(),
            progress=status.update,
        )
    console.print(f"learned in {result.learned_s:.0f} s from one thread: {result.dumped}")
    console.print(f"first in force after a restart with it: {'the same' if result.equal else 'not the same'}")
    first = median(seconds for start in result.starts if start.with_dump for seconds in start.request_s)
    without = median(seconds for start in result.starts if not start.with_dump for seconds in start.request_s)
    ratio = result.ratio
    console.print(
        f"first {requests} requests, median: {1e3 * first:.0f} ms with the dump, {1e3 * without:.0f} ms without; "
        f"ratio {ratio.value:.3f} (95 % interval {ratio.low:.3f}-{ratio.high:.3f})",
        soft_wrap=True,
    )
    write_json(json, restart=result)
    leave_if(result.missed)


def _end_ids() -> tuple[int, ...]:
    manifest = msgspec.json.decode((models_folder() / CHAT_MODEL / "manifest.json").read_bytes())
    return tuple(manifest["special"]["eos"])


def _contenders_table(table: dict[str, list[LoadRun]]) -> Table:
    shown = Table(box=SIMPLE_HEAD, title="the whole load")
    for name in ("", "seconds", "P95 of a request, s", "switches"):
        shown.add_column(name, no_wrap=True)
    for name, runs in sorted(table.items(), key=lambda item: median(run.seconds for run in item[1])):
        seconds = [run.seconds for run in runs]
        shown.add_row(
            name,
            f"{median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})",
            f"{median(run.p95_s for run in runs):.2f}",
            "/".join(str(run.switches) for run in runs),
        )
    return shown


def _phases_table(table: dict[str, list[LoadRun]], judged: Verdict) -> Table:
    shown = Table(box=SIMPLE_HEAD, title="by phase, seconds (medians)")
    for name in ("phase", "best fixed here", "its time", "default", "loop", "loop ran"):
        shown.add_column(name)
    for place, (phase, best) in enumerate(judged.oracle.items()):
        times = [f"{median(run.phases[place].seconds for run in table[name]):.2f}" for name in (best, DEFAULT, LOOP)]
        shown.add_row(phase, best, *times, table[LOOP][-1].strategies[place])
    return shown
