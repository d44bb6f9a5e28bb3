"""`magnitude attribute`: what the strategy loop brings, on this service, measured."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption, reach_service
from magnitude.errors import ConfigError, MagnitudeError

if TYPE_CHECKING:
    from magnitude.board.energy_meter import EnergyMeter
    from magnitude.board.profile import BoardProfile
    from magnitude.cli.attribution.run import Seen
    from magnitude.cli.client import Address, ServiceClient
    from magnitude.policy.attribution import Attribution, Figure

# A day. Longer comparisons say the same with narrower intervals.
MOST_MINUTES = 24 * 60


def register(app: typer.Typer) -> None:
    app.command("attribute")(attribute)


def attribute(
    *,
    minutes: Annotated[
        float, typer.Option("--minutes", "-t", min=0.1, max=MOST_MINUTES, help="For how long.")
    ] = 10.0,
    learn: Annotated[
        float | None,
        typer.Option(
            "--learn", min=0.0, max=MOST_MINUTES, help="Of these, how many for the loop to learn the work (a fifth)."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="NAME", help="Model (the default chat model).")
    ] = "default",
    work: Annotated[
        Path | None,
        typer.Option("--work", metavar="FILE", help="Requests to replay, a JSON object a line (a built-in mix)."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the built-in mix and of the intervals.")] = 0,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay the same work with the strategy loop off and on in turn, and tell the difference with its interval.

    It adds load to the service, and other requests make the figures noisy: choose a quiet time. Ctrl-C ends it with
    what was measured by then. The loop is on again afterwards, also when this process is killed.
    """
    import msgspec

    from magnitude.cli.attribution.run import Proof
    from magnitude.cli.attribution.work import built_in, read_work
    from magnitude.cli.client import connect
    from magnitude.policy.attribution import attribute as compare

    learn_min = minutes / 5 if learn is None else learn
    if learn_min >= minutes:
        raise ConfigError(
            f"{learn_min:g} min to learn of {minutes:g} min leave nothing to measure",
            hint="Give fewer with --learn, or more with --minutes",
            param="--learn",
        )
    if plot is not None:
        from magnitude.picture import can_plot

        can_plot(plot)
    with reach_service(config, url, api_key) as client:
        chat, embedder, looped = _models(client, model)
        asked = read_work(work, looped) if work is not None else built_in(seed, chat, embedder)
        meter, profile = _energy(client)
        address = client.address
        proof = Proof(lambda: connect([address], api_key), asked, looped, meter=meter, profile=profile)
        requests = sum(map(len, asked))
        typer.echo(f"the loop learns the work for {learn_min:.1f} min", err=True)
        with contextlib.suppress(KeyboardInterrupt):  # what was measured until Ctrl-C counts
            proof.run(
                minutes * 60,
                learn_min * 60,
                lambda mode, block: _progress(len(proof.rounds_took_s) + 1, mode, block.took_s),
            )
        seen = proof.seen()
    if not proof.rounds_took_s:
        raise MagnitudeError("not one round was complete", hint="Give it more minutes")
    found = compare(proof.blocks, seed=seed)
    took_min = sum(proof.rounds_took_s) / 60
    rounds = f"{found.rounds} round{'' if found.rounds == 1 else 's'} of 4 blocks"
    title = f"{looped}: {rounds} with {requests} requests each, in {took_min:.1f} min"
    if as_json:
        document = {
            "model": looped,
            "requests": requests,
            "took_min": took_min,
            "attribution": msgspec.to_builtins(found),
            "seen": msgspec.to_builtins(seen),
            "blocks": msgspec.to_builtins(proof.blocks),
        }
        typer.echo(json.dumps(document, indent=2))
    else:
        typer.echo(_report(found, seen, title, max(proof.rounds_took_s)))
    if plot is not None:
        from magnitude.cli.attribution.plot import plot as draw

        draw(found, proof.blocks, title, plot)
        typer.echo(f"written: {plot}", err=True)


def _progress(round_number: int, mode: str, took_s: float) -> None:
    typer.echo(f"round {round_number}, loop {mode}: {took_s:.2f} s", err=True)


