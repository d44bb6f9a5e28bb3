"""`magnitude strategy`: what was learned of how each model runs best on this board.

Each verb below it is a module `strategy_….py` of this package with `register_strategy(group)`.
"""

from __future__ import annotations

import importlib
import pkgutil

import typer

from magnitude import cli

# In the order in which they are needed; one that is not named here comes last.
ORDER = ("show", "diff", "export", "import", "reset", "pin", "train")


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="strategy", help="Show, move, compare, fix and forget learned strategies.", no_args_is_help=True
    )
    for module in pkgutil.iter_modules(cli.__path__):
        if module.name.startswith("strategy_"):
            add = getattr(importlib.import_module(f"{cli.__name__}.{module.name}"), "register_strategy", None)
            if add is not None:
                add(group)
    group.registered_commands.sort(key=lambda command: _rank(str(command.name)))
    app.add_typer(group)


def _rank(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)
