"""The verb of `scripts/bench` about kernels."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from bench.command import CHAT_MODEL, Json, console, home, models_folder, write_json
from bench.contender import ContenderFailed
from bench.machine import read_machine
from bench.peer_files import peers_python, requantised, source_file
from bench.report import print_machine


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
    from bench.kernel_memory import engine_memory
    from bench.kernel_plot import plot_roofline
    from bench.kernel_report import print_engines, print_figures, print_switch
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
    peers = []
    if not without_peers:
        source = source_file(gguf)
        peers = [("as imported", source), *((kind, requantised(source, kind)) for kind in ("Q4_0", "Q4_K_M"))]
    with ExitStack() as stack:
        # On the file system of the models, whose weights are linked.
        home().mkdir(parents=True, exist_ok=True)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=home(), prefix="bench-")))
        status = stack.enter_context(console.status(""))
        whole = with_plan_over_bytes(folder, scratch / folder.name)
        plans = contenders(whole, peers, peers_python() if peers else "")
        try:
            figures = measure_kernels(
                whole,
                plans,
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
        status.update("memory of engines")
        engines = [engine_memory(whole, graph) for graph in ("kernels", "serving")]
    print_figures(console, figures)
    print_switch(console, switch)
    print_engines(console, engines)
    write_json(json, kernels=figures, switch=switch, engines=engines)
    if plot is not None:
        plot_roofline(figures, plot)
        console.print(f"written: {plot}")
