"""The verbs of `scripts/bench` about agents: their dialogues, their load, models that change, and endurance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from bench.command import CHAT_MODEL, Json, console, leave_if, models_folder, write_json
from bench.machine import read_machine
from bench.report import print_machine, ratio_text
from bench.spread import Spread


def register(app: typer.Typer) -> None:
    for verb in (dialogue, agents, switch, endurance):
        app.command()(verb)


def dialogue(
    rounds: Annotated[int, typer.Option(min=1, help="Dialogues.")] = 5,
    json: Json = None,
) -> None:
    """An agent's dialogue: time to the first token by turn, cached beside cold, and after a restart."""
    from bench.dialogue import measure_dialogue
    from bench.service_process import running_service

    print_machine(console, read_machine())
    with running_service(models_folder()) as service, console.status("") as status:
        result = measure_dialogue(service, rounds, status.update)
    table = Table("turn", "prompt", "computed", "may compute", "TTFT, ms", "cold", "ratio", "goal")
    for turn in (*result.turns, result.restored):
        table.add_row(
            turn.turn,
            f"{turn.prompt_tokens.median:.0f}",
            f"{turn.recomputed_tokens.high:.0f}",
            f"{turn.allowed_tokens.low:.0f}",
            f"{turn.warm_ttft_s.median * 1000:.0f}",
            f"{turn.cold_ttft_s.median * 1000:.0f}",
            ratio_text(turn.ratio, digits=3),
            f"{turn.goal}" if turn.goal is not None else "",
        )
    console.print(table)
    console.print(
        f"restart: {result.restart_s:.1f} s from SIGTERM to ready, {result.saved} of {rounds} conversations on disk"
    )
    write_json(json, dialogue=result)
    leave_if(result.missed)


def agents(
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of all loads.")] = 3,
    seconds: Annotated[float, typer.Option(min=5, help="Of each load in a round.")] = 40.0,
    json: Json = None,
) -> None:
    """Sixteen agents that compute and wait: throughput beside saturation, a thread pool, and theory."""
    from bench.agents import SERVICE_SETTINGS, measure_agents
    from bench.service_process import running_service

    print_machine(console, read_machine())
    folder = models_folder()
    manifest = msgspec.json.decode((folder / CHAT_MODEL / "manifest.json").read_bytes())
    with running_service(folder, SERVICE_SETTINGS) as service, console.status("") as status:
        result = measure_agents(service, tuple(manifest["special"]["eos"]), rounds, seconds, status.update)
    console.print(
        f"{result.agents} agents, {result.compute_slots} compute slots, T_wait = {result.wait_factor:g} T_compute; "
        "carries: conversations by the service's own estimate"
    )
    table = Table(
        "load", "tokens/s", "of saturated", "theory", "carries", "compute", "queue p95", "in computes", "cached"
    )
    for load in result.results:
        table.add_row(
            load.load,
            f"{load.tokens_per_s.median:.1f}",
            ratio_text(load.relative),
            f"{load.predicted.median:.2f}" if load.predicted else "",
            f"{load.conversations.median:.1f}" if load.conversations else "",
            f"{load.compute_s.median:.2f} s",
            f"{load.queue_p95_s.median:.2f} s",
            ratio_text(load.queue_p95_computes, digits=1),
            f"{load.cached_share.median:.0%}",
        )
    console.print(table)
    write_json(json, agents=result)
    leave_if(result.missed)


def switch(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of A B, warm.")] = 10,
    cold_rounds: Annotated[int, typer.Option(min=1, help="Loads of a model that is not loaded.")] = 5,
    json: Json = None,
) -> None:
    """Time to the first prefill step after a switch to a loaded model, and to one that is not loaded."""
    import tempfile

    from bench.switch import measure_switch

    print_machine(console, read_machine())
    with tempfile.TemporaryDirectory() as scratch, console.status("") as status:
        result = measure_switch(models_folder() / CHAT_MODEL, Path(scratch), rounds, cold_rounds, status.update)
    table = Table("model", "to the first prefill step, ms", "to the first token, ms")
    for name, before, ttft in (
        ("that ran before", result.same_before_prefill_s, result.same_ttft_s),
        ("loaded, another one ran before", result.warm_before_prefill_s, result.warm_ttft_s),
        ("not loaded, in the page cache", result.cold_before_prefill_s, result.cold_ttft_s),
    ):
        table.add_row(name, *(_milliseconds(spread) if spread else "not measured" for spread in (before, ttft)))
    console.print(table)
    console.print(f"first token later than without a switch by {_milliseconds(result.ttft_difference_s)} ms")
    write_json(json, switch=result)
    leave_if(result.missed)


def _milliseconds(seconds: Spread) -> str:
    return f"{seconds.median * 1000:.1f} ({seconds.low * 1000:.1f}, {seconds.high * 1000:.1f})"


def endurance(
    requests: Annotated[int, typer.Option(min=10, help="Requests of all kinds.")] = 5000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same requests.")] = 1,
    json: Json = None,
) -> None:
    """Thousands of requests whose clients leave in every phase: what is held, memory and speed in the end."""
    from bench.endurance import SERVICE_SETTINGS, measure_endurance
    from bench.service_process import running_service

    print_machine(console, read_machine())
    with running_service(models_folder(), SERVICE_SETTINGS) as service, console.status("") as status:
        result = measure_endurance(service, requests, seed, status.update)
    console.print(f"{result.requests} requests in {result.wall_s:.0f} s; answers, and where clients left:")
    for kind, counts in result.answers.items():
        console.print(f"  {kind}: " + ", ".join(f"{answer} {number}" for answer, number in counts.items()))
    table = Table("after", "at rest in, s", "held", "service less KV, MB", "engine less KV, MB", "KV, MB",
                  "open files", "undisturbed request, ms")  # fmt: skip
    for rest in result.rests:
        table.add_row(
            str(rest.after_requests),
            f"{rest.rest_s:.1f}",
            "; ".join(rest.left) or "nothing",
            f"{rest.service_bytes / 1e6:.1f}",
            f"{rest.engine_bytes / 1e6:.1f}",
            f"{rest.kv_bytes / 1e6:.0f}",
            f"{rest.service_files}, {rest.engine_files}",
            _milliseconds(rest.probe_s),
        )
    console.print(table)
    write_json(json, endurance=result)
    leave_if(result.missed)