def _models(client: ServiceClient, named: str) -> tuple[str, str, str]:
    """A chat model and an embedder for the mix ("": none), and the model whose loop is compared."""
    from magnitude.cli.strategy_source import PATH

    state = client.get("/v1/magnitude/state")
    kinds = {one["name"]: one["kind"] for one in state["models"]}
    loops = {one["model"]: one["running"] for one in client.get(PATH)["data"] if one["running"] is not None}
    decoders = [name for name, kind in kinds.items() if kind == "decoder" and name in loops]
    embedders = [name for name, kind in kinds.items() if kind == "embedder"]
    looped = named if named != "default" else next(iter(decoders or loops), "")
    if looped not in loops:
        raise MagnitudeError(
            f"no strategy loop runs for {looped or 'any model'}",
            hint=f"There is one for {', '.join(loops)}" if loops else "See engine.self_optimize, and `magnitude ps`",
        )
    if loops[looped]["fault"] or not loops[looped]["on"]:
        raise MagnitudeError(
            f"the strategy loop of {looped} is off: {loops[looped]['fault'] or 'as configured'}",
            hint="See engine.self_optimize, and the service's log",
        )
    if kinds.get(looped) == "decoder":
        return looped, next(iter(embedders), ""), looped
    return "", looped, looped


def _energy(client: ServiceClient) -> tuple[EnergyMeter | None, BoardProfile | None]:
    """What measures the board that the service runs on, else the profile that models it."""
    from magnitude.board.energy_meter import EnergyMeter, find_meter
    from magnitude.board.profiles import load_profile
    from magnitude.errors import ConfigError

    state = client.get("/v1/magnitude/state")
    if (simulated := state.get("simulated_board")) is not None:

        def watts() -> float:
            return float(client.get("/v1/magnitude/state")["simulated_board"]["board_w"])

        return EnergyMeter(f"SIMULATED board {simulated['board']}, computed", watts=watts), None
    if _here(client.address) and (meter := find_meter()) is not None:
        return meter, None
    try:
        return None, load_profile(state["board"]["profile"])
    except ConfigError:
        return None, None


def _here(address: Address) -> bool:
    """Whether the service runs on this machine, so that its sensors are the board's."""
    from urllib.parse import urlsplit

    return bool(address.socket) or urlsplit(address.url).hostname in ("localhost", "127.0.0.1", "::1")


def _report(found: Attribution, seen: Seen, title: str, longest_round_s: float) -> str:
    from magnitude.policy.attribution import LEAST_ROUNDS

    lines = [title, "", f"{'':20}{'off':>12}{'on':>12}{'on/off':>9}   95 % interval"]
    lines += [_row(one) for one in found.figures]
    if not any(one.name.startswith("energy") for one in found.figures):
        lines.append(f"{'energy of the work':20}  not available: no sensor of power, and no profile of this board")
    lines.append("")
    if seen.energy:
        lines.append(f"energy: {seen.energy}")
    lines.append(f"failed: {found.failed_off} with the loop off, {found.failed_on} with it on")
    delay = f", {seen.on_delay_s:.2f} s from a first sample to a decision" if seen.on_delay_s is not None else ""
    lines.append(f"switches: {found.switches_per_hour:.1f} an hour with the loop on{delay}")
    lines.append(f"the loop itself: {seen.loop_cpu_share:.3%} of a core")
    lines += [f"off: {words}" for words in seen.strategies_off] + [f"on: {words}" for words in seen.strategies_on]
    if found.rounds < LEAST_ROUNDS:
        need_min = longest_round_s * (LEAST_ROUNDS + 1) / 60
        lines.append(
            f"Fewer than {LEAST_ROUNDS} rounds say nothing for certain: here they take about {need_min:.0f} minutes."
        )
    return "\n".join(lines)


def _row(one: Figure) -> str:
    told = one.verdict != "too few rounds"
    ratio = f"{one.ratio.value:.3f}" if one.ratio else "-"
    interval = f"{one.ratio.low:.3f} to {one.ratio.high:.3f}" if one.ratio and told else "-"
    sides = f"{_value(one.off, one.unit):>12}{_value(one.on, one.unit):>12}"
    return f"{one.name:20}{sides}{ratio:>9}   {interval:16}  {one.verdict}"


def _value(value: float, unit: str) -> str:
    from magnitude.cli.numbers import size

    if unit == "B":
        return size(round(value))
    if unit == "s" and value < 1:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.2f} {unit}"
