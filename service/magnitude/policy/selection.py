"""Which models of the models folder are served, and when each of them is in memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from magnitude.config import Settings
from magnitude.errors import ModelError
from magnitude.models.catalogue import BrokenModel, find, open_folder, resolve, scan
from magnitude.models.description import ModelDescription
from magnitude.models.variants import as_its_own, strays, variants_of

log = logging.getLogger("magnitude.policy")


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """`at_start` are loaded with every engine, the default chat model first; `on_demand` when a request names them.
    `pinned` names those of `at_start` that never leave memory."""

    at_start: tuple[ModelDescription, ...]
    on_demand: tuple[ModelDescription, ...] = ()
    pinned: frozenset[str] = frozenset()


def find_models(settings: Settings, models_folder: Path) -> list[ModelDescription]:
    """Every usable model of the models folder, before them that of `engine.model_path`. Raises `ModelError` when
    there is none."""
    folder = Path(settings.models.folder) if settings.models.folder else models_folder
    found: list[ModelDescription] = []
    for entry in scan(folder):
        if isinstance(entry, BrokenModel):
            log.error(
                "model folder is broken",
                extra={"fields": {"folder": entry.folder, "reason": entry.message, "hint": entry.hint}},
            )
        else:
            found.append(entry)
    if settings.engine.model_path:
        # Whoever names a variant's folder wants that one, and gets it as a model of its own.
        chat = as_its_own(open_folder(resolve(Path(settings.engine.model_path))))
        found = [chat, *(model for model in found if model.name != chat.name)]
    stray = strays(found)
    found = [model for model in found if model.name not in stray]
    for name, reason in stray.items():
        log.error(
            "variant is not served",
            extra={"fields": {"model": name, "reason": reason, "hint": "Remove it, or import it again"}},
        )
    if not found:
        raise ModelError(
            f"there is no model to serve: {folder} holds none that can be used",
            hint="Import one with 'magnitude import SOURCE', or let scripts/run fetch the embedded models",
        )
    return found


def select(settings: Settings, found: Sequence[ModelDescription]) -> Selection:
    """The chat model is the first decoder of `found` that is more than a draft model; it is pinned. Loaded at start
    besides it: those that `models.pinned` and `models.load` name, or without `models.load` every model that is not a
    decoder. The others are loaded on demand, a model that only drafts never. So are the variants of all that serve;
    what they belong to is chosen by its own name. Raises `ModelError` for a name that is not there.
    """
    everything, found = found, [model for model in found if not model.variant_of]
    by_name = {model.name: model for model in found}
    by_variant = {model.name: model.variant_of for model in everything if model.variant_of}
    _check_names("models.load", settings.models.load or (), by_name, by_variant)
    _check_names("models.pinned", settings.models.pinned, by_name, by_variant)
    chat = next((m for m in found if m.kind == "decoder" and m.name != settings.engine.draft_model), None)
    if settings.models.load is None:
        named = [model.name for model in found if model.kind != "decoder"]
    else:
        named = settings.models.load
    first = [chat.name] if chat is not None else []
    start = dict.fromkeys([*first, *settings.models.pinned, *named])
    rest = [m for m in found if m.name not in start and m.name != settings.engine.draft_model]
    served = [*(by_name[name] for name in start), *rest]
    return Selection(
        at_start=tuple(by_name[name] for name in start),
        on_demand=(*rest, *(variant for model in served for variant in _variants(settings, model, everything))),
        pinned=frozenset([*first, *settings.models.pinned]),
    )


def _variants(
    settings: Settings, model: ModelDescription, found: Sequence[ModelDescription]
) -> list[ModelDescription]:
    """Those of a model that serve. One that drafts for it only drafts: it would draft its own answers."""
    return [variant for variant in variants_of(model, found) if variant.name != settings.engine.draft_model]


def find_draft_model(settings: Settings, models_folder: Path) -> ModelDescription | None:
    """The model that `engine.draft_model` names. Raises `ModelError` when it is not there or no decoder."""
    name = settings.engine.draft_model
    if name is None or settings.engine.speculation == "off":
        return None
    folder = Path(settings.models.folder) if settings.models.folder else models_folder
    model = open_folder(find(folder, name))
    if model.kind != "decoder":
        raise ModelError(
            f"engine.draft_model names {name}, which generates no text",
            param="engine.draft_model",
            hint="Name a small model of the chat model's family, or leave it unset",
        )
    return model


def _check_names(
    key: str, names: Sequence[str], by_name: Mapping[str, ModelDescription], by_variant: Mapping[str, str]
) -> None:
    missing = [name for name in names if name not in by_name]
    variants = [name for name in missing if name in by_variant]
    if variants:
        parent = by_variant[variants[0]]
        raise ModelError(
            f"{key} names {variants[0]}, which is a variant of {parent}: variants are loaded when they are wanted",
            param=key,
            hint=f"Name {parent}",
        )
    if missing:
        raise ModelError(
            f"{key} names {', '.join(missing)}, which the models folder does not hold",
            param=key,
            hint=f"There are: {', '.join(sorted(by_name)) or 'none'}; see 'magnitude list'",
        )
