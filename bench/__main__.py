"""`scripts/bench`: one verb a measurement."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from bench import (
    agent_verbs,
    board_verbs,
    instruction_verbs,
    kernel_verbs,
    live_verbs,
    plan_verbs,
    policy_verbs,
    recovery_verbs,
    session_verbs,
    thermal_verbs,
)
from bench.command import CHAT_MODEL, Json, console, home, models_folder, write_json
from bench.compare import OURS, Comparison, compare
from bench.contender import PROJECT, ContenderPlan
from bench.machine import read_machine
from bench.peer_files import GGUF, peers_python, requantised, source_file
from bench.report import print_comparison, print_machine

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

EMBEDDER = "all-minilm-l6-v2"
MALFORMED_SEED = 1


def golden_ids(folder: Path) -> Any:
    """The golden texts as a model's ids, or None where it has no tokenizer."""
    from importlib.resources import files

    import numpy as np
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    tokenizer = Tokenizer.from_file(str(path))
    texts = sorted(files("magnitude.models.importing.golden_texts").iterdir(), key=lambda entry: entry.name)
    found = [tokenizer.encode(text.read_text()).ids for text in texts if text.name.endswith(".txt")]
    return np.concatenate([np.asarray(ids, np.int64) for ids in found])


@app.command()
def peers(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 7,
    gguf: Annotated[Path | None, typer.Option(help="The GGUF file that the model was imported from.")] = None,
    only: Annotated[str, typer.Option(help="Comma-separated contenders; empty: all.")] = "",
    json: Json = None,
    plot: Annotated[Path | None, typer.Option(help="Write the ratios as a picture.")] = None,
) -> None:
    """Speed and memory side by side with llama.cpp, ONNX Runtime GenAI and plain ONNX Runtime."""
    plans = [plan for plan in contender_plans(gguf) if not only or plan.name in only.split(",")]
    with console.status("") as status:
        comparison = compare(plans, read_machine(), rounds=rounds, progress=status.update)
    print_comparison(console, comparison)
    write_json(json, comparison=comparison)
    if plot is not None:
        _plot(comparison, plot)
    if comparison.missing:
        raise typer.Exit(1)


@app.command("plot")
def plot_saved(source: Path, target: Path) -> None:
    """Draw the ratios of a comparison saved with --json."""
    saved = msgspec.json.decode(source.read_bytes(), type=dict[str, msgspec.Raw])
    _plot(msgspec.json.decode(saved["comparison"], type=Comparison), target)


@app.command()
def profile(
    model: Annotated[Path | None, typer.Option(help="A model folder; unset: the embedded chat model.")] = None,
    engine_options: Annotated[bool, typer.Option(help="The engine's session options, not the defaults.")] = True,
    json: Json = None,
) -> None:
    """Time by operator in prefill and decode, from ONNX Runtime's profiler."""
    from bench.profile import profile_phase

    folder = model or models_folder() / CHAT_MODEL
    machine = read_machine()
    print_machine(console, machine)
    profiles = [
        profile_phase(folder, phase, machine.threads, engine_options=engine_options)
        for phase in ("prefill", "decode")
    ]
    for result in profiles:
        table = Table(f"{result.phase}: {result.run_ms:.2f} ms a run", "calls", "ms", "share")
        for row in result.operators:
            table.add_row(row.operator, f"{row.calls:.0f}", f"{row.time_ms:.3f}", f"{row.share:.1%}")
        table.add_row("outside operators", "", f"{result.outside_ms:.3f}", f"{result.outside_ms / result.run_ms:.1%}")
        console.print(table)
    write_json(json, profiles=profiles)


