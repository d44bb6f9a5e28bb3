"""`magnitude rm`: remove a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magnitude.cli.models_folder import ModelsFolderOption, models_folder
from magnitude.cli.options import ConfigOption
from magnitude.errors import ModelError


def register(app: typer.Typer) -> None:
    app.command("rm")(remove)


def remove(
    name: Annotated[str, typer.Argument(help="Name of the model, or MODEL:ADAPTER.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    variants: Annotated[bool, typer.Option("--variants", help="Remove the model's variants as well.")] = False,
    folder: ModelsFolderOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove a model with its adapters, or one adapter. A running service keeps what it has loaded.

    A model that has variants is removed together with them only.
    """
    from magnitude.models.adapters import ADAPTERS_FOLDER, SEPARATOR, split_name

    place, (model, adapter) = models_folder(folder, config), split_name(name)
    target = removable(place, model)
    if SEPARATOR in name:
        target = removable(target / ADAPTERS_FOLDER, adapter)
    else:
        others = variants_in(place, model)
        if others and not variants:
            raise ModelError(
                f"{model} has variants, which are of no use without it: {', '.join(others)}",
                hint="Remove them with it (--variants), or first",
                param=model,
            )
        for other in others:
            if not take_away(place / other, other, yes=yes):
                return  # what is left of them still needs the model
    take_away(target, name, yes=yes)


def variants_in(place: Path, model: str) -> list[str]:
    """Names of the variants of `model` in `place`, usable or not."""
    from magnitude.models.catalogue import BrokenModel, scan

    return [entry.name for entry in scan(place) if not isinstance(entry, BrokenModel) and entry.variant_of == model]


def take_away(target: Path, name: str, *, yes: bool) -> bool:
    """Remove a model or an adapter, or a link to one, with what it has replaced, if the person agrees; whether it
    was."""
    from magnitude.cli.numbers import size
    from magnitude.models.importing.staging import remove_whole
    from magnitude.models.previous import previous_of

    previous = previous_of(target)
    # The predecessor first: cut short in between, the model is there to be removed again, and nothing is left that no
    # verb shows.
    earlier = {previous: f"the earlier {target.name}"} if previous.is_symlink() or previous.is_dir() else {}
    parts = {**earlier, target: name}
    if not yes and not typer.confirm(f"Remove {' and '.join(map(described, reversed(parts)))}?"):
        return False
    for path, called in parts.items():
        said = f"removed {called}" if path.is_symlink() else f"removed {called} ({size(size_of(path))})"
        remove_whole(path)
        typer.echo(said)
    return True


def described(path: Path) -> str:
    """What is to be removed, for the question."""
    from magnitude.cli.numbers import size

    return f"the link {path} (what it points to stays)" if path.is_symlink() else f"{path} ({size(size_of(path))})"


def size_of(folder: Path) -> int:
    """Bytes of all its files."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def removable(place: Path, name: str) -> Path:
    """The folder of the model or adapter `name` directly below `place`. Raises `ModelError` for anything else."""
    target = place / name
    if name in ("", ".", "..") or Path(name).name != name or name.startswith("."):
        raise ModelError(
            f"{name!r} is not the name of anything in {place}",
            hint="Only what `magnitude list` shows is removed here",
            param=name,
        )
    if not target.is_symlink() and not target.is_dir():
        raise ModelError(f"there is no {name!r} in {place}", hint="`magnitude list` shows them", param=name)
    return target
