"""`magnitude replay`: try again what an engine was lost with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from magnitude.cli.options import ConfigOption

if TYPE_CHECKING:
    from magnitude.feedback.bundles import FailureBundle, ServedModel, WorkMessage
    from magnitude.feedback.replay import Attempt, Verdict
    from magnitude.supervise.connected_engine import SpawnEngine

# Of the exit statuses 0 and 1 mean what they always do, and 2 is a wrong command line.
EXIT_SAME = 3
EXIT_OTHER = 4


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Its number, its id or its file.")],
    times: Annotated[int, typer.Option("--times", "-n", min=1, max=1000, help="How often to try.")] = 1,
    keep_going: Annotated[bool, typer.Option("--keep-going", "-k", help="Go on after the engine was lost.")] = False,
    config: ConfigOption = None,
) -> None:
    """Try again what an engine was lost with, in an engine of its own. The service need not run.

    Exit status 0: the engine lived each time; 3: it was lost in the same way; 4: in another way; 1: it could not be
    tried.
    """
    import asyncio

    from magnitude.feedback.bundles import FOLDER, find_bundle, read_bundle
    from magnitude.feedback.replay import models_of, requests_of
    from magnitude.paths import find_paths

    paths = find_paths()
    found = read_bundle(find_bundle(bundle, paths.state / FOLDER))
    messages, notes = requests_of(found)
    models = models_of(found, messages)
    models, more = _as_they_are(models, _models_folder(config))
    _check_memory(models, config)
    typer.echo(f"{found.bundle_id}: {found.loss.reason} ({found.loss.cause})")
    for note in (*found.notes, *notes, *more, *_doubts(found)):
        typer.echo(f"note: {note}")
    raise typer.Exit(asyncio.run(try_again(found, messages, models, times=times, keep_going=keep_going)))


async def try_again(
    bundle: FailureBundle,
    messages: Sequence[WorkMessage],
    models: Sequence[ServedModel],
    *,
    times: int,
    keep_going: bool,
    spawn: SpawnEngine | None = None,
) -> int:
    """Try it and say how each try ended; the exit status."""
    from magnitude.feedback.replay import attempt
    from magnitude.supervise.engine_process import EngineProcess

    verdicts: set[Verdict] = set()
    for number in range(1, times + 1):
        tried = await attempt(bundle, messages, models, spawn=spawn or EngineProcess.spawn)
        verdicts.add(tried.verdict)
        typer.echo(f"try {number} of {times}: {_told(tried)}")
        for refusal in tried.refused:
            typer.echo(f"  {refusal}")
        if tried.verdict != "through" and not keep_going:
            break
    if "same" in verdicts:
        return EXIT_SAME
    return EXIT_OTHER if "other" in verdicts else 0


def _told(tried: Attempt) -> str:
    if tried.loss is None:
        return f"the engine lived, {tried.emitted_tokens} tokens were generated"
    how = "in the same way" if tried.verdict == "same" else "in another way"
    return f"the engine was lost {how}: {tried.loss.reason} ({tried.emitted_tokens} tokens were generated)"


def _models_folder(config: Path | None) -> Path:
    from magnitude.cli.options import read_configuration
    from magnitude.paths import find_paths

    folder = read_configuration(config).settings.models.folder
    return Path(folder) if folder else find_paths().models


def _as_they_are(models: list[ServedModel], folder: Path) -> tuple[list[ServedModel], list[str]]:
    """The models where they lie on this machine: a bundle can come from another one. Raises `ModelError`."""
    import msgspec

    from magnitude.models.catalogue import find, open_folder

    here: list[ServedModel] = []
    notes: list[str] = []
    for model in models:
        described = model.description
        at = Path(described.folder)
        at = at if at.is_dir() else find(folder, described.name)
        present = open_folder(at)
        if present.model_hash != described.model_hash:
            notes.append(f"{described.name} is not the one that was lost: it was imported again since, or elsewhere")
        here.append(
            msgspec.structs.replace(
                model,
                description=msgspec.structs.replace(described, folder=str(at), model_hash=present.model_hash),
                adapters=tuple(adapter for adapter in model.adapters if Path(adapter.folder).is_dir()),
                draft=model.draft if model.draft and Path(model.draft.folder).is_dir() else None,
            )
        )
        gone = len(model.adapters) - len(here[-1].adapters)
        if gone:
            notes.append(f"{gone} adapters of {described.name} are not there")
        if model.draft and here[-1].draft is None:
            notes.append(f"the draft model of {described.name} is not there")
    return here, notes


def _check_memory(models: list[ServedModel], config: Path | None) -> None:
    """A second engine beside a running service must not take its memory. Raises `MagnitudeError`."""
    from magnitude.board.memory import effective_memory
    from magnitude.cli.client import ServiceUnreachable
    from magnitude.cli.numbers import size
    from magnitude.cli.options import reach_service
    from magnitude.errors import BudgetExceeded

    needed_bytes = sum(model.description.weight_bytes for model in models)
    headroom_bytes = effective_memory().headroom_bytes
    # Weights are packed anew in memory, and runs need some beside them.
    if 2 * needed_bytes <= headroom_bytes:
        return
    try:
        reach_service(config, None, None).close()
    except ServiceUnreachable:
        return
    raise BudgetExceeded(
        f"beside the running service only {size(headroom_bytes)} are left, for models of {size(needed_bytes)}",
        hint="Stop the service first: `sudo systemctl stop magnitude`",
    )


def _doubts(bundle: FailureBundle) -> list[str]:
    """Why a try may not show what was."""
    from magnitude import __version__

    doubts = []
    if bundle.loss.cause == "killed":
        doubts.append("somebody else killed that engine: no request was the reason")
    if bundle.loss.cause == "oom":
        doubts.append("that engine lacked memory, of which there may be more now")
    version = bundle.versions.get("magnitude", "")
    if version and version != __version__:
        doubts.append(f"it was lost by version {version}, this is {__version__}")
    return doubts