@app.command()
def equality(
    model: Annotated[list[Path] | None, typer.Option(help="Model folders; unset: the embedded chat model.")] = None,
    fallback: Annotated[bool, typer.Option(help="Also the graph with float activations. Slow.")] = False,
    json: Json = None,
) -> None:
    """Whether logits are equal to the bit by batch, chunk, verification width and replay."""
    from bench.equality import measure
    from magnitude.models.catalogue import open_folder

    machine = read_machine()
    print_machine(console, machine)
    reports = []
    for folder in model or [models_folder() / CHAT_MODEL]:
        graphs = [None, open_folder(folder).fallback_graph_file] if fallback else [None]
        for graph in dict.fromkeys(graphs):
            with console.status("") as status:
                report = measure(
                    folder, threads=machine.threads, graph_file=graph, ids=golden_ids(folder), progress=status.update
                )
            table = Table("compared", "size", "rows", "equal to the bit", "largest difference of a logit")
            for row in report.results:
                equal = "yes" if row.equal else "no"
                difference = f"{row.largest_difference:.3g}" if row.largest_difference else "0"
                table.add_row(row.what, str(row.size), str(row.compared), equal, difference)
            console.print(f"[bold]{report.model}[/bold], {report.graph_file}, KV {report.kv_type}: {report.plan}")
            console.print(table)
            reports.append(report)
    write_json(json, equality=reports)


@app.command()
def health(json: Json = None) -> None:
    """Answer times of /healthz while a 4,000-token prefill runs."""
    from bench.health import measure_health
    from bench.service_process import running_service

    print_machine(console, read_machine())
    with running_service(models_folder()) as service:
        result = measure_health(service)
    console.print(
        f"/healthz during a prefill of {result.prompt_tokens} tokens ({result.prefill_wall_s:.1f} s, "
        f"{result.probes} probes, {result.failed_probes} failed): p50 {result.p50_ms:.1f} ms, "
        f"p99 {result.p99_ms:.1f} ms, "
        f"max {result.max_ms:.1f} ms; at rest p50 {result.idle_p50_ms:.1f} ms, p99 {result.idle_p99_ms:.1f} ms"
    )
    write_json(json, health=result)


@app.command()
def startup(
    script: Annotated[bool, typer.Option(help="Also time scripts/run (its second run) to ready.")] = True,
    port: Annotated[int, typer.Option(help="Where the service of scripts/run listens.")] = 11500,
    json: Json = None,
) -> None:
    """Import time, memory at rest, and the time from scripts/run to ready."""
    from bench.service_process import running_service
    from bench.startup import ENTRY_MODULES, idle_memory, import_cost, time_to_ready

    print_machine(console, read_machine())
    costs = [import_cost(module) for module in ENTRY_MODULES]
    for cost in costs:
        top = ", ".join(f"{entry.module} {entry.self_ms:.0f}" for entry in cost.top)
        console.print(
            f"import {cost.module}: {cost.wall_s.median * 1000:.0f} ms with the interpreter; ms by package: {top}"
        )
    with running_service(models_folder()) as service:
        idle = idle_memory(service)
    for name, memory in (("service", idle.service), ("engine", idle.engine)):
        if memory is not None:
            console.print(
                f"{name} at rest: RSS {memory.rss_bytes / 1e6:.0f} MB, Pss {memory.pss_bytes / 1e6:.0f}, "
                f"Uss {memory.uss_bytes / 1e6:.0f} (files {memory.files_bytes / 1e6:.0f}, "
                f"anonymous {memory.anon_bytes / 1e6:.0f}, KV {memory.kv_bytes / 1e6:.0f})"
            )
    ready = None
    if script:
        command = [str(PROJECT / "scripts/run")]
        time_to_ready(command, port)  # the first run may still install and import
        ready = time_to_ready(command, port)
        console.print(
            f"scripts/run, second run: service process after {_seconds(ready.service_process_s)}, first answer "
            f"{_seconds(ready.first_answer_s)}, engine process {_seconds(ready.engine_process_s)}, "
            f"ready {ready.ready_s:.2f} s"
        )
    write_json(json, imports=costs, idle=idle, ready=ready)


def _seconds(value: float | None) -> str:
    return f"{value:.2f} s" if value is not None else "unseen"


