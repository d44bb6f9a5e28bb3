"""`magnitude strategy pin`: fix parts of how a model runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.models_folder import ModelsFolderOption
from magnitude.cli.options import ConfigOption, KeyOption, UrlOption

if TYPE_CHECKING:
    from magnitude.engine.session_spec import SessionSpec


def register_strategy(group: typer.Typer) -> None:
    group.command("pin")(pin)


def pin(
    *,
    model: Annotated[str, typer.Argument(help="Name of the model.", show_default=False)],
    decode_threads: Annotated[
        int | None, typer.Option("--decode-threads", metavar="N", help="Threads for answers.", show_default=False)
    ] = None,
    prefill_threads: Annotated[
        int | None,
        typer.Option("--prefill-threads", metavar="N", help="Threads for prompts and texts.", show_default=False),
    ] = None,
    decode_cpus: Annotated[
        str | None, typer.Option("--decode-cpus", metavar="LIST", help="… on these CPUs, for example 4-7.")
    ] = None,
    prefill_cpus: Annotated[
        str | None, typer.Option("--prefill-cpus", metavar="LIST", help="… on these CPUs, for example 4-7.")
    ] = None,
    chunk: Annotated[
        int | None, typer.Option("--chunk", metavar="TOKENS", help="Tokens of a prompt's piece.", show_default=False)
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option("--variant", metavar="NAME", help='Weights of that variant ("": its own).', show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A strategy, or a dump.", show_default=False)
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Fix nothing any more.")] = False,
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Fix parts of a model's strategy; the loop goes on deciding the others.

    It holds over restarts and upgrades, as far as the sessions can still be made. Parts that are fixed already stay
    so. From a dump, the choice of each part that rests on most samples is taken.
    """
    from magnitude.cli.strategy_source import open_source, read_bytes
    from magnitude.policy.dump_exchange import pin_from
    from magnitude.policy.learned import Binding
    from magnitude.policy.pinned import Pinned

    _one_thing(
        parts={
            "--decode-threads": decode_threads,
            "--decode-cpus": decode_cpus,
            "--prefill-threads": prefill_threads,
            "--prefill-cpus": prefill_cpus,
            "--chunk": chunk,
            "--variant": variant,
        },
        others={"--from": file, "--off": off or None},
    )
    pinned = Pinned(
        board="",
        model=model,
        decode=_session(decode_threads, decode_cpus, "--decode"),
        prefill=_session(prefill_threads, prefill_cpus, "--prefill"),
        chunk=chunk or 0,
        variant=variant,
    )
    if file is not None:
        pinned = pin_from(read_bytes(file), str(file), Binding(board="", model=model, model_hash="", ort_version=""))
    with open_source(config, url, api_key, folder) as source:
        changed = source.pin(model, None if off else pinned)
        typer.echo(f"{changed.text}\nin {source.where}")


def _one_thing(parts: dict[str, object], others: dict[str, object]) -> None:
    """Raises `ConfigError` unless either parts are named or one of the others."""
    from magnitude.errors import ConfigError

    named = [option for option, value in parts.items() if value is not None]
    alone = [option for option, value in others.items() if value is not None]
    kinds = [*alone, *named[:1]]
    if not kinds:
        raise ConfigError(
            "what is to be fixed?", hint="Give threads, a piece or a variant; or --from FILE; or --off alone"
        )
    if len(kinds) > 1:
        raise ConfigError(f"{kinds[0]} and {kinds[1]} exclude each other", hint=f"Give {' or '.join(kinds)}")
    for option in named:
        value = parts[option]
        if isinstance(value, int) and value < 1:
            raise ConfigError(f"{option} {value}: at least 1", hint="--off gives all parts back to the loop")


def _session(threads: int | None, cpus: str | None, option: str) -> SessionSpec | None:
    from magnitude.board.cpu import parse_cpu_list
    from magnitude.engine.session_spec import SessionSpec
    from magnitude.errors import ConfigError

    on = parse_cpu_list(cpus or "")
    if (cpus is not None and not on) or (on and threads is not None and threads > len(on)):
        raise ConfigError(f"{option}-cpus {cpus} cannot be", hint="Give CPUs as 4-7 or 0,2, one for each thread")
    return SessionSpec(threads=threads or len(on), cpus=on) if threads or on else None
