"""`magnitude strategy diff`: what changed in choices and costs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.models_folder import ModelsFolderOption
from magnitude.cli.options import ConfigOption, JsonOption, KeyOption, UrlOption

if TYPE_CHECKING:
    from magnitude.policy.dump_diff import Difference

REFERENCE = "MODEL, MODEL@3 for a generation, or a file."


def register_strategy(group: typer.Typer) -> None:
    group.command("diff")(diff)


def diff(
    *,
    before: Annotated[str, typer.Argument(help=REFERENCE, show_default=False)],
    after: Annotated[str, typer.Argument(help=REFERENCE, show_default=False)],
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two dumps: situations that are new or gone, other choices, and costs that changed by more than 5 %."""
    import msgspec

    from magnitude.cli.strategy_source import learned_at, open_source
    from magnitude.policy.dump_diff import diff as compare

    with open_source(config, url, api_key, folder) as source:
        found = compare(learned_at(source, before), learned_at(source, after))
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    for line in found.binding:
        typer.echo(f"bound to: {line}")
    if found.differences:
        from rich.console import Console
        from rich.table import Table

        from magnitude.cli.strategy_show import WIDE

        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("PART", "SITUATION", "CHANGE", "BEFORE", "AFTER"):
            table.add_column(heading)
        for one in found.differences:
            table.add_row(one.part, one.key or "any", one.change, *_sides(one))
        Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE).print(table)
    alike = f"{found.same} situation{'' if found.same == 1 else 's'}"
    typer.echo(f"{alike} alike" if found.differences else f"No difference in {alike}.")


def _sides(one: Difference) -> tuple[str, str]:
    from magnitude.cli.strategy_show import cost_in_words

    def side(choice: str, cost_s: float | None) -> str:
        return f"{choice}, {cost_in_words(one.part, cost_s)}" if cost_s is not None else choice

    if one.reason:
        return "", f"{one.after}: {one.reason}"
    return side(one.before, one.before_s), side(one.after, one.after_s)