@app.command()
def malformed(
    count: Annotated[int, typer.Option(min=1, help="Malformed requests.")] = 2000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same requests.")] = MALFORMED_SEED,
    json: Json = None,
) -> None:
    """Malformed requests with valid ones between: server errors, deaths, memory and open files."""
    from bench.assault import SERVICE_SETTINGS, assault
    from bench.malformed import requests
    from bench.service_process import running_service

    with running_service(models_folder(), SERVICE_SETTINGS) as service, console.status("") as status:
        result = assault(service, requests(seed, count), count, lambda sent: status.update(f"{sent} of {count} sent"))
    console.print(
        f"{result.sent} malformed requests: {len(result.server_errors)} server errors, {len(result.silent)} without "
        f"an answer in time, {result.dead_processes} dead processes; {result.valid_sent} valid ones between, "
        f"{len(result.failed_valid)} failed"
    )
    console.print("answers: " + ", ".join(f"{answer}: {number}" for answer, number in result.answers.items()))
    for shot in result.snapshots:
        for name, process in (("service", shot.service), ("engine", shot.engine)):
            if process is not None:
                console.print(
                    f"after {shot.after_requests}: {name} {process.rss_less_kv_bytes / 1e6:.1f} MB less KV, "
                    f"{process.open_files} open files"
                )
    for line in (*result.server_errors, *result.silent, *result.failed_valid):
        console.print(line, markup=False, soft_wrap=True)
    write_json(json, malformed=result)
    if result.server_errors or result.silent or result.failed_valid or result.dead_processes:
        raise typer.Exit(1)


@app.command()
def encoders(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of each load.")] = 7,
    json: Json = None,
) -> None:
    """Memory of encoder runs, padding, and what gathering the requests of many clients brings."""
    from bench.encoders import measure_encoders

    machine = read_machine()
    print_machine(console, machine)
    with console.status("") as status:
        figures = measure_encoders(
            models_folder() / EMBEDDER, rounds=rounds, threads=machine.threads, progress=status.update
        )
    table = Table("MB above the loaded model", "512 positions", "then 16", "8,192", "then 16 twice", "trimmed")
    for way in figures.arena:
        _, _, usual, small, _, huge, _, later, _, _ = way.steps
        table.add_row(
            way.mode,
            f"{usual.left_bytes / 1e6:.0f}, highest {usual.peak_bytes / 1e6:.0f}",
            f"{small.left_bytes / 1e6:.0f}",
            f"{huge.left_bytes / 1e6:.0f}, highest {huge.peak_bytes / 1e6:.0f}",
            f"{later.left_bytes / 1e6:.0f}",
            f"{way.trimmed_bytes / 1e6:.0f}",
        )
    console.print(table)
    for speed in figures.speeds:
        ratio = speed.ratio
        console.print(f"{speed.mode}: {ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f}) of the first way's time")
    console.print(
        f"a run costs {figures.cost.fixed_ms:.2f} ms of processor time and {figures.cost.token_ms:.3f} ms a token: "
        f"as much as {figures.cost.fixed_tokens:.1f} tokens before its first"
    )
    back, pool = figures.way_back, figures.way_back.pool
    console.print(
        f"engine after 20 short texts {back.before_bytes / 1e6:.0f} MB, after the 32 longest in one request "
        f"{back.large_bytes / 1e6:.0f} MB, after 20 short ones {back.after_bytes / 1e6:.0f} MB; held for runs: peak "
        f"{pool.peak_bytes / 1e6:.1f}, mean {pool.mean_bytes / 1e6:.1f}, peak to mean {pool.peak_to_mean:.1f}"
    )
    for row in figures.padding:
        console.print(
            f"{row.texts} texts, at most {row.max_padding:.0%} padding between buckets: {row.runs:.1f} runs, "
            f"{row.padding:.1%} of the positions are padding"
        )
    for load in figures.loads:
        console.print(
            f"{load.name}: {load.gathered_rate:.0f} requests/s gathered ({load.rows:.1f} texts a message), "
            f"{load.plain_rate:.0f} one by one, ratio {load.ratio.median:.2f} "
            f"({load.ratio.low:.2f}-{load.ratio.high:.2f}); "
            f"p95 {load.gathered_p95_ms:.0f} and {load.plain_p95_ms:.0f} ms; processor time a request "
            f"{load.gathered_cpu_ms:.1f} and {load.plain_cpu_ms:.1f} ms, ratio {load.cpu_ratio.median:.2f} "
            f"({load.cpu_ratio.low:.2f}-{load.cpu_ratio.high:.2f})"
        )
    write_json(json, encoders=figures)


