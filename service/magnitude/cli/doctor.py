"""`magnitude doctor`: look at this machine and this installation, and say what to do."""

from __future__ import annotations

import json

import typer

from magnitude.cli.options import ConfigOption, JsonOption

STYLES = {
    "ok": ("ok", "green"),
    "notice": ("note", "cyan"),
    "warning": ("warn", "yellow"),
    "error": ("FAIL", "bold red"),
}


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check this machine and installation. Exit status 0: fine, 1: warnings, 2: errors."""
    import msgspec

    from magnitude.doctor import exit_status, make_context, run_checks

    findings = run_checks(make_context(config))
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(findings), indent=2))
    else:
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
    raise typer.Exit(exit_status(findings))
