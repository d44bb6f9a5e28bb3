"""`magnitude doctor`: look at this machine and this installation, and say what to do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption

if TYPE_CHECKING:
    from magnitude.doctor import Finding

STYLES = {
    "ok": ("ok", "green"),
    "notice": ("note", "cyan"),
    "warning": ("warn", "yellow"),
    "error": ("FAIL", "bold red"),
}
# A small board loads the embedded models within a minute, and a minute without a break follows.
WITHIN_S = 180.0


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def seconds(given: str | float) -> float:
    """The seconds that a time span on the command line means: "180", "180s", "3m". A default comes as a number.
    Raises `typer.BadParameter`."""
    text = str(given)
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m") else (text, "s")
    try:
        value = float(number) * (60.0 if unit == "m" else 1.0)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise typer.BadParameter(f"{text!r} is no time span: write it as 180s or 3m")
    return value


def doctor(
    *,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    boot: Annotated[
        bool,
        typer.Option(
            "--boot", help="Check the running service instead: real inference, then a minute without a break."
        ),
    ] = False,
    within: Annotated[
        float, typer.Option("--within", parser=seconds, metavar="TIME", help="With --boot: how long that may take.")
    ] = WITHIN_S,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Check this machine and installation. Exit status 0: fine, 1: warnings, 2: errors."""
    import msgspec

    from magnitude.doctor import exit_status, make_context, run_checks

    context = make_context(config)
    if boot:
        from magnitude.update.this_device import check_this_boot

        report = check_this_boot(
            context, within_s=within, told=lambda line: typer.echo(line, err=True), url=url, api_key=api_key
        )
        if as_json:
            typer.echo(json.dumps(msgspec.to_builtins(report), indent=2))
        else:
            show(report.findings)
        raise typer.Exit(0 if report.verdict.passed else 2)
    findings = run_checks(context)
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(findings), indent=2))
    else:
        show(findings)
    raise typer.Exit(exit_status(findings))


def show(findings: Iterable[Finding]) -> None:
    """Print `findings` for a person."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        word, style = STYLES[finding.level]
        console.print(f"{word:4} ", style=style, end="")
        console.print(finding.title, style="bold" if finding.level in ("warning", "error") else "", markup=False)
        for line in finding.detail.splitlines():
            console.print(f"       {line}", markup=False)
        if finding.advice:
            console.print(f"     → {finding.advice}", markup=False)
