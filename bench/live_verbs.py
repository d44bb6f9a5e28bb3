"""The verbs of `scripts/bench` about the real service on a simulated board."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from bench.command import CHAT_MODEL, Json, console, leave_if, models_folder, write_json
from bench.machine import read_machine
from bench.report import print_machine, ratio_text


def register(app: typer.Typer) -> None:
    app.command("live-board")(live_board)
    app.command("live-heat")(live_heat)


def live_board(
    board: Annotated[str, typer.Option(help="The simulated board.")] = "rock5b",
    clocks: Annotated[
        str, typer.Option(help="Caps in MHz, comma-separated; each is compared to no cap.")
    ] = "1200,408",
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of no cap and cap, for each cap.")] = 5,
    ambient: Annotated[float, typer.Option(help="Air around the simulated board, °C.")] = 20.0,
    json: Json = None,
) -> None:
    """Whether the real engine's speed follows the clock of a simulated board, in pairs of capped and not capped."""
    from bench.live_board import LiveBoardBench, command
    from bench.service_process import running_service

    print_machine(console, read_machine())
    folder = models_folder()
    manifest = msgspec.json.decode((folder / CHAT_MODEL / "manifest.json").read_bytes())
    # Its governor would set clocks, too.
    settings: dict[str, dict[str, Any]] = {"engine": {"speculation": "off"}, "thermal": {"enabled": False}}
    with running_service(folder, settings, command(board, ambient)) as service, console.status("") as status:
        bench = LiveBoardBench(service, CHAT_MODEL, tuple(manifest["special"]["eos"]))
        results = [bench.measure(int(float(mhz) * 1000), rounds, status.update) for mhz in clocks.split(",")]
    headings = ("predicted", "engine's share", "clients' ratio")
    table = Table(f"SIMULATED {board} capped at", "phase", *headings)
    for row in results:
        clock = f"{row.khz / 1000:.0f} MHz"
        prefill, decode = f"{row.predicted_prefill:.2f}", f"{row.predicted_decode:.2f}"
        table.add_row(clock, "prefill", prefill, ratio_text(row.held_prefill), ratio_text(row.prefill))
        table.add_row("", "decode", decode, ratio_text(row.held_decode), ratio_text(row.decode))
    console.print(table)
    first = results[0]
    console.print(
        f"Without a cap, as fast as this machine: prefill {first.full_prefill_tokens_s.median:.0f} and decode "
        f"{first.full_decode_tokens_s.median:.0f} tokens/s"
    )
    write_json(json, board=board, live_board=results)
    leave_if([line for row in results for line in row.missed])


def live_heat(
    board: Annotated[str, typer.Option(help="The simulated board.")] = "pi5-bare",
    ambient: Annotated[float, typer.Option(help="Air around it, °C.")] = 25.0,
    start: Annotated[float, typer.Option(help="The chip at first, °C.")] = 70.0,
    speed: Annotated[float, typer.Option(help="Heat passes so much faster than real time.")] = 4.0,
    seconds: Annotated[float, typer.Option(min=5, help="Load of each run, in real time.")] = 90.0,
    json: Json = None,
) -> None:
    """The real service on a simulated board under load without a break: the governor beside firmware alone."""
    from bench.live_heat import HeatPlan, measure_heat
    from bench.service_process import running_service
    from magnitude.board.profiles import load_profile, policy_name

    print_machine(console, read_machine())
    plan = HeatPlan(board=board, ambient_c=ambient, start_c=start, speed=speed, seconds=seconds)
    profile = load_profile(board)
    fastest = max(range(len(profile.clusters)), key=lambda index: profile.clusters[index].capacity)
    results = []
    for governed in (False, True):
        settings: dict[str, dict[str, Any]] = {
            "engine": {"speculation": "off"},
            "thermal": {"enabled": governed},
        }
        with running_service(models_folder(), settings, plan.command()) as service, console.status("") as status:
            results.append(
                measure_heat(
                    service,
                    plan,
                    governed=governed,
                    model=CHAT_MODEL,
                    soft_c=profile.trips.soft_c,
                    full_khz=profile.clusters[fastest].opps[-1].khz,
                    policy=policy_name(profile, fastest),
                    progress=status.update,
                )
            )
    table = Table(
        f"SIMULATED {board}", "highest °C", f"time at {profile.trips.soft_c:g} °C or more", "clock", "tokens/s"
    )
    for row in results:
        table.add_row(
            "thermal governor" if row.governed else "firmware alone",
            f"{row.highest_c:.1f}",
            f"{row.above_soft_share:.0%}",
            f"{row.clock_share:.0%}",
            f"{row.tokens_per_s:.0f}",
        )
    console.print(table)
    write_json(json, plan=plan, live_heat=results)
    leave_if([f"the governed chip reached {row.highest_c:.1f} °C" for row in results[1:] if row.above_soft_share])