@app.command()
def speculation(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds over all prompts.")] = 3,
    max_tokens: Annotated[int, typer.Option(min=8, help="Most tokens of an answer.")] = 128,
    models: Annotated[Path | None, typer.Option(help="Folder of models; unset: the imported ones.")] = None,
    draft_model: Annotated[str, typer.Option(help="Name of a model that drafts as well; empty: none.")] = "",
    json: Json = None,
) -> None:
    """Decode with speculation beside plain decode, on quotes and on free text."""
    from bench.service_process import running_service
    from bench.speculation import measure_speculation
    from bench.verification import measure_verification

    machine = read_machine()
    print_machine(console, machine)
    folder = models or models_folder()
    runs = measure_verification(folder / CHAT_MODEL, machine.threads)
    table = Table(
        "positions of a run", "ms", "plain steps", "logits equal to the bit", "same best", "differ by at most"
    )
    for run in runs:
        table.add_row(
            str(run.positions),
            f"{run.run_ms:.1f}",
            f"{run.run_steps:.2f}",
            f"{run.equal_rows} of {run.rows}",
            f"{run.same_top} of {run.rows}",
            f"{run.largest_difference:.3g}",
        )
    console.print(table)
    auto: dict[str, Any] = {"speculation": "on", "draft_model": draft_model or None}
    with (
        running_service(folder, {"engine": {"speculation": "off"}}) as plain,
        running_service(folder, {"engine": auto}) as drafting,
        console.status("") as status,
    ):
        results = measure_speculation(plain, drafting, rounds, max_tokens, status.update)
    table = Table("task", "plain tokens/s", "speculating", "ratio by answer", "of all", "accepted", "same text")
    for result in results:
        ratio = result.ratio
        table.add_row(
            result.task,
            f"{result.plain_rate.median:.1f}",
            f"{result.drafting_rate.median:.1f}",
            f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
            f"{result.total_ratio:.3f}, processor {result.total_cpu_ratio:.3f}; goal {result.goal:.2f}",
            f"{result.accepted_tokens} of {result.drafted_tokens}",
            f"{result.same_texts} of {result.answers}",
        )
    console.print(table)
    write_json(json, verification=runs, speculation=results)


@app.command()
def adapters(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 15,
    json: Json = None,
) -> None:
    """Time and memory of LoRA adapters beside the plain graph and a second whole model."""
    import tempfile

    from bench.adapters import RANKS, base_with_lora, memory_held, random_adapter, step_costs

    machine = read_machine()
    print_machine(console, machine)
    source = models_folder() / CHAT_MODEL
    with tempfile.TemporaryDirectory() as scratch, console.status("") as status:
        work = Path(scratch)
        base, second = base_with_lora(source, work / "base"), base_with_lora(source, work / "second")
        made = {rank: random_adapter(base, rank, work / "adapters") for rank in RANKS}
        status.update("memory")
        held = memory_held(base, list(made.values()), second, machine.threads)
        status.update("time")
        costs = step_costs(base, made, machine.threads, rounds)
    table = Table("run", "rank", "time, x plain graph", "processor time, x plain graph")
    for cost in costs:
        table.add_row(cost.run, str(cost.rank), f"{cost.ratio.median:.2f}", f"{cost.processor_ratio.median:.2f}")
    console.print(table)
    table = Table("an engine with", "RSS, MB", "Pss", "weights and adapters, mapped", "anonymous", "KV")
    for entry in held:
        memory = entry.memory
        kinds = (memory.rss_bytes, memory.pss_bytes, memory.weights_bytes, memory.anon_bytes, memory.kv_bytes)
        table.add_row(entry.holding, *(f"{size / 1e6:.0f}" for size in kinds))
    console.print(table)
    sizes = ", ".join(f"rank {rank} {adapter.size_bytes / 1e6:.1f} MB" for rank, adapter in made.items())
    console.print(f"adapters on disk: {sizes}")
    write_json(json, costs=costs, held=held)


