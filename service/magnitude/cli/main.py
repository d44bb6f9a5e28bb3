"""The `magnitude` command. Each verb is a module of this package with `register(app)`; nothing else lists them.

Verbs import what they need when they run, so that `magnitude --help` and shell completion stay quick on a board.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from typing import Annotated

import typer

import magnitude
from magnitude import cli
from magnitude.errors import ConfigError, MagnitudeError
from magnitude.supervise.exit_status import EXIT_CONFIG

EXIT_ERROR = 1

# How the verbs are listed: in the order in which a newcomer needs them. One that is not named here comes last.
ORDER = (
    "serve",
    "run",
    "ps",
    "reload",
    "recycle",
    "strategy",
    "kv",
    "list",
    "show",
    "import",
    "rollback",
    "rm",
    "budget",
    "tune",
    "bench",
    "attribute",
    "simulate",
    "doctor",
    "update",
    "records",
    "timeline",
    "failures",
    "replay",
    "support",
    "config",
    "install-units",
    "restore-clocks",
    "first-boot",
    "wait",
)

app = typer.Typer(
    name="magnitude",
    help="A self-optimising inference service for AI agents on edge boards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"magnitude {magnitude.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error (also: MAGNITUDE_DEBUG=1).")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if debug:
        os.environ["MAGNITUDE_DEBUG"] = "1"


def find_verbs() -> None:
    """Let every module of this package that is a verb add itself to `app`. A second call does nothing."""
    if app.registered_commands:
        return
    for module in pkgutil.iter_modules(cli.__path__):
        if module.name != "main":
            register = getattr(importlib.import_module(f"{cli.__name__}.{module.name}"), "register", None)
            if register is not None:
                register(app)
    app.registered_commands.sort(key=lambda command: _rank(command.name))
    app.registered_groups.sort(key=lambda group: _rank(group.name or None))


def _rank(name: object) -> tuple[int, str]:
    text = str(name)
    return (ORDER.index(text) if text in ORDER else len(ORDER), text)


def report(error: MagnitudeError) -> int:
    """Say what happened and what to do, in a line each; the exit status."""
    typer.echo(f"error: {error.message}", err=True)
    if error.hint:
        typer.echo(f"hint: {error.hint}", err=True)
    return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_ERROR


def run() -> None:
    """The console script."""
    find_verbs()
    try:
        app()
    except MagnitudeError as error:
        if os.environ.get("MAGNITUDE_DEBUG"):
            raise
        sys.exit(report(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`| head`) has gone. Without this Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_ERROR)


if __name__ == "__main__":
    run()