@app.command()
def streams(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 5,
    sizes: Annotated[
        str, typer.Option(help="Numbers of streams, comma-separated; 4 is the one with goals.")
    ] = "1,2,4,8",
    limits: Annotated[
        str, typer.Option(help="Values of engine.max_inter_token_ms for the prompt's part.")
    ] = "30,60,120",
    gguf: Annotated[Path | None, typer.Option(help="The GGUF file that the model was imported from.")] = None,
    llama_server: Annotated[
        Path | None, typer.Option(envvar="MAGNITUDE_LLAMA_SERVER", help="llama.cpp's server; unset: the peers' one.")
    ] = None,
    json: Json = None,
) -> None:
    """Four streams beside the bare graph and llama.cpp's server, and a long prompt that enters among them."""
    from contextlib import ExitStack

    from bench.contender import Worker
    from bench.entering import measure_entering
    from bench.llama_server import find_server, running_llama_server, server_version
    from bench.service_process import running_service
    from bench.streams import CONTEXT, STREAMS, measure_batches
    from bench.streams_report import batches_table, entering_table, goal_lines

    machine = read_machine()
    print_machine(console, machine)
    folder = models_folder()
    counts = [int(size) for size in sizes.split(",")]
    engine: dict[str, Any] = {"max_batch_size": max(*counts, STREAMS), "speculation": "off"}
    source = gguf or home() / GGUF
    server = llama_server or find_server(Path(os.environ["MAGNITUDE_PEERS"]) / "bin/python")
    with ExitStack() as stack, console.status("") as status:
        service = stack.enter_context(running_service(folder, {"engine": engine}))
        bare = Worker(
            ContenderPlan(
                name="bare graph",
                module="bench.peers.bare_graph_peer",
                python=sys.executable,
                source=str(folder / CHAT_MODEL),
                arguments=(str(max(counts)),),
            )
        )
        stack.callback(bare.stop)
        bare.start()
        bare.load(machine.threads, CONTEXT)
        llama_port = None
        if server is not None and source.is_file():
            llama = running_llama_server(server, source, slots=STREAMS, context=CONTEXT, threads=machine.threads)
            llama_port = stack.enter_context(llama)
        batches = measure_batches(
            service.port, bare, llama_port, folder / CHAT_MODEL, counts, rounds, progress=status.update
        )
    if server is not None:
        console.print(f"llama.cpp's server: {server_version(server)}")
    else:
        console.print("[yellow]llama.cpp's server was not measured: it is not in the peers' environment.[/yellow]")
    console.print(batches_table(batches))
    with ExitStack() as stack, console.status("") as status:
        services = {
            limit_ms: stack.enter_context(
                running_service(folder, {"engine": {**engine, "max_inter_token_ms": limit_ms}})
            )
            for limit_ms in (float(limit) for limit in limits.split(",") if limit)
        }
        entering = measure_entering(services, folder / CHAT_MODEL, rounds, progress=status.update)
    console.print(entering_table(entering))
    for line in goal_lines(batches, entering):
        console.print(line)
    write_json(json, batches=batches, entering=entering)


def contender_plans(gguf: Path | None) -> list[ContenderPlan]:
    """Every contender on its files. The Q4_0 file is made on the way, once."""
    folder = str(models_folder() / CHAT_MODEL)
    source = source_file(gguf)
    plans = [
        ContenderPlan(name=OURS, module="bench.peers.magnitude_peer", python=sys.executable, source=folder),
        ContenderPlan(
            name="plain onnxruntime", module="bench.peers.onnxruntime_peer", python=sys.executable, source=folder
        ),
        ContenderPlan(
            name="onnxruntime-genai", module="bench.peers.genai_peer", python=peers_python(), source=folder
        ),
    ]
    for label, file in (("llama.cpp Q4_1", source), ("llama.cpp Q4_0", requantised(source, "Q4_0"))):
        plans.append(
            ContenderPlan(name=label, module="bench.peers.llama_cpp_peer", python=peers_python(), source=str(file))
        )
    return plans


def _plot(comparison: Comparison, target: Path) -> None:
    from bench.plot import plot_ratios

    plot_ratios(comparison, target)
    console.print(f"written: {target}")


agent_verbs.register(app)
recovery_verbs.register(app)
board_verbs.register(app)
live_verbs.register(app)
session_verbs.register(app)
thermal_verbs.register(app)
plan_verbs.register(app)
kernel_verbs.register(app)
instruction_verbs.register(app)
policy_verbs.register(app)

if __name__ == "__main__":
    app()
